"""Pseudo-queries: distinct parts of the items' texts, reproducible by seed."""

import pytest

from crossknn.errors import InputError
from crossknn.indexing.pseudo_queries import cut_queries
from crossknn.items.items import Items

TEXTS = [
    f"Rivers {n} freeze from the top. Ice {n} floats\nbecause it is lighter than the water below." for n in range(50)
]


def test_every_query_is_a_part_of_an_item():
    queries = cut_queries(Items(TEXTS), 30)
    assert len(set(queries)) == len(queries) == 30
    flat = [" ".join(text.split()) for text in TEXTS]
    assert all(any(query in text for text in flat) for query in queries)


def test_openings_first_sentences_and_spans_take_turns():
    queries = cut_queries(Items(TEXTS), 30)
    assert all(query.startswith("Rivers ") and 3 <= len(query.split()) <= 8 for query in queries[::3])
    assert all(query.endswith("from the top.") for query in queries[1::3])
    assert any(not query.startswith("Rivers ") for query in queries[2::3])


def test_the_same_seed_cuts_the_same():
    assert cut_queries(Items(TEXTS), 20, seed=4) == cut_queries(Items(TEXTS), 20, seed=4)
    assert cut_queries(Items(TEXTS), 20, seed=4) != cut_queries(Items(TEXTS), 20, seed=5)


def test_few_items_give_several_queries_each_but_never_the_same_one():
    queries = cut_queries(Items(TEXTS[:2]), 9)
    assert len(set(queries)) == len(queries) > 2
    assert cut_queries(Items(["ice"]), 5) == ["ice"]


def test_items_without_text_are_passed_over():
    assert cut_queries(Items(["", "  ", "ice melts"]), 3) == ["ice melts"]


def test_no_text_at_all_is_an_error():
    with pytest.raises(InputError, match="No queries could be cut"):
        cut_queries(Items(["", " \n"]), 3)


def test_a_long_first_sentence_is_cut():
    text = " ".join(f"word{n}" for n in range(100))
    assert max(len(query.split()) for query in cut_queries(Items([text]), 6)) == 24


def test_how_many_must_be_a_number():
    with pytest.raises(InputError, match="`n` must be a positive integer"):
        cut_queries(Items(TEXTS), 0)
