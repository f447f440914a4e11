"""The pages of the docs, their blocks, and a folder in which their code runs: small functions stand in for models."""

from __future__ import annotations

import gzip
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from tests.paths import ROOT

WORDS = ["river", "ice", "snow", "lake", "bread", "oven", "freeze", "top", "water", "cold", "winter", "flour"]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block of a page."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE)


def code_of(page: str) -> str:
    """All Python of a page, as one program."""
    return "\n".join(text for language, text in blocks(page) if language == "python")


def move_into_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder with the files that pages name; hub names give small functions from now on."""
    texts = [f"{a} and {b} in {c}" for a in WORDS for b in WORDS[:4] for c in ("winter", "summer")]
    fields = {"lang": "en", "year": 2024}
    lines = "\n".join(json.dumps({"_id": f"d{row}", "text": text, **fields}) for row, text in enumerate(texts))
    (folder / "corpus.jsonl").write_text(lines)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    rows = [f"f{row},{text},{('utils', 'io')[row % 2]},{row},2024-05-01" for row, text in enumerate(texts)]
    (folder / "functions.csv").write_text("\n".join(["id,text,section,size,released", *rows]))
    (folder / "packages.csv").write_text("id,text,section,size\njq,ice and snow,graphics,3\nhtop,bread,video,4\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ck, "CrossEncoder", lambda _, **options: ck.function_scorer(score, fingerprint="words"))
    monkeypatch.setattr(ck, "SentenceEncoder", lambda _: ck.function_encoder(encode, fingerprint="counts"))
    models = {"scorer": ck.CrossEncoder(""), "encoder": ck.SentenceEncoder("")}
    monkeypatch.setattr(ck, "open", partial(ck.open, **models))  # an index does not know functions by name


def score(pairs: list[tuple[str, str]]) -> list[float]:
    return [len(set(query.split()) & set(item.split())) + len(item) / 100 for query, item in pairs]


def encode(texts: list[str]) -> np.ndarray:
    return np.array([[text.count(word) + 0.01 for word in WORDS] for text in texts], np.float32).reshape(-1, len(WORDS))
