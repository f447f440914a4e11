"""What all tests share: one thread, no hub, and tiny random models of four families, made once per run."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports the hub's client
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")  # before anything imports Haystack

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.scorers import tiny

# The same examples in every run; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("same", max_examples=60, derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("same")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Work this small is slower with more threads, and far slower on a busy machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """As at a terminal: a process that a shell starts in the background ignores the interrupts it gets."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", params=sorted(tiny.FAMILIES))
def family_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of each family in turn."""
    return tiny.save_cross_encoder(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT cross-encoder."""
    return tiny.save_cross_encoder(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT encoder without a head, whose tokenizer knows [M], [/M] and [T]."""
    return tiny.save_encoder(tmp_path_factory.mktemp("encoder"))
