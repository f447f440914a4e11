"""Assembled pairs are the tokenizer's own, token by token, when they are cut, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.scorers.inference.pairs import (
    PairTemplate,
    TokenSpans,
    Truncation,
    find_template,
    longest_first,
    max_over_windows,
    plan_passes,
)
from crossknn.scorers.inference.token_store import Ragged, fast_tokenize
from tests.scorers import tiny

pytest.importorskip("transformers")


def open_tokenizer(folder: Path) -> tuple[Any, Any, PairTemplate]:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenize = fast_tokenize(Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()))
    return tokenizer, tokenize, find_template(tokenizer, tokenize, tokenizer.pad_token_id or 0)


@pytest.mark.parametrize("max_length", [7, 8, 21, 64])
def test_ids_and_types_are_the_tokenizers(family_folder: Path, max_length: int) -> None:
    tokenizer, tokenize, template = open_tokenizer(family_folder)
    queries, items = tiny.pairs(seed=max_length, count=60)
    whole = TokenSpans(Ragged.of(tokenize(queries)), Ragged.of(tokenize(items)))
    spans = plan_passes(template, Truncation(max_length), whole).spans
    ids = template.assemble(spans)
    expected = tokenizer(queries, items, truncation=True, max_length=max_length, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ids, expected["input_ids"])
    if template.first_type is not None:
        lengths = spans.queries.lengths[:, None], spans.items.lengths[:, None]
        types = template.token_types(np.arange(ids.shape[1]), *lengths)
        mask = expected["attention_mask"] == 1
        np.testing.assert_array_equal(types[mask], expected["token_type_ids"][mask])


def test_truncation_on_the_left_is_the_tokenizers(bert_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bert_folder, truncation_side="left")
    _, tokenize, _ = open_tokenizer(bert_folder)
    template = find_template(tokenizer, tokenize, tokenizer.pad_token_id or 0)
    queries, items = tiny.pairs(seed=1)
    whole = TokenSpans(Ragged.of(tokenize(queries)), Ragged.of(tokenize(items)))
    ids = template.assemble(plan_passes(template, Truncation(15), whole).spans)
    expected = tokenizer(queries, items, truncation=True, max_length=15, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ids, expected["input_ids"])


def test_a_tokenizer_that_cannot_be_reproduced_is_rejected(bert_folder: Path) -> None:
    tokenizer, tokenize, _ = open_tokenizer(bert_folder)
    with pytest.raises(InputError, match="cannot be rebuilt"):
        find_template(tokenizer, lambda texts: [row[::-1] for row in tokenize(texts)], 0)


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
