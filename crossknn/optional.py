"""Importing what is not a hard dependency, with an error that says what to install."""

from importlib import import_module
from typing import Any

from crossknn.errors import MissingExtra


def import_extra(module: str, *, extra: str) -> Any:
    """The imported `module`, or `MissingExtra` with the pip line of the extra that brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(module, error, extra=extra) from error


def missing_extra(module: str, error: ImportError, *, extra: str) -> MissingExtra:
    """What to raise where `module` could not be imported."""
    return MissingExtra(
        f"{module} could not be imported ({error}). It comes with an extra: pip install 'crossknn[{extra}]'"
    )
