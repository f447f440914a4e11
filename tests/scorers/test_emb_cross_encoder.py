"""The score is the dot product of the two vectors that the poolings name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.emb_cross_encoder import POOLING_FILE, EmbCrossEncoder
from crossknn.testing import check_scorer
from tests.scorers import tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

MENTION = {"query_pooling": "mention", "mention_tokens": ("[M]", "[/M]")}
TITLE = {"item_pooling": "title", "title_token": "[T]"}
QUERIES = ["how does the [M] dog [/M] freeze", "[M] ice [/M]", "the water of the [M] quick river [/M] and so on"]
ITEMS = ["dog [T] the lazy dog does not mind", "river [T] water", "a long name of a thing [T]"]


def open_tiny(folder: Path, **options: object) -> EmbCrossEncoder:
    return EmbCrossEncoder(folder, device="cpu", **options)  # type: ignore[arg-type]


def vectors_of_one_pair(folder: Path, query: str, item: str) -> dict[str, torch.Tensor]:
    """Every pooling by hand, from one plain encoding."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer([query], [item], return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(**encoded).last_hidden_state[0]
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
    parts = encoded.sequence_ids(0)
    opening = tokens.index("[SEP]")
    return {
        "cls": states[0],
        "mention": (states[tokens.index("[M]")] + states[tokens.index("[/M]")]) / 2,
        "query mean": states[[part == 0 for part in parts]].mean(0),
        "sep": states[opening],
        "title": states[tokens.index("[T]")],
        "item mean": states[[part == 1 for part in parts]].mean(0),
    }


@pytest.mark.parametrize("query_pooling", ["cls", "mean", "mention"])
@pytest.mark.parametrize("item_pooling", ["sep", "mean", "title"])
def test_every_pooling_against_a_plain_encoding(encoder_folder: Path, query_pooling: str, item_pooling: str) -> None:
    options = {**(MENTION if query_pooling == "mention" else {}), **(TITLE if item_pooling == "title" else {})}
    options |= {"query_pooling": query_pooling, "item_pooling": item_pooling}
    scores = open_tiny(encoder_folder, **options).score(QUERIES, ITEMS)
    for score, query, item in zip(scores, QUERIES, ITEMS, strict=True):
        by_hand = vectors_of_one_pair(encoder_folder, query, item)
        left = by_hand["query mean" if query_pooling == "mean" else query_pooling]
        right = by_hand["item mean" if item_pooling == "mean" else item_pooling]
        assert score == pytest.approx(float(left @ right), abs=1e-3)


def test_contract_and_empty_texts(encoder_folder: Path) -> None:
    check_scorer(open_tiny(encoder_folder), ["ice", "", tiny.words(1, 80)], ["snow", tiny.words(2, 90), ""])
    means = open_tiny(encoder_folder, query_pooling="mean", item_pooling="mean")
    assert means.score(["", "ice"], ["snow", ""]).tolist() == [0, 0]


def test_windows_take_the_best(encoder_folder: Path) -> None:
    words = ["ice", "water", "snow", "the", "dog", "and"] * 20
    windowed = open_tiny(encoder_folder, long_items="max", max_length=17, stride=13)
    room = 17 - 3 - 1
    windows = [" ".join(words[start : start + room]) for start in [*range(0, len(words) - room, 13), len(words) - room]]
    each = open_tiny(encoder_folder).score(["dog"] * len(windows), windows)
    assert windowed.score(["dog"], [" ".join(words)])[0] == pytest.approx(each.max(), abs=1e-3)
    with pytest.raises(InputError, match="`long_items` must be 'cut'"):
        open_tiny(encoder_folder, long_items="max", **TITLE)


def test_saved_and_opened_is_the_same_scorer(encoder_folder: Path, tmp_path: Path) -> None:
    scorer = open_tiny(encoder_folder, **MENTION, **TITLE)
    scorer.save(tmp_path / "saved")
    opened = open_tiny(tmp_path / "saved")
    assert opened.pooling == scorer.pooling
    assert opened.fingerprint == scorer.fingerprint
    np.testing.assert_allclose(opened.score(QUERIES, ITEMS), scorer.score(QUERIES, ITEMS), atol=1e-5)
    assert open_tiny(tmp_path / "saved", query_pooling="mention").pooling == scorer.pooling
    with pytest.raises(InputError, match=r"`query_pooling` must be 'mention', as .* was saved with, got 'cls'"):
        open_tiny(tmp_path / "saved", query_pooling="cls")


def test_poolings_differ_in_fingerprint(encoder_folder: Path) -> None:
    options: list[dict[str, object]] = [{}, {"item_pooling": "mean"}, {"query_pooling": "mean"}, MENTION, TITLE]
    assert len({open_tiny(encoder_folder, **chosen).fingerprint for chosen in options}) == len(options)


def test_a_pair_without_its_special_tokens_is_named(encoder_folder: Path) -> None:
    scorer = open_tiny(encoder_folder, **MENTION, **TITLE)
    with pytest.raises(ScorerError, match=r"query has no '\[M\]'.*query 'no mention here'"):
        scorer.score([*QUERIES, "no mention here"], [*ITEMS, ITEMS[0]])
    with pytest.raises(ScorerError, match=r"item has no '\[T\]'.*item 'no title'"):
        scorer.score([QUERIES[0]], ["no title"])
    with pytest.raises(ScorerError, match="cut off"):
        scorer.score([QUERIES[0]], ["water " * 100 + "[T]"])
    with pytest.raises(ScorerError, match=r"query has no '\[/M\]'"):  # a mark in the item does not count
        scorer.score(["[M] ice"], ["[/M] [T]"])


def test_options_are_checked(encoder_folder: Path, bert_folder: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"query_pooling": "last"}, "`query_pooling` must be one of"),
        ({"item_pooling": "cls"}, "`item_pooling` must be one of"),
        ({"query_pooling": "mention"}, "need each other"),
        ({"title_token": "[T]"}, "need each other"),
        ({"query_pooling": "mention", "mention_tokens": ("[X]", "[/X]")}, "must be one token"),
    ):
        with pytest.raises(InputError, match=message):
            open_tiny(encoder_folder, **options)
    broken = shutil.copytree(encoder_folder, tmp_path / "broken")
    (broken / POOLING_FILE).write_text(json.dumps({"query_pooling": "cls", "colour": "red"}))
    with pytest.raises(InputError, match="does not describe a pooling"):
        open_tiny(broken)
    assert np.isfinite(open_tiny(bert_folder).score(["ice"], ["snow"])).all()  # a cross-encoder's body will do
