"""A comparison as files: a page, its picture and the numbers."""

from __future__ import annotations

import json
from pathlib import Path

from crossknn.errors import InputError
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.page import page
from crossknn.evaluate.plots import draw
from crossknn.files import write_whole


def write_report(comparison: Comparison, folder: str | Path) -> Path:
    """Write `report.html`, `recall.png` and `results.json` into `folder`; the path of the page.

    The folder is made where it is missing. Each file is there whole or not at all: what an
    earlier report left is replaced only by a finished file.
    """
    folder = Path(folder)
    contents = {
        "results.json": json.dumps(comparison.to_json(), indent=1, ensure_ascii=False, allow_nan=False).encode(),
        "recall.png": draw(comparison),
        "report.html": page(comparison).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_whole(folder / name, content)
    except OSError as error:
        raise InputError(
            f"{folder}: the report cannot be written ({error.strerror or error}). Choose another folder."
        ) from error
    return folder / "report.html"
