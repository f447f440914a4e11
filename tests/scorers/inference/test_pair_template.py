"""Assembled pairs are the tokenizer's own, token by token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.scorers.inference.pair_batches import Truncation, plan_passes
from crossknn.scorers.inference.pair_template import PairTemplate, find_template
from crossknn.scorers.inference.token_store import Ragged, fast_tokenize
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
    expected = tokenizer(queries, items, truncation=True, max_length=max_length, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ids, expected["input_ids"])
    if template.first_type is not None:
        lengths = spans.query_lengths[:, None], spans.item_lengths[:, None]
        types = template.token_types(np.arange(ids.shape[1]), *lengths)
        mask = expected["attention_mask"] == 1
        np.testing.assert_array_equal(types[mask], expected["token_type_ids"][mask])


def test_truncation_on_the_left_is_the_tokenizers(bert_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bert_folder, truncation_side="left")
    _, tokenize, _ = open_tokenizer(bert_folder)
    template = find_template(tokenizer, tokenize)
    queries, items = tiny.pairs(seed=1)
    rows = np.arange(len(queries))
    left, right = Ragged.of(tokenize(queries)), Ragged.of(tokenize(items))
    ids = template.assemble(plan_passes(template, Truncation(15), left, right, rows, rows).spans)
    expected = tokenizer(queries, items, truncation=True, max_length=15, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ids, expected["input_ids"])


def test_a_tokenizer_that_cannot_be_reproduced_is_rejected(bert_folder: Path) -> None:
    tokenizer, tokenize, _ = open_tokenizer(bert_folder)
    with pytest.raises(InputError, match="cannot be rebuilt"):
        find_template(tokenizer, lambda texts: [row[::-1] for row in tokenize(texts)])
