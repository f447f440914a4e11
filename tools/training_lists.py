"""What the example's cross-encoder is trained on: queries, each with the senses it should and should not prefer."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass, field

from crossknn import example

ITEM = re.compile(r"^(?P<lemmas>.*?) \((?P<pos>noun|verb|adjective|adverb)\): (?P<definition>.*)$", re.DOTALL)
UNMARKED = 0.15  # share of sentences that lose their brackets, so that plain phrases work too
POOL_RIVALS, POOL_RANDOM = 16, 12
KEPT = 0.75  # share of a definition's words that stay when it becomes a query
MOST_POSITIVES = 4  # senses of a word taken as answers to that word alone


@dataclass
class TrainingQuery:
    text: str
    positives: list[int]  # rows; of a phrase, the row of a sense without that phrase
    gold: set[int]  # rows that are never negatives
    rivals: list[int] = field(default_factory=list)  # other senses of the same words
    neighbours: list[int] = field(default_factory=list)  # the dual encoder's nearest senses
    taught: dict[int, float] = field(default_factory=dict)  # the teacher's scores, answers first


@dataclass
class Corpus:
    """The senses, then copies of some without one part of their definition, for phrases to be found by the rest."""

    texts: list[str]
    senses: int
    ids: dict[str, int]
    by_lemma: dict[str, list[int]]


def read_corpus() -> Corpus:
    items = example.senses()
    texts = list(items.texts)
    by_lemma = defaultdict(list)
    for row, text in enumerate(texts):
        for lemma in lemmas_of(text):
            by_lemma[lemma.lower()].append(row)
    return Corpus(texts, len(texts), {id_: row for row, id_ in enumerate(items.ids)}, dict(by_lemma))


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


def phrases(corpus: Corpus, held_out: set[int]) -> list[TrainingQuery]:
    """The later parts of definitions, each to be found by the sense without that part."""
    found = []
    for row in range(corpus.senses):
        match = ITEM.match(corpus.texts[row])
        parts = match["definition"].split("; ")  # type: ignore[index]
        if row in held_out or len(parts) < 2:
            continue
        asked = parts[-1]
        if len(asked.split()) < 3:
            continue
        copy = f"{match['lemmas']} ({match['pos']}): {'; '.join(parts[:-1])}"  # type: ignore[index]
        corpus.texts.append(copy)
        rivals = senses_of(corpus, lemmas_of(corpus.texts[row]))
        found.append(TrainingQuery(asked, [len(corpus.texts) - 1], {row}, sorted(rivals - {row})))
    return found


def definitions(corpus: Corpus, count: int, held_out: set[int], rng: random.Random) -> list[TrainingQuery]:
    """Definitions with words left out, as people describe things; half of them to be found by the words alone."""
    rows = [row for row in range(corpus.senses) if row not in held_out]
    found = []
    for row in rng.sample(rows, count):
        match = ITEM.match(corpus.texts[row])
        kept = [word for word in match["definition"].split("; ")[0].split() if rng.random() < KEPT]  # type: ignore[index]
        if len(kept) < 3:
            continue
        answer = row
        if rng.random() < 0.5:
            corpus.texts.append(f"{match['lemmas']} ({match['pos']})")  # type: ignore[index]
            answer = len(corpus.texts) - 1
        rivals = senses_of(corpus, lemmas_of(corpus.texts[row]))
        found.append(TrainingQuery(" ".join(kept), [answer], {row}, sorted(rivals - {row})))
    return found


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
    rivals = rng.sample(query.rivals, min(len(query.rivals), size * 3 // 8))
    near = rng.sample(query.neighbours, min(len(query.neighbours), size))
    at_random = size // 8
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
    others += [rng.randrange(senses) for _ in range(POOL_RANDOM)]
    return list(dict.fromkeys([*query.positives, *(row for row in others if row not in query.gold)]))


def draw_taught(query: TrainingQuery, size: int, rng: random.Random) -> tuple[list[int], int]:
    """As `draw_list`, from the rows that the teacher scored."""
    answers = len(query.positives)
    others = list(query.taught)[answers:]
    return query.positives + rng.sample(others, size - answers), answers
