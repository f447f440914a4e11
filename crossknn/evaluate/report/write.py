"""A comparison as files: a page, its pictures and the numbers."""

from __future__ import annotations

import json
from pathlib import Path

from crossknn.errors import InputError
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.report.page import page
from crossknn.evaluate.report.pictures import make_pictures
from crossknn.storage.atomic import write_atomic


def write_report(comparison: Comparison, folder: str | Path) -> Path:
    """Write `report.html`, `results.json`, `recall.png` and a picture of each study into `folder`; the page's path.

    The folder is made where it is missing. Each file is there whole or not at all: what an
    earlier report left is replaced only by a finished file.
    """
    folder, pictures = Path(folder), make_pictures(comparison)
    contents = {
        "results.json": json.dumps(comparison.to_json(), indent=1, ensure_ascii=False, allow_nan=False).encode(),
        **{f"{name}.png": picture.png() for name, picture in pictures.items()},
        "report.html": page(comparison, pictures).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise InputError(
            f"{folder}: the report cannot be written ({error.strerror or error}). Choose another folder."
        ) from error
    return folder / "report.html"
