"""The tokens of texts are those of their words, for every tokenizer that splits at spaces."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from crossknn.scorers.inference import word_tokens
from crossknn.scorers.inference.token_store import fast_tokenize
from crossknn.scorers.inference.word_tokens import WordTokens, tokenize_by_words
from tests.scorers import tiny, tiny_rerankers

TOKENIZERS = {
    "bert": (tiny.bert_tokenizer, True),
    "roberta": (tiny.roberta_tokenizer, True),
    "xlm-roberta": (tiny.xlm_roberta_tokenizer, True),
    "qwen": (tiny_rerankers.qwen_tokenizer, True),
    "deberta": (tiny.deberta_tokenizer, False),
    "gemma": (tiny_rerankers.gemma_tokenizer, False),
}
ALPHABET = "ab  \n\t\r'.,?é\u0301漢🙂3_<|>[]SEP\u00a0\u200b\x1c\x00S\ud800"


def backend(name: str) -> Tokenizer:
    return Tokenizer.from_str(TOKENIZERS[name][0]().backend_tokenizer.to_str())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_are_those_of_the_tokenizer(name):
    made = backend(name)
    whole = fast_tokenize(made)
    by_words = tokenize_by_words(made, whole)
    assert isinstance(by_words, WordTokens) == TOKENIZERS[name][1]
    rng = random.Random(3)
    texts = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 40))) for _ in range(3000)]
    texts += [*tiny.SENTENCES, "a [SEP] b", "x <|im_end|> y", "<mask> z", "word " * 50_000, "x" * 500, ""]
    few = [texts[first : first + 7] for first in range(0, len(texts), 7)]
    for chunk in (texts, texts[::-1], *few, [""], []):
        for text, found, expected in zip(chunk, by_words(chunk), whole(chunk), strict=True):
            assert np.array_equal(found, expected), text[:80]


def test_words_are_tokenized_once():
    calls, whole = [], fast_tokenize(backend("bert"))

    def tokenize(texts):
        calls.extend(texts)
        return whole(texts)

    by_words = WordTokens(tokenize, leading_space=False)
    by_words(["rivers freeze", "freeze rivers rivers"])
    by_words(["rivers"])
    assert sorted(calls) == ["freeze", "rivers"]


def test_punctuation_is_apart_where_the_tokenizer_splits_there():
    calls, made = [], backend("bert")
    whole = fast_tokenize(made)

    def tokenize(texts):
        calls.extend(texts)
        return whole(texts)

    by_words = tokenize_by_words(made, tokenize)
    calls.clear()
    texts = ["lakes, (lakes)", "lakes\nthaw."]
    for found, expected in zip(by_words(texts), whole(texts), strict=True):
        assert np.array_equal(found, expected)
    assert sorted(set(calls) - set(",().")) == ["lakes", "thaw"]


def test_threads_find_the_same_tokens():
    made = backend("bert")
    whole = fast_tokenize(made)
    by_words = tokenize_by_words(made, whole)
    rng = random.Random(5)
    texts = [" ".join(f"w{rng.randrange(40_000)}" for _ in range(150)) for _ in range(600)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(by_words, [texts[first:] + texts[:first] for first in (0, 150, 300, 450)]))
    for first, found in zip((0, 150, 300, 450), results, strict=True):
        for one, other in zip(found, whole(texts[first:] + texts[:first]), strict=True):
            assert np.array_equal(one, other)


def test_many_words_and_a_full_table(monkeypatch):
    """The table grows several times, then starts anew."""
    whole = fast_tokenize(backend("bert"))
    by_words = WordTokens(whole, leading_space=False)
    texts = [" ".join(f"w{number}" for number in range(first, first + 200)) for first in range(0, 12_000, 200)]
    for limit in (100_000, 5_000):
        monkeypatch.setattr(word_tokens, "MAX_WORDS", limit)
        for text in texts:
            assert np.array_equal(by_words([text])[0], whole([text])[0])
        assert len(by_words._words) <= limit + 200


def test_words_that_fail_are_tried_again():
    whole, failing = fast_tokenize(backend("bert")), [True]

    def tokenize(texts):
        if failing.pop() if failing else False:
            raise MemoryError
        return whole(texts)

    by_words = WordTokens(tokenize, leading_space=False)
    with pytest.raises(MemoryError):
        by_words(["rivers freeze"])
    assert np.array_equal(by_words(["rivers freeze"])[0], whole(["rivers freeze"])[0])


@pytest.mark.parametrize("token", ["two words", "stripping"])
def test_added_tokens_that_reach_over_spaces(token):
    made = backend("bert")
    made.add_tokens([AddedToken(token, rstrip=token == "stripping")])
    whole = fast_tokenize(made)
    assert tokenize_by_words(made, whole) is whole
