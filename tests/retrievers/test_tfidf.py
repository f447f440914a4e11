"""TF-IDF against scikit-learn."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.tfidf import TfIdf

TEXTS = ["cat cat dog", "dog bird", "fish", "cat bird bird snake", ""]


@pytest.mark.parametrize("settings", [{}, {"ngram_range": (1, 2), "sublinear_tf": True}, {"norm": None}])
@pytest.mark.parametrize("query", ["cat", "bird dog cat", "unicorn"])
def test_tfidf_is_scikit_learn(settings, query):
    vectorizer = TfidfVectorizer(**settings)
    expected = (vectorizer.fit_transform(TEXTS) @ vectorizer.transform([query]).T).toarray()[:, 0]
    scores = TfIdf(**settings).fit(Items(TEXTS)).scores(query)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert scores.dtype == np.float32


def test_tfidf_zero_scores_follow_in_row_order():
    (found,) = TfIdf().fit(Items(TEXTS)).retrieve(["fish"], 4)
    assert found.rows.tolist() == [2, 0, 1, 3]


def test_tfidf_settings_are_checked():
    with pytest.raises(InputError, match=r"`settings` must be those of scikit-learn's TfidfVectorizer: .*'colour'"):
        TfIdf(colour="red")
    with pytest.raises(InputError, match='`input` must be "content"'):
        TfIdf(input="filename")
    with pytest.raises(InputError, match=r"TfIdf could not be fitted with .*norm"):
        TfIdf(norm="l7").fit(Items(TEXTS))
