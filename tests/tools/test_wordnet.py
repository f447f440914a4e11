"""The corpus of the example is read from WordNet's files; these are a few lines in their format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.build_example import describe, make_queries, split_of
from tools.wordnet import WordNet, mark

LICENSE = "  1 This software and database is being provided to you  \n"
DATA = {
    "noun": [
        '00000010 17 n 02 bank 0 riverbank 0 000 | sloping land; beside water; "they sat on the banks of the river"  ',
        '00000020 14 n 01 bank 0 000 | a financial institution; "he cashed a check at the bank"; "the bank, a bank"  ',
        '00000030 28 n 01 May 0 000 | the month after April; "you may go in May"  ',
        '00000040 23 n 02 inch 0 in 0 000 | a unit of length; "he lives in town"  ',
        '00000091 06 n 01 tea_cosy 0 000 | what keeps tea warm  ',
        '00000092 06 n 01 kettle 0 000 | a metal pot for tea  ',
    ],
    "verb": [
        '00000050 38 v 01 bank 0 001 @ 00000010 n 0000 01 + 02 00 | tip aside; "he had to bank the plane"- Orwell  ',
        '00000060 31 v 01 look_up 0 000 01 + 02 00 | seek information; "She looked up the word"  ',
        '00000070 35 v 01 stop 0 000 | come to a halt; "a car [slowly] stopped"; "he stopped at lights"  ',
    ],
    "adj": ['00000080 00 s 01 galore(ip) 0 000 | in great numbers; "daffodils galore grew there"  '],
    "adv": ['00000090 02 r 01 slowly 0 000 | without speed; "he spoke slowly"  '],
}  # fmt: skip
INDEX = {
    "noun": ["bank n 2 0 2 1 00000020 00000010  ", "riverbank n 1 0 1 0 00000010  ", "may n 1 0 1 0 00000030  ",
             "inch n 1 0 1 0 00000040  ", "in n 1 0 1 0 00000040  ",
             "tea_cosy n 1 0 1 0 00000091  ", "kettle n 1 0 1 0 00000092  "],
    "verb": ["bank v 1 1 @ 1 0 00000050  ", "look_up v 1 0 1 0 00000060  ", "look v 1 0 1 0 00000060  ",
             "stop v 1 0 1 0 00000070  "],
    "adj": ["galore a 1 0 1 0 00000080  "],
    "adv": ["slowly r 1 0 1 0 00000090  "],
}  # fmt: skip


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    for pos, lines in DATA.items():
        (tmp_path / f"data.{pos}").write_text(LICENSE + "\n".join(lines) + "\n")
        (tmp_path / f"index.{pos}").write_text(LICENSE + "\n".join(INDEX[pos]) + "\n")
        (tmp_path / f"{pos}.exc").write_text("")
    (tmp_path / "cntlist.rev").write_text("stop%2:38:00:: 1 9\nbank%1:14:00:: 1 5\nbank%1:17:01:: 2 1\n")
    return WordNet.read(tmp_path)


def test_a_sense_has_words_definition_and_examples(wordnet: WordNet) -> None:
    shore = wordnet.synsets["n00000010"]
    assert shore.lemmas == ("bank", "riverbank")
    assert shore.parts == ("sloping land", "beside water")
    assert shore.examples == ("they sat on the banks of the river",)
    assert describe(shore) == "bank, riverbank (noun): sloping land; beside water"


def test_whom_an_example_quotes_belongs_to_neither_example_nor_definition(wordnet: WordNet) -> None:
    tip = wordnet.synsets["v00000050"]
    assert tip.parts == ("tip aside",)
    assert tip.examples == ("he had to bank the plane",)


def test_syntactic_markers_are_no_part_of_a_word(wordnet: WordNet) -> None:
    assert wordnet.synsets["a00000080"].lemmas == ("galore",)


def test_names_number_the_senses_of_the_first_word(wordnet: WordNet) -> None:
    assert wordnet.name(wordnet.synsets["n00000020"]) == "bank.n.1"
    assert wordnet.name(wordnet.synsets["n00000010"]) == "bank.n.2"


def test_senses_of_the_most_used_words_and_familiar_things_come_first(wordnet: WordNet) -> None:
    names = [wordnet.name(synset) for synset in wordnet.by_familiarity()]
    assert names[:5] == ["stop.v.1", "kettle.n.1", "bank.n.1", "tea_cosy.n.1", "bank.n.2"]
    assert len(names) == len(set(names)) == 11


@pytest.mark.parametrize(
    ("key", "sentence", "marked"),
    [
        ("n00000010", "they sat on the banks of the river", "they sat on the [banks] of the river"),
        ("v00000060", "She looked up the word", "She [looked up] the word"),
        ("v00000070", "he stopped at the lights", "he [stopped] at the lights"),
        ("n00000030", "you may go in May", "you may go in [May]"),
        ("n00000020", "Bank on the corner", "[Bank] on the corner"),
        ("n00000020", "the bank, a bank", None),  # ambiguous
        ("n00000020", "the riverside", None),  # no form of the word
        ("n00000020", "he likes the Bank Holiday", None),  # a name
        ("n00000040", "he lives in town", None),  # the preposition, not the inch
        ("v00000070", "the car [slowly] stopped", None),  # has brackets of its own
    ],
)
def test_the_word_is_marked_only_where_it_is_sure(
    wordnet: WordNet, key: str, sentence: str, marked: str | None
) -> None:
    assert mark(wordnet, wordnet.synsets[key], sentence) == marked


def test_queries_are_unique_sentences_of_three_words_or_more(wordnet: WordNet) -> None:
    queries = make_queries(wordnet, wordnet.by_familiarity())
    texts = [query["text"] for query in queries]
    assert "he cashed a check at the [bank]" in texts
    assert len(texts) == len(set(texts)) == 8
    assert all(len(text.split()) >= 3 for text in texts)


def test_a_sentence_that_belongs_to_two_senses_is_dropped(wordnet: WordNet) -> None:
    twice = [wordnet.synsets["n00000020"]] * 2
    assert make_queries(wordnet, twice) == []


def test_the_split_of_a_sense_never_changes() -> None:
    splits = [split_of(f"word.n.{i}") for i in range(2000)]
    assert splits == [split_of(f"word.n.{i}") for i in range(2000)]
    assert {name: round(splits.count(name) / 2000, 2) for name in ("test", "dev")} == pytest.approx(
        {"test": 0.08, "dev": 0.04}, abs=0.015
    )
