"""A small build whose models log their texts to files that outlive the processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck

CHUNK = 100
QUERIES = [f"query {number}" for number in range(12)]
ITEMS = ck.Items([f"item {row} {'x' * (row * 7 % 13)}" for row in range(1300)])  # two blocks of the encoder
CALLS = 2 * len(ITEMS)


def embed(texts):
    """(texts, 4) numbers that look random and are the same in every process."""
    digests = [blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), np.uint16).reshape(-1, 4) / np.float32(2**15) - 1


def score(pairs):
    """`u·v`, and a little that depends on all the pairs of the call, far more than the scores of a model do."""
    left, right = (embed(texts) for texts in zip(*pairs, strict=True))
    salt = int.from_bytes(blake2b(repr(pairs).encode(), digest_size=2).digest())
    return 5 * (left * right).sum(axis=1) - 3 + salt * 1e-6


def append_lines(path: Path, lines) -> None:
    """Append the lines in one write, which a kill does not cut."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, "".join(f"{os.getpid()} {line}\n" for line in lines).encode())
    os.close(handle)


def score_logged(pairs, *, path: Path, fail_at: int | None, hold_at: int | None, die_at: str | None):
    append_lines(path, ["|".join(pair) for pair in pairs])
    scored = len(path.read_text().splitlines())
    if fail_at is not None and scored > fail_at:
        raise ck.errors.ScorerError("the scorer is broken")
    if die_at is not None and any(query == die_at for query, _ in pairs):
        os._exit(1)
    while hold_at is not None and scored > hold_at and not path.with_name("released").exists():
        time.sleep(0.01)
    return score(pairs)


def encode_logged(texts, *, path: Path):
    append_lines(path, [text for text in texts if text != "dimension"])  # asked for the dimension only
    return embed(texts)


@dataclass
class World:
    """One build in a folder: its index, its work folder and the texts its models got."""

    folder: Path
    fail_at: int | None = None  # pairs after which the scorer raises
    hold_at: int | None = None  # pairs after which calls take until `release`
    die_at: str | None = None  # query that ends the process it is scored in

    @property
    def scorer(self) -> ck.types.Scorer:
        moments = {"fail_at": self.fail_at, "hold_at": self.hold_at, "die_at": self.die_at}
        return ck.function_scorer(partial(score_logged, path=self.folder / "scored", **moments), fingerprint="salted")

    @property
    def encoder(self) -> ck.types.Encoder:
        logged = partial(encode_logged, path=self.folder / "encoded")
        return ck.function_encoder(embed, encode_items=logged, fingerprint="hashed")

    def build(self, **options: Any) -> ck.Index:
        """Build the index, from what its work folder has already, and save it."""
        index = ck.Index.build(
            ITEMS,
            scorer=self.scorer,
            encoder=self.encoder,
            queries=QUERIES,
            sampling=ck.PerItem(queries=2, nearest=0.5),  # the encoder comes first
            factors=ck.Transductive(method="als", epochs=3, patience=None),
            work_dir=self.folder / "work",
            chunk=CHUNK,
            **options,
        )
        index.save(self.folder / "index")
        return index

    def release(self) -> None:
        """Let calls end that are held."""
        (self.folder / "released").touch()

    def scored(self) -> list[str]:
        """Every pair that was scored, in the order of their calls."""
        return [line.partition(" ")[2] for line in self._lines("scored")]

    def scored_twice(self) -> int:
        """How often pairs were scored again."""
        return len(self.scored()) - len(set(self.scored()))

    def chunks(self) -> int:
        """How many chunks of scores are kept."""
        return len(list(self.folder.glob("work/scores/*.parquet")))

    def encoded(self) -> list[str]:
        return [line.partition(" ")[2] for line in self._lines("encoded")]

    def scoring_pids(self) -> list[int]:
        """The process of every pair."""
        return [int(line.partition(" ")[0]) for line in self._lines("scored")]

    def files(self) -> dict[str, bytes]:
        """All that the build has written, but for the report, which tells seconds."""
        paths = [path for part in ("work", "index") for path in (self.folder / part).rglob("*") if path.is_file()]
        kept = [path for path in paths if not path.name.startswith(".") and path.name != "index.json"]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in kept}

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def wait_until(condition, *, seconds: float = 80) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.02)
