"""Reader of WordNet's database files: senses, their familiarity, and example sentences with the word marked.

The format is described by WordNet's manual page wndb(5WN). Debian's package `wordnet-base` puts the files into
/usr/share/wordnet.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

FILES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
PART_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
THINGS = {"06", "08", "12", "13"}  # lexicographers' files: artifacts, body, feelings, food
ENDINGS = {
    "n": (("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
          ("men", "man"), ("ies", "y")),
    "v": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e"), ("ier", "y"), ("iest", "y")),
    "r": (),
}  # fmt: skip
FUNCTION_WORDS = set(
    """a an and any as at be but by can did do for had has have he her him his how i if in is it its me my no nor not of
    off on one or our out she so some than that the their them then there they this to too up us was we were what
    when where which who will with you your""".split()  # noqa: SIM905
)
WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
QUOTED = re.compile(r'"([^"]*)"(?:\s*-+\s*[^;"]*)?')  # an example, and whom it quotes


@dataclass(frozen=True)
class Synset:
    """One sense: the words that share it, what it means, and sentences that use it."""

    key: str  # part of speech and offset, a unique key
    pos: str  # n, v, a or r
    lemmas: tuple[str, ...]
    parts: tuple[str, ...]  # the definition, cut at its semicolons
    examples: tuple[str, ...]
    is_thing: bool  # an artifact, body part, feeling or food, by the lexicographers' files


@dataclass(frozen=True)
class WordNet:
    synsets: dict[str, Synset]
    senses: dict[tuple[str, str], list[str]]  # (lower-case lemma, pos) → keys, most used sense first
    counts: Counter[str]  # how often each lemma was seen in the texts that WordNet's makers tagged
    exceptions: dict[tuple[str, str], set[str]]  # (irregular form, pos) → lemmas

    @classmethod
    def read(cls, folder: Path) -> WordNet:
        synsets = {synset.key: synset for file in FILES for synset in _read_synsets(folder / f"data.{file}")}
        senses = {key: keys for file in FILES for key, keys in _read_senses(folder / f"index.{file}")}
        return cls(synsets, senses, _read_counts(folder / "cntlist.rev"), _read_exceptions(folder))

    def name(self, synset: Synset) -> str:
        """`bank.n.1`: the first word, its part of speech, and which of its senses this is."""
        lemma = synset.lemmas[0].replace(" ", "_").lower()
        return f"{lemma}.{synset.pos}.{self.senses[lemma, synset.pos].index(synset.key) + 1}"

    def by_familiarity(self) -> list[Synset]:
        """All senses, the most familiar first: frequent words and familiar things alternate.

        The texts behind the frequencies hardly mention kitchens, tools or clothes, which people look up.
        """
        used = self._by_use()
        things = sorted((synset for synset in used if synset.is_thing), key=self._familiarity(), reverse=True)
        in_turn = chain.from_iterable(zip_longest(used, things))
        return list({synset.key: synset for synset in in_turn if synset is not None}.values())

    def _by_use(self) -> list[Synset]:
        """All senses grouped by word, the most frequent word first."""
        words = {lemma for lemma, _ in self.senses}
        ordered: dict[str, None] = {}
        for lemma in sorted(words, key=lambda word: (-self.counts[word], word)):
            for pos in "nvar":
                ordered.update(dict.fromkeys(self.senses.get((lemma, pos), [])))
        return [self.synsets[key] for key in ordered]

    def _familiarity(self) -> Callable[[Synset], float]:
        """Familiarity of a sense's best-known word: its frequency in texts, definitions and examples.

        A compound is as familiar as its rarest part, halved.
        """
        texts = (text for synset in self.synsets.values() for text in (*synset.parts, *synset.examples))
        seen = Counter(word.lower() for text in texts for word in WORD.findall(text))

        def of_word(lemma: str) -> float:
            parts = [part for part in re.split(r"[ \-]", lemma.lower()) if part]
            rarest = min((seen[part] + seen[part + "s"] for part in parts), default=0)
            counted = self.counts[lemma.lower().replace(" ", "_")]
            return counted + rarest if len(parts) == 1 else max(counted, rarest / 2)

        return lambda synset: max(map(of_word, synset.lemmas))

    def lemmas_of(self, word: str, pos: str) -> set[str]:
        """The dictionary forms that a word in a text may be a form of."""
        word = word.lower()
        found = {word} | self.exceptions.get((word, pos), set())
        stems = {word[: -len(ending)] + start for ending, start in ENDINGS[pos] if word.endswith(ending)}
        doubled = {stem[:-1] for stem in stems if len(stem) > 2 and stem[-1] == stem[-2]}  # "stopped" → "stop"
        return found | {stem for stem in stems | doubled if (stem, pos) in self.senses}


def mark(wordnet: WordNet, synset: Synset, sentence: str) -> str | None:
    """The sentence with the synset's word in brackets; None if the word is ambiguous or missing."""
    words = [(match.group(), match.start(), match.end()) for match in WORD.finditer(sentence)]
    spans = {
        (words[at][1], words[at + length - 1][2])
        for lemma in synset.lemmas
        for length in [len(lemma.split(" "))]
        for at in range(len(words) - length + 1)
        if _is_form(wordnet, [word for word, _, _ in words[at : at + length]], lemma, synset.pos, first=at == 0)
    }
    longest = [span for span in spans if not any(_inside(span, other) for other in spans)]
    if len(longest) != 1 or "[" in sentence or "]" in sentence:
        return None
    start, end = longest[0]
    return f"{sentence[:start]}[{sentence[start:end]}]{sentence[end:]}"


