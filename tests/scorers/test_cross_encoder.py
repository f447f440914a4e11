"""The scores are those of plain transformers, whatever the family, the lengths and the batches."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossknn.errors import InputError, ModelNotFound, ScorerError
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.inference.varlen import VarlenBatch
from crossknn.testing import check_scorer
from tests.paths import ROOT, SHARED
from tests.scorers import tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SHARED_MODEL = SHARED / "models" / "ce-ir"


def open_tiny(folder: Path, **options: object) -> CrossEncoder:
    return CrossEncoder(folder, device="cpu", **options)  # type: ignore[arg-type]


def test_scores_are_those_of_transformers(family_folder: Path) -> None:
    queries, items = tiny.pairs()
    scores = open_tiny(family_folder, batch_tokens=150).score(queries, items)
    expected = tiny.plain_logits(family_folder, queries, items)[:, 0]
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.ptp(expected) > 0.1  # the pairs differ enough for the comparison to mean something


def test_contract(family_folder: Path) -> None:
    scorer = open_tiny(family_folder)
    check_scorer(scorer, [tiny.words(1, 4), "", tiny.words(2, 70)], [tiny.words(3, 9), tiny.words(4, 90), ""])


def test_a_shorter_max_length_cuts_like_the_tokenizer(family_folder: Path) -> None:
    queries, items = tiny.pairs(seed=5, count=20, max_words=30)
    for length in (9, 10, 33):
        expected = tiny.plain_logits(family_folder, queries, items, max_length=length)[:, 0]
        np.testing.assert_allclose(
            open_tiny(family_folder, max_length=length).score(queries, items), expected, atol=1e-4
        )


def test_raw_logits_whatever_the_config_says(bert_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert_folder, tmp_path / "sigmoid")
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}
    config["sbert_ce_default_activation_function"] = "torch.nn.modules.activation.Sigmoid"
    (folder / "config.json").write_text(json.dumps(config))
    queries, items = tiny.pairs(count=12)
    scores = open_tiny(folder).score(queries, items)
    np.testing.assert_allclose(scores, tiny.plain_logits(bert_folder, queries, items)[:, 0], atol=1e-4)
    assert scores.min() < 0 or scores.max() > 1


def test_half_precision_weights_are_loaded_as_float32(tmp_path: Path) -> None:
    folder = tiny.save_cross_encoder(tmp_path, "bert", dtype="float16")
    queries, items = tiny.pairs(count=12)
    scorer = open_tiny(folder)
    assert scorer.dtype == "float32"
    np.testing.assert_allclose(scorer.score(queries, items), tiny.plain_logits(folder, queries, items)[:, 0], atol=1e-4)


def test_precisions_have_their_own_fingerprints(bert_folder: Path) -> None:
    dtypes = ("float32", "bfloat16", "float16")
    assert len({open_tiny(bert_folder, dtype=dtype).fingerprint for dtype in dtypes}) == len(dtypes)
    assert open_tiny(bert_folder, dtype="float32").fingerprint == open_tiny(bert_folder).fingerprint


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_scores_of_a_cpu(family_folder: Path) -> None:
    queries, items = tiny.pairs()
    expected = open_tiny(family_folder).score(queries, items)
    exact, rounded = CrossEncoder(family_folder, dtype="float32"), CrossEncoder(family_folder)
    assert (exact.device.type, exact.dtype, rounded.dtype) == ("cuda", "float32", "bfloat16")
    np.testing.assert_allclose(exact.score(queries, items), expected, atol=1e-3)
    np.testing.assert_allclose(rounded.score(queries, items), expected, atol=0.5)


def test_the_dtype_must_be_known(bert_folder: Path) -> None:
    with pytest.raises(InputError, match="`dtype` must be"):
        open_tiny(bert_folder, dtype="int4")


def test_several_labels_need_a_choice(tmp_path: Path) -> None:
    folder = tiny.save_cross_encoder(tmp_path, "bert", labels=3)
    queries, items = tiny.pairs(count=10)
    with pytest.raises(InputError, match="set `label`"):
        open_tiny(folder)
    with pytest.raises(InputError, match="`label` must be"):
        open_tiny(folder, label="entailment")
    expected = tiny.plain_logits(folder, queries, items)
    second = open_tiny(folder, label=1)
    np.testing.assert_allclose(second.score(queries, items), expected[:, 1], atol=1e-4)
    np.testing.assert_allclose(open_tiny(folder, label="LABEL_2").score(queries, items), expected[:, 2], atol=1e-4)
    assert second.fingerprint != open_tiny(folder, label=2).fingerprint


def test_truncations_are_counted_and_logged_once(bert_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    scorer = open_tiny(bert_folder, max_query_tokens=3)
    with caplog.at_level(logging.WARNING, "crossknn"):
        scorer.score(["ice", "ice ice ice ice ice"], ["snow", "water " * 200])
        scorer.score(["ice"], ["snow " * 200])
    counts = scorer.counts
    assert (counts.pairs, counts.passes, counts.items_cut, counts.queries_cut) == (3, 3, 2, 1)
    assert len([record for record in caplog.records if "were cut" in record.message]) == 1


def test_query_and_item_limits_apply_before_the_pair_limit(bert_folder: Path) -> None:
    scorer = open_tiny(bert_folder, max_query_tokens=2, max_item_tokens=3)
    np.testing.assert_allclose(
        scorer.score(["ice water snow dog"], ["the dog and the water and the ice"]),
        open_tiny(bert_folder).score(["ice water"], ["the dog and"]),
        atol=1e-5,
    )


def test_windows_take_the_best_part_of_a_long_item(bert_folder: Path) -> None:
    """Every word is one token, so each window is itself a text that can be scored on its own."""
    words = ["water", "ice", "snow", "the", "dog", "and", "is", "of"] * 12
    query, item = "the dog", " ".join(words)
    scorer = open_tiny(bert_folder, long_items="max", stride=7, max_length=25)
    room = 25 - 3 - 2
    starts = [*range(0, len(words) - room, 7), len(words) - room]
    windows = [" ".join(words[start : start + room]) for start in starts]
    each = open_tiny(bert_folder).score([query] * len(windows), windows)
    np.testing.assert_allclose(scorer.score([query, query], ["ice", item])[1], each.max(), atol=1e-5)
    assert scorer.counts.passes == 1 + len(windows)
    assert scorer.counts.items_cut == 0
    assert np.ptp(each) > 0.01


def test_short_items_score_alike_with_and_without_windows(bert_folder: Path) -> None:
    queries, items = tiny.pairs(max_words=8)
    windowed = open_tiny(bert_folder, long_items="max")
    kept = [at for at in range(len(queries)) if len((queries[at] + items[at]).split()) < 8]
    queries, items = [queries[at] for at in kept], [items[at] for at in kept]
    np.testing.assert_allclose(windowed.score(queries, items), open_tiny(bert_folder).score(queries, items), atol=1e-5)


def test_repeated_pairs_are_computed_once(bert_folder: Path) -> None:
    scorer = open_tiny(bert_folder)
    scores = scorer.score(["ice", "dog", "ice"], ["snow", "snow", "snow"])
    assert scores[0] == scores[2] != scores[1]
    assert (scorer.counts.pairs, scorer.counts.passes) == (3, 2)


def test_chunks_do_not_change_scores(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, items = tiny.pairs(seed=9, count=50, max_words=12)
    expected = open_tiny(bert_folder).score(queries, items)
    monkeypatch.setattr("crossknn.scorers.inference.engine.CHUNK_PAIRS", 7)
    np.testing.assert_allclose(open_tiny(bert_folder).score(queries, items), expected, atol=1e-5)


class SmallMemory(CrossEncoder):
    """A cross-encoder on a device whose memory holds a few pairs only."""

    def __init__(self, folder: Path, *, max_pairs: int, **options: Any) -> None:
        super().__init__(folder, device="cpu", **options)
        self.max_pairs = max_pairs
        self.sizes: list[int] = []

    def _read_scores(self, batch: Any) -> Any:
        self.sizes.append(len(batch.lengths if isinstance(batch, VarlenBatch) else batch.ids))
        if self.sizes[-1] > self.max_pairs:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return super()._read_scores(batch)


def test_a_batch_too_large_for_memory_is_halved(family_folder: Path) -> None:
    queries, items = tiny.pairs(count=30, max_words=10)
    expected = open_tiny(family_folder).score(queries, items)
    scorer = SmallMemory(family_folder, max_pairs=4, batch_tokens=10_000)
    np.testing.assert_allclose(scorer.score(queries, items), expected, atol=1e-5)
    assert max(scorer.sizes) > 4
    assert scorer.batch_tokens < 10_000


def test_one_pair_too_large_for_memory_is_named(family_folder: Path) -> None:
    with pytest.raises(ScorerError, match="too little memory for query 'ice' and item 'snow'"):
        SmallMemory(family_folder, max_pairs=0).score(["ice"], ["snow"])


def test_not_a_number_names_the_pair(family_folder: Path, tmp_path: Path) -> None:
    scorer = open_tiny(tiny.save_broken(family_folder, tmp_path / "broken"))
    with pytest.raises(ScorerError, match="nan for query 'ice' and item 'snow'"):
        scorer.score(["ice"], ["snow"])


def test_fingerprint_follows_what_changes_scores(bert_folder: Path, tmp_path: Path) -> None:
    first = open_tiny(bert_folder).fingerprint
    moved = shutil.copytree(bert_folder, tmp_path / "moved")
    assert open_tiny(moved, batch_tokens=99, stored_tokens=5).fingerprint == first
    others = [
        {"max_length": 20},
        {"max_query_tokens": 5},
        {"max_item_tokens": 5},
        {"long_items": "max"},
        {"long_items": "max", "stride": 3},
    ]
    fingerprints = {first, *(open_tiny(bert_folder, **options).fingerprint for options in others)}
    assert len(fingerprints) == 1 + len(others)
    assert tiny.save_cross_encoder(tmp_path / "other", "bert", initializer_range=0.3)
    assert open_tiny(tmp_path / "other").fingerprint not in fingerprints


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 65}, "`max_length` must be between 5 and 64"),
        ({"max_length": 4}, "`max_length` must be between 5 and 64"),
        ({"max_item_tokens": 0}, "`max_item_tokens` must be a positive integer"),
        ({"long_items": "mean"}, "`long_items` must be"),
        ({"stride": 5}, "`stride` needs"),
        ({"batch_tokens": -1}, "`batch_tokens` must be"),
    ],
)
def test_options_are_checked(bert_folder: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_tiny(bert_folder, **options)


def test_only_strings_are_scored(bert_folder: Path) -> None:
    scorer = open_tiny(bert_folder)
    with pytest.raises(InputError, match="`items` must be strings, got NoneType"):
        scorer.score(["ice"], [None])  # type: ignore[list-item]
    with pytest.raises(InputError, match="`queries` must be strings"):
        scorer.score([["ice"]], ["snow"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="same length"):
        scorer.score(["ice"], [])
    assert np.isfinite(scorer.score(["broken \ud800 text"], ["\x00"])).all()


def test_a_tokenizer_that_is_only_a_sentencepiece_model(tmp_path: Path) -> None:
    """As DeBERTa-v3 comes from the hub: no tokenizer.json."""
    folder = tiny.save_cross_encoder(tmp_path, "deberta-v2", vocab_size=200)
    (folder / "tokenizer.json").unlink()
    tiny.save_sentencepiece_model(folder / "spm.model")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DebertaV2Tokenizer"}))
    queries, items = tiny.pairs(count=12)
    expected = tiny.plain_logits(folder, queries, items)[:, 0]
    np.testing.assert_allclose(open_tiny(folder).score(queries, items), expected, atol=1e-4)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    """On a GPU an id without an embedding would end the process."""
    folder = tiny.save_cross_encoder(tmp_path, "bert", vocab_size=20)
    with pytest.raises(InputError, match=r"has 20 token embeddings, but its tokenizer returned token \d+"):
        open_tiny(folder).score([tiny.words(1, 9)], [tiny.words(2, 9)])


def test_folders_that_hold_no_model(bert_folder: Path, encoder_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds config\.json or modules\.json"):
        CrossEncoder(tmp_path)
    with pytest.raises(ModelNotFound, match="no such folder"):
        CrossEncoder(tmp_path / "absent")
    emptied = shutil.copytree(bert_folder, tmp_path / "emptied")
    (emptied / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="safetensors"):
        CrossEncoder(emptied)
    with pytest.raises(InputError, match=r"classifier.* scores would be random"):
        CrossEncoder(encoder_folder)


def test_an_unknown_name_says_how_to_use_a_folder() -> None:
    with pytest.raises(
        ModelNotFound, match=r"neither a folder nor a model that could be downloaded from the hub .* give its path"
    ):
        CrossEncoder("nobody/no-such-model")


def test_importing_and_not_constructing_needs_no_torch() -> None:
    folder = ROOT / "crossknn" / "scorers"
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in folder.rglob("*.py")]
    lines = [f"import {name}" for name in names if not name.rpartition(".")[2].startswith(("triton_", "torch_"))]
    lines.append("import sys; assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)")
    root = str(ROOT)
    environment = {**os.environ, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, env=environment, timeout=60)


@pytest.mark.skipif(not SHARED_MODEL.is_dir(), reason="needs ../shared/models/ce-ir, a real cross-encoder")
def test_agrees_with_sentence_transformers() -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.CrossEncoder(
        str(SHARED_MODEL), device="cpu", model_kwargs={"dtype": torch.float32}, activation_fn=torch.nn.Identity()
    )
    lengths = [(1, 1), (8, 40), (20, 300), (5, 600), (300, 300), (600, 2), (0, 10), (10, 0), (12, 90), (3, 170)]
    queries = [tiny.words(at, count) for at, (count, _) in enumerate(lengths)]
    items = [tiny.words(at + 100, count) for at, (_, count) in enumerate(lengths)]
    expected = theirs.predict(list(zip(queries, items, strict=True)), activation_fn=torch.nn.Identity())
    scorer = open_tiny(SHARED_MODEL)
    np.testing.assert_allclose(scorer.score(queries, items), expected, atol=1e-4)
    assert scorer.counts.padding == 0
