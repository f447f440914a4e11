"""The embedded example: what the package says about its data and its model holds."""

import re
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.example import wordnet as example
from crossknn.scorers.cross_encoder import CrossEncoder

FOLDER = Path(example.__file__).parent
MODEL = FOLDER / "cross_encoder"


@pytest.fixture(scope="module")
def queries():
    return {split: example.queries(split) for split in example.SPLITS}


def test_all_senses_are_there_with_unique_ids_and_texts_to_read():
    items = example.senses()
    assert len(items) == example.SENSES == 117_659
    assert len(set(items.ids)) == len(items)
    assert items.empty_texts == 0
    assert all(re.search(r"\((noun|verb|adjective|adverb)\): \S", text) for text in items.texts)


def test_senses_have_their_words_and_part_of_speech():
    items = example.senses(300)
    assert set(items.field("part_of_speech")) <= {"noun", "verb", "adjective", "adverb"}
    for text, fields in zip(items.texts, items.fields_of(range(300)), strict=True):
        assert text.startswith(f"{', '.join(fields['words'])} ({fields['part_of_speech']}): ")


def test_fewer_senses_are_the_first_of_all():
    few, more = example.senses(50), example.senses(80)
    assert len(few) == 50
    assert list(few.texts) == list(more.texts)[:50]


@pytest.mark.parametrize("n", [0, -1, example.SENSES + 1, 2.5, "all", True])
def test_invalid_numbers_of_senses(n):
    with pytest.raises(InputError, match="`n` must be an integer between 1 and 117659"):
        example.senses(n)


def test_no_sense_has_queries_in_two_splits(queries):
    used = {split: {query.sense for query in found} for split, found in queries.items()}
    assert all(len(found) > 1000 for found in queries.values())
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not used[one] & used[other]
    with pytest.raises(InputError, match="`split` must be one of"):
        example.queries("valid")


def test_every_query_marks_exactly_one_word(queries):
    for query in (query for found in queries.values() for query in found):
        assert re.fullmatch(r"[^\[\]]*\[[^\[\]]+\][^\[\]]*", query.text), query


def test_queries_among_some_items_have_their_senses_there(queries):
    items = example.senses(500)
    found = example.queries("test", among=items)
    assert found
    assert {query.sense for query in found} <= set(items.ids)
    assert found == [query for query in queries["test"] if query.sense in items]


def test_the_model_opens_with_plain_transformers_and_gives_the_same_logits():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(MODEL, dtype=torch.float32).eval()
    items = list(example.senses(40).texts)
    texts = [query.text for query in example.queries("test")[:40]]
    with torch.inference_mode():
        inputs = tokenizer(texts, items, padding=True, truncation=True, return_tensors="pt")
        wanted = model(**inputs).logits[:, 0].numpy()
    found = CrossEncoder("embedded", device="cpu", dtype="float32").score(texts, items)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_data_and_model_are_small():
    files = [file for folder in ("data", "cross_encoder") for file in (FOLDER / folder).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 25_000_000


@pytest.mark.parametrize("name", ["LICENSE-WORDNET", "README.md"])
def test_license_and_origin_come_with_the_package(name):
    assert (FOLDER / name).read_text(encoding="utf-8").strip()
