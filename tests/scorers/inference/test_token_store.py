"""Each text is tokenized once while its tokens are stored."""

from typing import Any

import numpy as np

from crossknn.scorers.inference.token_store import TokenStore


def test_texts_are_tokenized_once_and_evicted_oldest_first() -> None:
    asked: list[str] = []

    def tokenize(texts: list[str]) -> list[Any]:
        asked.extend(texts)
        return [np.arange(len(text), dtype=np.int32) for text in texts]

    store = TokenStore(tokenize, max_tokens=10)
    actual = store.lookup(["aaaa", "bbb", "aaaa", ""])
    assert asked == ["aaaa", "bbb", ""]
    assert actual.lengths.tolist() == [4, 3, 4, 0]
    assert actual.flat.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]
    store.lookup(["aaaa", "cccc"])
    assert asked[3:] == ["cccc"]
    assert store.tokens == 7  # the oldest, aaaa, had to go
    store.lookup(["bbb", "cccc", "aaaa"])
    assert asked[4:] == ["aaaa"]
    long = store.lookup(["d" * 50])
    assert long.lengths.tolist() == [50]
    assert store.tokens <= 10


def test_lookup_of_no_texts() -> None:
    empty = TokenStore(lambda texts: [], max_tokens=1).lookup([])
    assert len(empty.flat) == len(empty.starts) == len(empty.lengths) == 0
