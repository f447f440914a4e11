"""Parts of a long benchmark, each kept in a file of its own, so that an interrupted run continues where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crossknn.evaluate.provenance import NO_EFFECT, ROOT, digest, digest_sources


class KeptParts:
    """Results by name in a folder, made once.

    A part counts only for the same inputs and the same source files; all others are made anew.

    Args:
        inputs: All that the parts depend on beside the code, as plain values.
    """

    def __init__(self, folder: Path, inputs: Any) -> None:
        self._folder = folder
        known = json.dumps([inputs, digest_all()], sort_keys=True, default=str)
        self._key = hashlib.sha256(known.encode()).hexdigest()

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The part of this name: what is kept, or what `make` returns, which must be JSON."""
        path = self._folder / f"{name.replace(', ', '_').replace(' ', '-')}.json"
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["key"] == self._key:
                return kept["part"]
        part = json.loads(json.dumps(make()))  # the same now as when it is read again
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.write_text(json.dumps({"key": self._key, "part": part}), encoding="utf-8")
        written.replace(path)
        return part


def digest_all() -> list[tuple[str, str | None]]:
    """The digests of the library, also of modules that are imported later, and of the scripts that are imported now."""
    names = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "crossknn").rglob("*.py"))]
    library = [(name, digest(ROOT / name)) for name in names if not name.startswith(NO_EFFECT)]
    return library + sorted(one for one in digest_sources() if one[0].startswith("benchmarks/"))


def describe_folder(folder: Path) -> list[tuple[str, int]]:
    """The names and sizes of a folder's files."""
    return sorted((path.name, path.stat().st_size) for path in folder.iterdir() if path.is_file())
