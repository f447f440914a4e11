"""A small corpus, its models, and indexes made without any fault, which others must equal."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import crossknn as ck
from benchmarks.faults.commands import run
from benchmarks.faults.report import expect
from crossknn.example import wordnet
from crossknn.models.hub import EMBEDDED

SENSES, MORE = 96, 16
TRAIN_QUERIES, TEST_QUERIES = 16, 4
CHUNK = 64
BUDGET = 30
EMBEDDED_ENCODER: list[object] = ["--encoder", EMBEDDED, "--device", "cpu"]
MODELS: list[object] = ["--scorer", EMBEDDED, *EMBEDDED_ENCODER]


@dataclass
class World:
    """A folder with the corpus and an index, and the models to search with."""

    folder: Path
    seed: int = 0
    quick: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        texts = wordnet.senses(SENSES + MORE)
        rows = [{"_id": id_, "text": text} for id_, text in zip(texts.ids, texts.texts, strict=True)]
        for name, part in (("items", rows[:SENSES]), ("more", rows[SENSES:])):
            self.path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        train = list(dict.fromkeys(query.text for query in wordnet.queries("train")))[:TRAIN_QUERIES]
        self.path("train.txt").write_text("\n".join(train) + "\n")
        self.queries = list(dict.fromkeys(query.text for query in wordnet.queries("test")))[:TEST_QUERIES]
        self.path("test.txt").write_text("\n".join(self.queries) + "\n")
        self.scorer = ck.CrossEncoder(EMBEDDED, device="cpu")
        self.encoder = ck.SentenceEncoder(EMBEDDED, device="cpu")

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def build(self, folder: Path, *options: object, models: list[object] = MODELS) -> list[object]:
        """The arguments of a build."""
        given = [self.path("items.jsonl"), "--queries", self.path("train.txt"), "--chunk", CHUNK, *models]
        return ["build", *given, "-o", folder, *(options or PLAIN), "--json"]

    def built(self, name: str, *options: object) -> Path:
        """The index of this name, built undisturbed if it is not there."""
        folder = self.path(f"{name}.ck")
        with self._lock:
            if not folder.exists():
                outcome = run(self.build(folder, *options), self.logs)
                expect(outcome.code == 0, f"an undisturbed build failed: {outcome.errors}")
        return folder

    def hits(self, folder: Path) -> list[list[tuple[str, float]]]:
        """Ids and scores found in an index."""
        index = ck.Index.load(folder)
        with self._lock:
            searcher = ck.Searcher(index, scorer=self.scorer, encoder=self.encoder, device="cpu")
            found = searcher.search_many(self.queries, k=10, budget=BUDGET)
        return [[(hit.id, round(hit.score, 5)) for hit in hits] for hits in found]


PLAIN = ("--prior", "--per-item", 4, "--no-teach")
TAUGHT = ("--teach", "--teach-student", "adapter", "--teach-lists", 12, "--no-prior")


def content(folder: Path) -> dict[str, str]:
    """The hash of each file of an index, by plain name."""
    files = json.loads((folder / "index.json").read_text())["files"]
    return {name: entry["hash"] for name, entry in files.items()}


def copy(source: Path, target: Path) -> Path:
    """A copy of an index and its work folder."""
    shutil.copytree(source, target)
    if work_of(source).exists():
        shutil.copytree(work_of(source), work_of(target))
    return target


def work_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.work")
