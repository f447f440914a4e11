"""Fingerprints of functions, which cannot be hashed as a model's files can: the user names what they compute."""

from uuid import uuid4

from crossknn.errors import InputError

UNNAMED = "unnamed-function:"  # begins the fingerprint of a function that was given none


def function_fingerprint(given: str | None) -> str:
    """The name given, or one that no other object in any process shares."""
    if given is not None and (not given or given.startswith(UNNAMED)):
        raise InputError(f"fingerprint must be a non-empty name of your own. Got {given!r} instead.")
    return given or f"{UNNAMED}{uuid4().hex}"


def is_unnamed(fingerprint: str) -> bool:
    """Whether it is good for this process only, so that nothing may be stored under it."""
    return fingerprint.startswith(UNNAMED)
