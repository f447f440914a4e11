"""Checks of settings that every part of the package makes."""

from __future__ import annotations

from crossknn.errors import InputError


def check_positive(name: str, value: object) -> None:
    """An error unless `value` is a whole number of at least one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1. Got {value!r} instead.")


def check_seed(value: object) -> None:
    """An error unless `value` is a whole number that is not negative."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"seed must be a whole number of at least 0. Got {value!r} instead.")


def check_share(name: str, value: object) -> None:
    """An error unless `value` is a number above 0 and at most 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise InputError(f"{name} must be above 0 and at most 1. Got {value!r} instead.")
