"""A precision that would kill the process is rejected before anything is scored."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crossknn.errors import InputError
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.inference import loading

pytest.importorskip("torch")
pytest.importorskip("transformers")

# What a CPU without the instructions of a half precision does to a process; no such CPU is at hand.
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)  # torch.{dtype}"


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    loading.check_half_precision.cache_clear()
    yield
    loading.check_half_precision.cache_clear()


def test_half_precision_that_kills_the_process_is_rejected(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "HALF_PRECISION_PROBE", DIES)
    scorer = CrossEncoder(bert_folder, device="cpu", dtype="bfloat16")
    assert scorer.fingerprint  # where another machine scores, its name is all that is asked for
    with pytest.raises(InputError, match="'bfloat16' would kill this process"):
        scorer.score(["ice"], ["snow"])
    assert scorer.counts.passes == 0


def test_full_precision_needs_no_probe(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "HALF_PRECISION_PROBE", DIES)
    assert len(CrossEncoder(bert_folder, device="cpu").score(["ice"], ["snow"])) == 1


def test_the_probe_runs_once_per_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "HALF_PRECISION_PROBE", "pass  # torch.{dtype}")
    loading.check_half_precision("bfloat16")
    monkeypatch.setattr(loading, "HALF_PRECISION_PROBE", DIES)
    loading.check_half_precision("bfloat16")
    with pytest.raises(InputError, match="float16"):
        loading.check_half_precision("float16")