def _is_form(wordnet: WordNet, words: list[str], lemma: str, pos: str, *, first: bool) -> bool:
    """Whether these words of a sentence are the lemma or an inflection of it."""
    text = " ".join(words)
    if pos in "na" and text.lower() in FUNCTION_WORDS:  # "in" is hardly ever the inch
        return False
    if lemma != lemma.lower():  # names keep their capitals: May is not may
        return text in (lemma, lemma + "s", lemma + "es")
    if not first and words[0] != words[0].lower():
        return False
    wanted = lemma.split(" ")
    at = 0 if pos == "v" else len(wanted) - 1  # which word of a phrase changes its form
    others = [(word.lower(), want) for i, (word, want) in enumerate(zip(words, wanted, strict=True)) if i != at]
    return all(word == want for word, want in others) and wanted[at] in wordnet.lemmas_of(words[at], pos)


def _inside(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span != other and other[0] <= span[0] and span[1] <= other[1]


def _read_synsets(path: Path) -> Iterator[Synset]:
    for line in _lines(path):
        facts, gloss = line.split("|", 1)
        fields = facts.split()
        pos = "a" if fields[2] == "s" else fields[2]
        lemmas = tuple(
            re.sub(r"\((?:a|p|ip)\)$", "", word).replace("_", " ")
            for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        )
        parts = (" ".join(part.split()).strip(" :,-") for part in QUOTED.sub("", gloss).split(";"))
        parts = tuple(part for part in parts if WORD.search(part) and '"' not in part)  # a lone quote: half an example
        parts = parts or (gloss.replace('"', "").strip(),)
        examples = tuple(" ".join(example.split()) for example in QUOTED.findall(gloss))
        yield Synset(pos + fields[0], pos, lemmas, parts, examples, fields[1] in THINGS)


def _read_senses(path: Path) -> Iterator[tuple[tuple[str, str], list[str]]]:
    for line in _lines(path):
        fields = line.split()
        lemma, pos, count = fields[0], fields[1], int(fields[2])
        yield (lemma, pos), [pos + offset for offset in fields[-count:]]


def _read_counts(path: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in path.read_text(encoding="ascii").splitlines():
        key, _, count = line.split()
        counts[key.split("%")[0]] += int(count)
    return counts


def _read_exceptions(folder: Path) -> dict[tuple[str, str], set[str]]:
    exceptions = defaultdict(set)
    for file, pos in FILES.items():
        for line in (folder / f"{file}.exc").read_text(encoding="ascii").splitlines():
            form, *lemmas = line.split()
            exceptions[form, pos].update(lemmas)
    return dict(exceptions)


def _lines(path: Path) -> Iterator[str]:
    """The data lines, without the license at the head of the file, which is indented."""
    with path.open(encoding="ascii") as file:
        for line in file:
            if not line.startswith("  "):
                yield line
