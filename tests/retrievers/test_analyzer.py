"""Text analysis: words, stop words and stems."""

import re

from hypothesis import given
from hypothesis import strategies as st

from crossknn.retrievers.analyzer import Analyzer


@given(st.lists(st.text(alphabet="aBcΣσİé_7 .-\0\n\u0307", max_size=12), max_size=8), st.integers(1, 3))
def test_texts_are_tokenized_independently(texts, size):
    blocks = [texts[start : start + size] for start in range(0, len(texts), size)]
    stems, tokens, lengths = Analyzer(None, ["bb", "é7"]).tokenize(blocks)
    words = [re.findall(r"\b\w\w+\b", text.lower()) for text in texts]
    kept = [[word for word in some if word not in ("bb", "é7")] for some in words]
    assert lengths.tolist() == [len(some) for some in kept]
    assert [stems[token] for token in tokens] == [word for some in kept for word in some]
    assert [Analyzer(None, ["bb", "é7"]).stems(text) for text in texts] == kept


@given(st.lists(st.text(alphabet="aBcσé_7 .-\0\n\u0307\U0001f9ca", max_size=12), max_size=8))
def test_a_texts_own_words_match_where_they_stand(texts):
    analyzer = Analyzer(None, ["bb", "é7"])
    for text, matches in zip(texts, analyzer.matches(" ".join(texts), texts), strict=True):
        assert [text[start:end].lower() for start, end in matches] == analyzer.stems(text)


def test_words_of_one_stem_match():
    matches = Analyzer("english", "english").matches("how do rivers freeze", ["A River FREEZES", "the and of", ""])
    assert matches == [[(2, 7), (8, 15)], [], []]
