"""A few texts, and simple functions in place of models, for the tests of all integrations."""

import numpy as np

import crossknn as ck

TEXTS = {
    "ice": "rivers freeze from the top when the winter is cold",
    "snow": "snow falls in winter",
    "lake": "the lake is cold water",
    "bread": "bread rises in a warm oven",
    "flour": "flour and water make bread",
    "sun": "the sun is warm in summer",
}
FIELDS = {
    "words": [len(text.split()) for text in TEXTS.values()],
    "season": ["winter", "winter", None, None, None, "summer"],
}
WORDS = sorted({word for text in TEXTS.values() for word in text.split()})
QUERY = "cold winter water"


def count_shared_words(pairs):
    """The number of words that query and item share, plus a bit for the item's length to avoid ties."""
    return [len(set(query.split()) & set(item.split())) + len(item) / 1000 for query, item in pairs]


def count_words(texts):
    return np.array([[text.split().count(word) + 0.01 for word in WORDS] for text in texts], np.float32)


class CountingScorer:
    """A scorer that records the number of pairs of each call."""

    fingerprint = "shared words"

    def __init__(self):
        self.calls = []

    def score(self, queries, items):
        self.calls.append(len(queries))
        return np.array(count_shared_words(zip(queries, items, strict=True)), np.float32)


def make_scorer():
    return CountingScorer()


def make_encoder():
    return ck.function_encoder(count_words, fingerprint="word counts")


def make_searcher(**options):
    items = ck.Items(TEXTS.values(), ids=TEXTS.keys(), fields=FIELDS)
    return ck.Searcher(items, scorer=make_scorer(), encoder=make_encoder(), **options)


def best_ids(query=QUERY, among=TEXTS):
    """The ids of these texts by score, highest first."""
    scores = dict(zip(among, count_shared_words((query, TEXTS[id_]) for id_ in among), strict=True))
    return sorted(among, key=lambda id_: -scores[id_])


def score_of(id_, query=QUERY):
    return count_shared_words([(query, TEXTS[id_])])[0]


def fields_of(id_):
    row = list(TEXTS).index(id_)
    return {name: values[row] for name, values in FIELDS.items()}
