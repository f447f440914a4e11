"""Inductive factorization where the right vectors are a smooth function of the encoder's."""

import math

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.factorization.inductive import Inductive, InductiveFit, _Nets, make_net, transform
from crossknn.indexing.factorization.trainer import train
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.score_matrix import Pairs, SparseScores

torch = pytest.importorskip("torch")

QUERIES, ITEMS, SCORED, DIM = 60, 1200, 900, 8


def smooth_world(seed: int = 0) -> tuple[SparseScores, np.ndarray, np.ndarray, np.ndarray]:
    """Entries of the first items, the encoder's vectors of all, and all scores.

    The scores are inner products with the items turned and folded. No linear map unfolds them, so the query vectors
    alone cannot make up for the items', and the encoder's estimates are no use.
    """
    rng = np.random.default_rng(seed)
    queries, items = (rng.normal(size=(n, DIM)).astype(np.float32) / DIM**0.5 for n in (QUERIES, ITEMS))
    turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    scores = (queries @ (3 * np.abs(items @ turn) - 0.8).T).astype(np.float32)
    rows = np.repeat(np.arange(SCORED), 8)
    numbers = np.concatenate([rng.choice(QUERIES, 8, replace=False) for _ in range(SCORED)])
    pairs = Pairs(numbers.astype(np.int32), rows.astype(np.int32), QUERIES, ITEMS)
    return SparseScores(pairs, scores[numbers, rows]), queries, items, scores


def r2(estimates: np.ndarray, scores: np.ndarray) -> float:
    return float(1 - np.mean((estimates - scores) ** 2) / scores.var())


@pytest.fixture(scope="module")
def world() -> tuple[SparseScores, np.ndarray, np.ndarray, np.ndarray]:
    return smooth_world()


@pytest.fixture(scope="module")
def fit(world) -> InductiveFit:
    entries, queries, items, _ = world
    return Inductive(learning_rate=0.005, epochs=20, batch=128).fit(entries, queries, items)


def test_nets_generalize_to_unscored_items_and_free_vectors_do_not(world, fit):
    entries, queries, items, scores = world
    free = Transductive(learning_rate=0.005, epochs=20, batch=128).fit(entries, queries, items)
    unseen = scores[:, SCORED:]
    inductive = r2(fit.encode_queries(queries) @ fit.encode_items(items[SCORED:]).T, unseen)
    transductive = r2(free.query_vectors @ free.item_vectors[SCORED:].T, unseen)
    assert inductive > 0.3 > transductive
    assert fit.report["held_out_r2"] > 0.5
    assert fit.report["train_error"] < fit.report["train_error_before"] / 2
    assert fit.report["held_out_error"] < fit.report["held_out_error_before"] / 2


def test_a_net_starts_near_the_identity():
    vectors = np.random.default_rng(1).normal(size=(50, 16)).astype(np.float32)
    net = make_net(torch, 16, seed=0)
    moved = transform(torch, net, torch.tensor(vectors)).numpy() - vectors
    assert float(net["skip"]) == -5
    assert 0 < np.linalg.norm(moved) < 0.02 * np.linalg.norm(vectors)


def test_the_net_is_the_papers_formula(world, fit):
    _, queries, items, _ = world
    state = {name: values.astype(np.float64) for name, values in fit.state().items()}

    def read(side: str, x: np.ndarray) -> np.ndarray:
        w1, b1, w2, b2, skip = (state[f"{side}.{name}"] for name in ("w1", "b1", "w2", "b2", "skip"))
        inner = x @ w1.T + b1
        gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        gate = 1 / (1 + np.exp(-skip))
        return gate * (gelu @ w2.T + b2) + (1 - gate) * x

    np.testing.assert_allclose(fit.encode_queries(queries), read("queries", queries.astype(np.float64)), atol=1e-6)
    np.testing.assert_allclose(fit.encode_items(items), read("items", items.astype(np.float64)), atol=1e-6)
    assert state["items.w1"].shape == (2 * DIM, DIM)
    assert not np.allclose(state["items.w1"], state["queries.w1"])


def test_nets_start_as_torchs_linear_layers_and_leave_its_random_numbers_alone():
    torch.manual_seed(7)
    wide, narrow = torch.nn.Linear(5, 10), torch.nn.Linear(10, 5)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    net = make_net(torch, 5, seed=7)
    assert torch.equal(torch.rand(3), expected)
    for name, values in (("w1", wide.weight), ("b1", wide.bias), ("w2", narrow.weight), ("b2", narrow.bias)):
        assert torch.equal(net[name], values)


