"""Tiny sentence-transformers models with random weights, and a world of topics that a teaching can learn."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from tests.scorers import tiny

TOPICS = ("rivers", "dog", "snow", "query", "fox", "budget", "air", "weight")
_known = {word for sentence in tiny.SENTENCES for word in sentence.lower().split() if word.isalpha()}
FILLERS = sorted(_known.difference(TOPICS))


def bert_tokenizer() -> Any:
    """The same in every run, unlike one that is trained: all words of the sentences, and letters for others."""
    from transformers import BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    words = sorted(_known.difference(letters))
    return BertTokenizerFast(
        vocab={piece: number for number, piece in enumerate([*pieces, *words])}, model_max_length=tiny.LENGTH
    )


def save_encoder(
    folder: Path,
    family: str = "bert",
    *,
    pooling: Any = "mean",
    dense: int = 0,
    include_prompt: bool = True,
    **own: Any,
) -> Path:
    """A model of a transformer, a pooling, and if asked for a dense layer of this size, in `folder`."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    from transformers import AutoModel

    tokenizer = bert_tokenizer() if family == "bert" else tiny.FAMILIES[family]()
    base = folder.with_name(f"{folder.name}-base")
    torch.manual_seed(4)
    AutoModel.from_config(tiny._config(family, tokenizer)).save_pretrained(base)
    tokenizer.save_pretrained(base)
    modules = [Transformer(str(base)), Pooling(tiny.SIZE["hidden_size"], pooling, include_prompt=include_prompt)]
    modules += [Dense(tiny.SIZE["hidden_size"], dense)] if dense else []
    SentenceTransformer(modules=modules, device="cpu", **own).save_pretrained(str(folder), create_model_card=False)
    return folder


def topic_texts(seed: int, count: int, fillers: int) -> list[str]:
    """Texts with one word of a topic among others, at a random place."""
    rng, texts = random.Random(seed), []
    for number in range(count):
        words = [TOPICS[number % len(TOPICS)], *rng.sample(FILLERS, fillers)]
        rng.shuffle(words)
        texts.append(" ".join(words))
    return texts


ITEMS = Items(topic_texts(0, 240, 5))
QUERIES = topic_texts(1, 160, 3)


def topic_scores(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The number of words in common; that of a topic counts as five."""
    common = [set(query.split()) & set(item.split()) for query, item in pairs]
    return [len(words) + 4.0 * bool(words.intersection(TOPICS)) for words in common]


class Teacher:
    """A scorer by topics that remembers its pairs."""

    def __init__(self) -> None:
        self.scored: list[tuple[str, str]] = []
        self.scorer = function_scorer(self._score, fingerprint="topics")

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        self.scored += pairs
        return topic_scores(pairs)
