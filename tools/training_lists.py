"""Training lists of the example's cross-encoder: queries with positive and negative senses."""

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
POOL_RIVALS, POOL_RANDOM, POOL_RANDOM_DESCRIBED = 16, 12, 48  # senses per list that a teacher scores
KEPT_SHARE = 0.4, 0.9  # range of the share of a definition's words that a query keeps
MAX_POSITIVES = 4  # senses of a word that are positives of the word alone


class Form(IntEnum):
    """The part of each sense's text in a query's list: the same for all, so that only meaning separates them."""

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
    described: bool = False  # a phrase: other senses may be as relevant as the positive
    neighbors: list[int] = field(default_factory=list)  # the dual encoder's nearest senses
    teacher_scores: dict[int, float] = field(default_factory=dict)  # by row, positives first


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
    """Senses without any train query: those of held-out sentences, and every tenth."""
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
    """Senses of the word in brackets, or of all lemmas if it resembles none of them."""
    word = marked[marked.index("[") + 1 : marked.index("]")].lower()
    like = [lemma for lemma in lemmas if lemma[:3].lower() == word[:3]] or lemmas
    return sorted(senses_of(corpus, like))


def senses_of(corpus: Corpus, lemmas: list[str]) -> set[int]:
    """Rows of all senses of these words."""
    return {row for lemma in lemmas for row in corpus.by_lemma[lemma.lower()]}


def phrases(corpus: Corpus, rows: Iterable[int]) -> list[TrainingQuery]:
    """Queries from the last part of each definition; the lists show the earlier parts."""
    found = []
    for row in rows:
        *earlier, asked = parts_of(corpus.texts[row])
        if earlier and len(asked.split()) >= 3:
            found.append(TrainingQuery(asked, [row], {row}, other_senses(corpus, row), Form.EARLIER, True))
    return found


def definitions(corpus: Corpus, rows: Iterable[int], rng: random.Random) -> list[TrainingQuery]:
    """Queries from definitions with words dropped; half of the lists show the lemmas only."""
    found = []
    for row in rows:
        share = rng.uniform(*KEPT_SHARE)
        kept = [word for word in parts_of(corpus.texts[row])[0].split() if rng.random() < share]
        if len(kept) >= 3:
            text, rivals = " ".join(kept), other_senses(corpus, row)
            if rng.random() < 0.5:
                found.append(TrainingQuery(text, [row], {row}, rivals, described=True))
            else:  # rivals have the same lemmas
                found.append(TrainingQuery(text, [row], {row, *rivals}, form=Form.WORDS, described=True))
    return found


def other_senses(corpus: Corpus, row: int) -> list[int]:
    return sorted(senses_of(corpus, lemmas_of(corpus.texts[row])) - {row})


def words(corpus: Corpus, count: int, held_out: set[int], rng: random.Random) -> list[TrainingQuery]:
    """Single-word queries: all senses of the word are positives."""
    lemmas = sorted(lemma for lemma, rows in corpus.by_lemma.items() if not held_out & set(rows))
    return [
        TrainingQuery(lemma, rng.sample(rows, min(MAX_POSITIVES, len(rows))), set(rows))
        for lemma in rng.sample(lemmas, count)
        for rows in [corpus.by_lemma[lemma]]
    ]


def draw_list(query: TrainingQuery, senses: int, size: int, rng: random.Random) -> tuple[list[int], int]:
    """Rows of a list and its number of positives: positives first, then rivals, neighbors and random senses."""
    chosen = list(query.positives)
    taken = set(chosen) | query.gold
    rivals = rng.sample(query.rivals, min(len(query.rivals), size // 8 if query.described else size * 3 // 8))
    near = rng.sample(query.neighbors, min(len(query.neighbors), size))
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
    """Rows that a teacher scores for distillation: positives first, then rivals, neighbors and random senses."""
    others = rng.sample(query.rivals, min(len(query.rivals), POOL_RIVALS)) + query.neighbors
    others += [rng.randrange(senses) for _ in range(POOL_RANDOM_DESCRIBED if query.described else POOL_RANDOM)]
    return list(dict.fromkeys([*query.positives, *(row for row in others if row not in query.gold)]))


def draw_teacher_list(query: TrainingQuery, size: int, rng: random.Random) -> tuple[list[int], int]:
    """As `draw_list`, from the rows that the teacher has scored."""
    answers = len(query.positives)
    others = list(query.teacher_scores)[answers:]
    return query.positives + rng.sample(others, size - answers), answers
