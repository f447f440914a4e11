"""BERT without transformers' classes computes what transformers' own does, and stands in for nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.inference.loading import Pretrained, load_pretrained
from crossknn.scorers.inference.model_folder import CLASSIFIER, ENCODER
from tests.scorers import tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.scorers.inference.torch_bert import BertClassifier, BertModel  # noqa: E402


def load(folder: Path, kind: str = CLASSIFIER, *, as_transformers: bool = False, dtype: str = "float32") -> Pretrained:
    return load_pretrained(folder, kind=kind, device="cpu", dtype=dtype, as_transformers=as_transformers)


def changed(folder: Path, target: Path, **settings: object) -> Path:
    """A copy of a model with other settings in its config."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | settings))
    return target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_classifier_has_the_logits_and_the_fingerprint_of_transformers(tmp_path: Path, dtype: str) -> None:
    folder = tiny.save_cross_encoder(tmp_path, "bert", labels=2)
    own, theirs = (load(folder, as_transformers=one, dtype=dtype) for one in (False, True))
    assert isinstance(own.model, BertClassifier)
    assert not isinstance(theirs.model, BertClassifier)
    assert own.hash_weights() == theirs.hash_weights()
    assert own.score_config() == theirs.score_config()
    assert own.max_input_length() == theirs.max_input_length()
    if dtype == "float32":  # the processor may not run the other
        batch = theirs.tokenizer(*tiny.pairs(count=9, max_words=20), padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            torch.testing.assert_close(own.model(**batch).logits, theirs.model(**batch).logits, atol=1e-5, rtol=1e-5)


def test_an_encoder_has_the_states_of_transformers(encoder_folder: Path) -> None:
    own, theirs = (load(encoder_folder, ENCODER, as_transformers=one) for one in (False, True))
    assert isinstance(own.model, BertModel)
    assert own.hash_weights() == theirs.hash_weights()
    batch = theirs.tokenizer(tiny.SENTENCES[0], return_tensors="pt")
    with torch.inference_mode():
        states, expected = (one.model(**batch).last_hidden_state for one in (own, theirs))
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}, {"chunk_size_feed_forward": 1}],
    ids=lambda settings: next(iter(settings)),
)
def test_other_settings_are_left_to_transformers(
    bert_folder: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    folder = changed(bert_folder, tmp_path / "other", **settings)
    assert not isinstance(load(folder).model, BertClassifier)
    queries, items = tiny.pairs(count=9, max_words=20)
    found = CrossEncoder(folder, device="cpu").score(queries, items)
    assert found == pytest.approx(tiny.plain_logits(folder, queries, items)[:, 0], abs=2e-5, rel=1e-4)


def test_weights_that_do_not_match_are_left_to_transformers(bert_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = changed(bert_folder, tmp_path / "renamed")
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})  # as the first versions named them
    assert not isinstance(load(folder).model, BertClassifier)
    assert CrossEncoder(folder, device="cpu").score(["ice"], ["snow"]) == pytest.approx(
        CrossEncoder(bert_folder, device="cpu").score(["ice"], ["snow"]), abs=1e-5
    )