def test_loaded_nets_are_the_fitted_ones(world, fit, tmp_path):
    items = world[2]
    np.savez(tmp_path / "nets.npz", **fit.state())
    loaded = InductiveFit(dict(np.load(tmp_path / "nets.npz", allow_pickle=False)))
    assert loaded.dim == fit.dim == DIM
    assert loaded.report is None
    assert all(values.dtype == np.float32 for values in loaded.state().values())
    for name, values in fit.state().items():
        np.testing.assert_array_equal(loaded.state()[name], values)
    np.testing.assert_array_equal(loaded.encode_items(items), fit.encode_items(items))


def test_an_incomplete_state_raises(fit):
    state = fit.state()
    del state["queries.skip"]
    with pytest.raises(InputError, match=r"`state` must hold arrays .*queries.skip"):
        InductiveFit(state)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(world):
    entries, queries, items, _ = world

    def bytes_of(seed: int) -> bytes:
        fit = Inductive(epochs=1, batch=512, seed=seed).fit(entries, queries, items)
        return b"".join(values.tobytes() for values in fit.state().values())

    torch.manual_seed(1)
    first = bytes_of(5)
    torch.manual_seed(2)
    assert bytes_of(5) == first
    assert bytes_of(6) != first


def test_a_memory_map_of_float16_is_read_as_it_is(world, tmp_path):
    entries, queries, items, _ = world
    np.save(tmp_path / "items.npy", items.astype(np.float16))
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    settings = Inductive(epochs=1, batch=512)
    one, other = (settings.fit(entries, queries, v) for v in (mapped, items.astype(np.float16).astype(np.float32)))
    np.testing.assert_array_equal(one.encode_items(mapped), other.encode_items(mapped))
    assert one.encode_items(mapped).dtype == np.float32


class HeldNets(_Nets):
    """Nets that hold all vectors on their device, as they do on a GPU."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._copy_to_device()


def test_vectors_held_on_a_device_give_the_same_nets(world, tmp_path):
    entries, queries, items, _ = world
    np.save(tmp_path / "items.npy", items.astype(np.float16))
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    settings = Inductive(epochs=2, batch=128)
    read = settings.fit(entries, queries, mapped)
    fitted, held_out = settings.split(entries)
    held = HeldNets(torch, (queries, mapped), fitted, settings)
    train(held, fitted, held_out, settings, None)
    for name, values in read.state().items():
        np.testing.assert_allclose(held.state()[name], values, atol=2e-4)


def test_early_stopping_keeps_the_best_epoch(world):
    entries, queries, items, _ = world
    few = entries.take(slice(0, 300))
    noisy = SparseScores(few.pairs, np.random.default_rng(0).normal(size=len(few)).astype(np.float32))
    settings = Inductive(learning_rate=0.02, epochs=60, batch=32, held_out=0.3)
    fit = settings.fit(noisy, queries, items)
    errors = fit.report["held_out_errors"]
    assert fit.report["stopped_early"]
    assert fit.report["held_out_error"] == min(errors) < errors[-1]
    held_out = noisy.hold_out(0.3, seed=0)[1]
    left, right = fit.encode_queries(queries), fit.encode_items(items)
    estimates = (left[held_out.pairs.queries] * right[held_out.pairs.rows]).sum(1)
    assert np.mean((estimates - held_out.scores) ** 2) == pytest.approx(min(errors), rel=1e-4)


def test_divergence_raises(world):
    entries, queries, items, _ = world
    with pytest.raises(InputError, match=r"diverged in epoch \d+.*`learning_rate`"):
        Inductive(learning_rate=1e30, weight_decay=0, patience=None, batch=512).fit(entries, queries, items)


def test_invalid_settings_and_vectors_raise(world, fit):
    entries, queries, items, _ = world
    with pytest.raises(InputError, match="`learning_rate` must be a positive number, got -1"):
        Inductive(learning_rate=-1)
    with pytest.raises(InputError, match=r"`item_vectors` must have shape \(1200, 8\), got \(1199, 8\)"):
        Inductive().fit(entries, queries, items[1:])
    with pytest.raises(InputError, match=r"must have shape \(3, 8\), got \(3, 7\)"):
        fit.encode_items(items[:3, 1:])


def test_no_vectors_become_no_vectors(fit):
    assert fit.encode_queries(np.empty((0, DIM), np.float32)).shape == (0, DIM)


def test_presets_are_the_papers_table():
    values = {name: (s["learning_rate"], s["epochs"]) for name, s in Inductive.PRESETS.items()}
    assert values == {
        "paper": (0.001, 20),
        "paper-large": (0.001, 10),
        "paper-scidocs": (0.005, 20),
        "paper-scidocs-large": (0.005, 10),
    }
    assert Inductive.preset("paper") == Inductive()


def test_progress_counts_the_steps(world):
    entries, queries, items, _ = world
    calls = []
    Inductive(epochs=2, batch=3000, patience=None).fit(
        entries, queries, items, progress=lambda *call: calls.append(call)
    )
    assert calls == [("factorizing", done, 6) for done in range(1, 7)]
