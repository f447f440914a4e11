"""A small corpus with exact scores, a scorer with faults, and servers on loopback for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from crossknn.encoders.base import function_encoder
from crossknn.items.items import Items
from crossknn.serve.server import Server, bind, url_of
from crossknn.serve.service import Service
from crossknn.serve.settings import Settings

WORDS = [
    *("river", "ice", "snow", "lake", "bread", "oven", "freeze", "top", "water", "cold", "winter"),
    *("flour", "kettle", "stone", "tiger", "mouse", "road", "wheel", "paper", "song", "night", "garden"),
]
RNG = np.random.default_rng(0)
SCORER_VECTORS = dict(zip(WORDS, RNG.normal(size=(len(WORDS), 8)), strict=True))  # of words
ENCODER_VECTORS = {word: vector + 0.5 * RNG.normal(size=8) for word, vector in SCORER_VECTORS.items()}  # with noise
TEXTS = [f"{a} {b} and {c}" for a in WORDS for b in WORDS[:5] for c in WORDS[5:8] if a != b]
FIELDS = {
    "part_of_speech": ["noun"] * len(TEXTS),
    "words": [text.split() for text in TEXTS],
    "word": [text.split()[1] for text in TEXTS],
    "size": [row if row % 5 else None for row in range(len(TEXTS))],
}
ITEMS = Items(TEXTS, ids=[f"{text[0]}{row}" for row, text in enumerate(TEXTS)], fields=FIELDS)
QUERIES = [f"{a} {b}" for a in WORDS[:8] for b in WORDS[8:16]]


def sum_vectors(words: dict[str, np.ndarray], text: str) -> np.ndarray:
    return np.sum([words[word] for word in text.split() if word in words] or [np.full(8, 0.01)], axis=0)


def true_score(query: str, item: str) -> float:
    """Computed pair by pair, so that it is the same in every batch."""
    return round(float(sum_vectors(SCORER_VECTORS, query) @ sum_vectors(SCORER_VECTORS, item)), 4)


ENCODER = function_encoder(lambda texts: [sum_vectors(ENCODER_VECTORS, text) for text in texts], fingerprint="noisy")


class WatchedScorer:
    """True scores; records its batches, and hangs while `open` is cleared.

    A query that contains one of these words fails: "raise", "nan", "few".
    """

    fingerprint = "true"

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.seconds = seconds  # per batch
        self.batches: list[list[tuple[str, str]]] = []
        self.open = threading.Event()  # cleared, it hangs
        self.open.set()

    def score(self, queries, items):
        pairs = list(zip(queries, items, strict=True))
        self.batches.append(pairs)
        time.sleep(self.seconds)
        assert self.open.wait(30)
        scores = [true_score(*pair) for pair in pairs]
        for place, (query, _) in enumerate(pairs):
            if "raise" in query:
                raise RuntimeError(f"cannot read {query}")
            if "nan" in query:
                scores[place] = float("nan")
        return np.array(scores[: -1 if any("few" in query for query in queries) else None], np.float32)


@contextmanager
def opened(source=ITEMS, *, scorer=None, encoder=ENCODER, **settings) -> Iterator[Service]:
    """A service without a server."""
    service = Service(source, scorer=scorer or WatchedScorer(), encoder=encoder, settings=Settings(**settings))
    try:
        yield service
    finally:
        service.close()


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """The URL of a real server on loopback, in a thread."""
    bound, started = bind("127.0.0.1", 0), threading.Event()
    server = Server(service, on_start=started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def wait_until(holds: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.005)
