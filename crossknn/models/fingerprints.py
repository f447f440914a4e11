"""Fingerprints of functions, which cannot be hashed as a model's files can: the user names what they compute."""

from uuid import uuid4

from crossknn._checks import invalid

UNNAMED = "unnamed-function:"  # prefix of the fingerprint of a function without a name


def function_fingerprint(name: str | None) -> str:
    """The name given, or one that no other object in any process shares."""
    if name is not None and (not name or name.startswith(UNNAMED)):
        raise invalid("fingerprint", "a nonempty name of your own", name)
    return name or f"{UNNAMED}{uuid4().hex}"


def is_unnamed(fingerprint: str) -> bool:
    """Whether the fingerprint is valid in this process only, so that nothing may be stored under it."""
    return fingerprint.startswith(UNNAMED)
