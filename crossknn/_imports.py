"""Lazy imports of public names, and imports of optional dependencies."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crossknn.errors import MissingExtra

Lazy = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def lazy_exports(package: str, file: str) -> Lazy:
    """`__getattr__`, `__dir__` and `__all__` of a package that imports public names and submodules on first use.

    The names and the modules they come from are those of the stub beside the package's file, `__init__.pyi`, which
    type checkers read as well.
    """
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.asname: str(node.module)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(homes[name]), name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}"):
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes), sorted(homes)


def import_extra(module: str, *, extra: str) -> Any:
    """Import `module`, or raise `MissingExtra` with the pip command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(module, error, extra=extra) from error


def missing_extra(module: str, error: ImportError, *, extra: str) -> MissingExtra:
    """The error for an optional dependency that cannot be imported."""
    return MissingExtra(
        f"{module} could not be imported ({error}). It comes with an extra: pip install 'crossknn[{extra}]'"
    )
