"""What the example's cross-encoder is trained on: queries, each with the senses it should and should not prefer."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from crossknn.example import wordnet as example

ITEM = re.compile(r"^(?P<lemmas>.*?) \((?P<pos>noun|verb|adjective|adverb)\): (?P<definition>.*)$", re.DOTALL)
UNMARKED = 0.15  # share of sentences that lose their brackets, so that plain phrases work too
POOL_RIVALS, POOL_RANDOM, POOL_DESCRIBED = 16, 12, 48  # rows at random, and for a phrase
KEPT = 0.4, 0.9  # least and greatest share of a definition's words that stay when it becomes a query
MOST_POSITIVES = 4  # senses of a word taken as answers to that word alone


class Form(IntEnum):
    """What a query's list shows of each sense: of all the same, so that only meaning tells the answer from others."""

    WHOLE = 0
    EARLIER = 1  # the definition without its last part
    WORDS = 2  # no definition


@dataclass
class TrainingQuery:
    text: str
    positives: list[int]  # rows
    gold: set[int]  # rows that are never negatives
    rivals: list[int] = field(default_factory=list)  # other senses of the same words
    form: Form = Form.WHOLE
    described: bool = False  # by a phrase: other senses may be as right as the answer
    neighbours: list[int] = field(default_factory=list)  # the dual encoder's nearest senses
    taught: dict[int, float] = field(default_factory=dict)  # the teacher's scores, answers first


@dataclass
class Corpus:
    texts: list[str]  # all senses in the first form, then in the second, then in the third
    senses: int
    ids: dict[str, int]
    by_lemma: dict[str, list[int]]


def read_corpus() -> Corpus:
    items = example.senses()
    by_lemma = defaultdict(list)
    for row, text in enumerate(items.texts):
        for lemma in lemmas_of(text):
            by_lemma[lemma.lower()].append(row)
    texts = [in_form(text, form) for form in Form for text in items.texts]
    return Corpus(texts, len(items), {id_: row for row, id_ in enumerate(items.ids)}, dict(by_lemma))


def rows_held_out(corpus: Corpus) -> set[int]:
    """Senses that no phrase, definition or word is drawn from: those of held-out sentences, and every tenth."""
    tested = {corpus.ids[query.sense] for split in ("test", "dev") for query in example.queries(split)}
    return tested | set(range(0, corpus.senses, 10))


def in_form(text: str, form: Form) -> str:
    if form == Form.EARLIER:
        return text if len(parts_of(text)) == 1 else text.rpartition("; ")[0]
    return text[: ITEM.match(text).start("definition") - 2] if form == Form.WORDS else text  # type: ignore[union-attr]


def parts_of(text: str) -> list[str]:
    return ITEM.match(text)["definition"].split("; ")  # type: ignore[index]


def lemmas_of(text: str) -> list[str]:
    return ITEM.match(text)["lemmas"].split(", ")  # type: ignore[index]


def sentences(corpus: Corpus, split: str, rng: random.Random) -> list[TrainingQuery]:
    """Example sentences; some of those for training lose their brackets."""
    found = []
    for query in example.queries(split):
        row = corpus.ids[query.sense]
        plain = split == "train" and rng.random() < UNMARKED
        text = query.text.replace("[", "").replace("]", "") if plain else query.text
        rivals = rivals_of(corpus, lemmas_of(corpus.texts[row]), marked=query.text)
        found.append(TrainingQuery(text, [row], {row}, [rival for rival in rivals if rival != row]))
    return found


def rivals_of(corpus: Corpus, lemmas: list[str], *, marked: str) -> list[int]:
    """Senses of the word in brackets, or of all these words where its form is too far from them."""
    word = marked[marked.index("[") + 1 : marked.index("]")].lower()
    like = [lemma for lemma in lemmas if lemma[:3].lower() == word[:3]] or lemmas
    return sorted(senses_of(corpus, like))


def senses_of(corpus: Corpus, lemmas: list[str]) -> set[int]:
    """Rows of all senses of these words."""
    return {row for lemma in lemmas for row in corpus.by_lemma[lemma.lower()]}


def phrases(corpus: Corpus, rows: Iterable[int]) -> list[TrainingQuery]:
    """The last parts of these senses' definitions, each to be found by the earlier ones."""
    found = []
    for row in rows:
        *earlier, asked = parts_of(corpus.texts[row])
        if earlier and len(asked.split()) >= 3:
            found.append(TrainingQuery(asked, [row], {row}, other_senses(corpus, row), Form.EARLIER, True))
    return found


def definitions(corpus: Corpus, rows: Iterable[int], rng: random.Random) -> list[TrainingQuery]:
    """Definitions with words left out, as people describe things; half of them to be found by the words alone."""
    found = []
    for row in rows:
        share = rng.uniform(*KEPT)
        kept = [word for word in parts_of(corpus.texts[row])[0].split() if rng.random() < share]
        if len(kept) >= 3:
            text, rivals = " ".join(kept), other_senses(corpus, row)
            if rng.random() < 0.5:
                found.append(TrainingQuery(text, [row], {row}, rivals, described=True))
            else:  # senses of the same words look the same
                found.append(TrainingQuery(text, [row], {row, *rivals}, form=Form.WORDS, described=True))
    return found


def other_senses(corpus: Corpus, row: int) -> list[int]:
    return sorted(senses_of(corpus, lemmas_of(corpus.texts[row])) - {row})


def words(corpus: Corpus, count: int, held_out: set[int], rng: random.Random) -> list[TrainingQuery]:
    """Single words: all senses of the word are answers."""
    lemmas = sorted(lemma for lemma, rows in corpus.by_lemma.items() if not held_out & set(rows))
    return [
        TrainingQuery(lemma, rng.sample(rows, min(MOST_POSITIVES, len(rows))), set(rows))
        for lemma in rng.sample(lemmas, count)
        for rows in [corpus.by_lemma[lemma]]
    ]


def draw_list(query: TrainingQuery, senses: int, size: int, rng: random.Random) -> tuple[list[int], int]:
    """(rows, how many of the first are answers): answers, rivals, neighbours, and a few senses at random."""
    chosen = list(query.positives)
    taken = set(chosen) | query.gold
    rivals = rng.sample(query.rivals, min(len(query.rivals), size // 8 if query.described else size * 3 // 8))
    near = rng.sample(query.neighbours, min(len(query.neighbours), size))
    at_random = size // 2 if query.described else size // 8
    for row in [*rivals, *near]:
        if row not in taken and len(chosen) < size - at_random:
            chosen.append(row)
            taken.add(row)
    while len(chosen) < size:
        row = rng.randrange(senses)
        if row not in taken:
            chosen.append(row)
            taken.add(row)
    return chosen, len(query.positives)


def draw_pool(query: TrainingQuery, senses: int, rng: random.Random) -> list[int]:
    """What a teacher scores for its pupils: answers first, then rivals, neighbours, and senses at random."""
    others = rng.sample(query.rivals, min(len(query.rivals), POOL_RIVALS)) + query.neighbours
    others += [rng.randrange(senses) for _ in range(POOL_DESCRIBED if query.described else POOL_RANDOM)]
    return list(dict.fromkeys([*query.positives, *(row for row in others if row not in query.gold)]))


def draw_taught(query: TrainingQuery, size: int, rng: random.Random) -> tuple[list[int], int]:
    """As `draw_list`, from the rows that the teacher scored."""
    answers = len(query.positives)
    others = list(query.taught)[answers:]
    return query.positives + rng.sample(others, size - answers), answers
