"""Truncation and windows of pairs."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from crossknn.scorers.inference.pair_batches import longest_first, max_over_windows


@given(st.integers(0, 50), st.integers(0, 50), st.integers(2, 60))
@example(query=15, item=15, room=29)
@example(query=16, item=15, room=29)
@example(query=50, item=50, room=3)
def test_longest_first_is_the_tokenizers(query: int, item: int, room: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"q": 0, "i": 1}, unk_token="q"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(room, strategy="longest_first")
    expected = tokenizer.encode("q " * query, "i " * item).ids
    kept_query, kept_item = longest_first(np.array([query]), np.array([item]), room)
    assert [0] * int(kept_query[0]) + [1] * int(kept_item[0]) == expected


def test_max_over_windows() -> None:
    scores = np.array([1, 5, 2, -3, -1], np.float32)
    assert max_over_windows(scores, np.array([0, 1, 1, 2, 2]), 3).tolist() == [1, 5, -1]
