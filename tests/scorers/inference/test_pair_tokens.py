"""Assembled pairs are the tokenizer's own, token by token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.models.batching import length_buckets
from crossknn.scorers.inference.pair_batches import Truncation, longest_first, max_over_windows, plan_passes
from crossknn.scorers.inference.pair_template import PairTemplate, find_template
from crossknn.scorers.inference.token_store import Ragged, TokenStore, fast_tokenize
from tests.scorers import tiny

pytest.importorskip("transformers")


def open_tokenizer(folder: Path) -> tuple[Any, Any, PairTemplate]:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenize = fast_tokenize(Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()))
    return tokenizer, tokenize, find_template(tokenizer, tokenize)


@pytest.mark.parametrize("max_length", [7, 8, 21, 64])
def test_ids_and_types_are_the_tokenizers(family_folder: Path, max_length: int) -> None:
    tokenizer, tokenize, template = open_tokenizer(family_folder)
    queries, items = tiny.pairs(seed=max_length, count=60)
    left, right = Ragged.of(tokenize(queries)), Ragged.of(tokenize(items))
    rows = np.arange(len(queries))
    spans = plan_passes(template, Truncation(max_length), left, right, rows, rows).spans
    ids = template.assemble(spans)
    wanted = tokenizer(queries, items, truncation=True, max_length=max_length, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ids, wanted["input_ids"])
    if template.first_type is not None:
        lengths = spans.query_lengths[:, None], spans.item_lengths[:, None]
        types = template.token_types(np.arange(ids.shape[1]), *lengths)
        mask = wanted["attention_mask"] == 1
        np.testing.assert_array_equal(types[mask], wanted["token_type_ids"][mask])


def test_a_tokenizer_that_cuts_the_beginning_is_followed(bert_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bert_folder, truncation_side="left")
    _, tokenize, _ = open_tokenizer(bert_folder)
    template = find_template(tokenizer, tokenize)
    queries, items = tiny.pairs(seed=1)
    rows = np.arange(len(queries))
    left, right = Ragged.of(tokenize(queries)), Ragged.of(tokenize(items))
    ids = template.assemble(plan_passes(template, Truncation(15), left, right, rows, rows).spans)
    wanted = tokenizer(queries, items, truncation=True, max_length=15, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ids, wanted["input_ids"])


def test_a_tokenizer_that_joins_in_its_own_way_is_refused(bert_folder: Path) -> None:
    tokenizer, tokenize, _ = open_tokenizer(bert_folder)
    with pytest.raises(InputError, match="cannot be rebuilt"):
        find_template(tokenizer, lambda texts: [row[::-1] for row in tokenize(texts)])


@given(st.integers(0, 50), st.integers(0, 50), st.integers(2, 60))
@example(query=15, item=15, room=29)
@example(query=16, item=15, room=29)
@example(query=50, item=50, room=3)
def test_longest_first_is_the_tokenizers(query: int, item: int, room: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"q": 0, "i": 1}, unk_token="q"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(room, strategy="longest_first")
    wanted = tokenizer.encode("q " * query, "i " * item).ids
    kept_query, kept_item = longest_first(np.array([query]), np.array([item]), room)
    assert [0] * int(kept_query[0]) + [1] * int(kept_item[0]) == wanted


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    array = np.array(lengths)
    batches = list(length_buckets(array, budget))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * array[rows].max() <= budget for rows in batches)


def test_best_of_passes() -> None:
    scores = np.array([1, 5, 2, -3, -1], np.float32)
    assert max_over_windows(scores, np.array([0, 1, 1, 2, 2]), 3).tolist() == [1, 5, -1]


def test_texts_are_tokenised_once_and_forgotten_oldest_first() -> None:
    asked: list[str] = []

    def tokenize(texts: list[str]) -> list[Any]:
        asked.extend(texts)
        return [np.arange(len(text), dtype=np.int32) for text in texts]

    store = TokenStore(tokenize, max_tokens=10)
    got = store.lookup(["aaaa", "bbb", "aaaa", ""])
    assert asked == ["aaaa", "bbb", ""]
    assert got.lengths.tolist() == [4, 3, 4, 0]
    assert got.flat.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]
    store.lookup(["aaaa", "cccc"])
    assert asked[3:] == ["cccc"]
    assert store.tokens == 7  # the oldest, aaaa, had to go
    store.lookup(["bbb", "cccc", "aaaa"])
    assert asked[4:] == ["aaaa"]
    long = store.lookup(["d" * 50])
    assert long.lengths.tolist() == [50]
    assert store.tokens <= 10


def test_nothing_to_look_up() -> None:
    empty = TokenStore(lambda texts: [], max_tokens=1).lookup([])
    assert len(empty.flat) == len(empty.starts) == len(empty.lengths) == 0
