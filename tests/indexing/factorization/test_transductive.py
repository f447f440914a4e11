"""Transductive factorization of matrices whose missing entries are known."""

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.factorization import trainer, transductive
from crossknn.indexing.factorization.transductive import LazyAdamW, Transductive
from crossknn.indexing.score_matrix import Pairs, SparseScores

torch = pytest.importorskip("torch")

QUERIES, ITEMS, DIM = 40, 150, 4


def low_rank(
    share: float = 0.5, *, scored_items: int = ITEMS, seed: int = 0
) -> tuple[SparseScores, np.ndarray, np.ndarray]:
    """A share of an exactly low-rank matrix, and encoder vectors that are a little off."""
    rng = np.random.default_rng(seed)
    queries, items = (rng.normal(size=(n, DIM)).astype(np.float32) / 2 for n in (QUERIES, ITEMS))
    seen = rng.random((QUERIES, ITEMS)) < share
    seen[:, scored_items:] = False
    numbers, rows = (array.astype(np.int32) for array in np.nonzero(seen))
    entries = SparseScores(Pairs(numbers, rows, QUERIES, ITEMS), (queries @ items.T)[numbers, rows])
    return entries, *(
        (vectors + 0.3 * rng.normal(size=vectors.shape)).astype(np.float32) for vectors in (queries, items)
    )


@pytest.mark.parametrize(
    "settings",
    [
        Transductive(method="als", init="random", dim=DIM, ridge=0.01, epochs=40, held_out=0.1),
        Transductive(method="adamw", init="random", dim=DIM, learning_rate=0.02, epochs=60, batch=64, held_out=0.1),
        Transductive(method="als", ridge=0.1, held_out=0.1),
        Transductive(method="adamw", learning_rate=0.01, epochs=30, batch=64, held_out=0.1),
    ],
    ids=["als, random", "adamw, random", "als, encoder", "adamw, encoder"],
)
def test_held_out_entries_of_a_low_rank_matrix_are_recovered(settings):
    entries, queries, items = low_rank()
    fit = settings.fit(entries) if settings.init == "random" else settings.fit(entries, queries, items)
    report = fit.report
    assert fit.query_vectors.shape == (QUERIES, DIM)
    assert fit.item_vectors.shape == (ITEMS, DIM)
    assert fit.query_vectors.dtype == fit.item_vectors.dtype == np.float32
    assert report["held_out_r2"] > 0.9
    assert report["train_error"] < report["train_error_before"] / 5
    assert report["held_out_error"] < report["held_out_error_before"] / 5
    assert report["entries"] + report["held_out_entries"] == len(entries)
    assert report["seconds"] > 0


def test_the_report_is_what_the_vectors_do():
    entries, queries, items = low_rank()
    settings = Transductive(method="als", held_out=0.1)
    fit = settings.fit(entries, queries, items)
    held_out = entries.hold_out(0.1, seed=0)[1]
    estimates = (fit.query_vectors[held_out.pairs.queries] * fit.item_vectors[held_out.pairs.rows]).sum(1)
    error = np.mean((estimates - held_out.scores) ** 2)
    assert fit.report["held_out_error"] == pytest.approx(error, rel=1e-5)
    assert fit.report["held_out_r2"] == pytest.approx(1 - error / held_out.scores.var(), rel=1e-4)


def test_an_endless_ridge_returns_the_initial_vectors():
    entries, queries, items = low_rank()
    fit = Transductive(method="als", ridge=1e12, patience=None).fit(entries, queries, items)
    np.testing.assert_allclose(fit.query_vectors, queries, atol=1e-6)
    np.testing.assert_allclose(fit.item_vectors, items, atol=1e-6)


@pytest.mark.parametrize("method", ["adamw", "als"])
def test_unscored_items_keep_their_initial_vector_to_the_bit(method, tmp_path):
    entries, queries, items = low_rank(scored_items=100)
    np.save(tmp_path / "items.npy", items.astype(np.float16))
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    fit = Transductive(method=method, epochs=3, patience=None).fit(entries, queries, mapped)
    np.testing.assert_array_equal(fit.item_vectors[100:], mapped[100:].astype(np.float32))
    assert (fit.item_vectors[:100] != mapped[:100]).any(1).all()


@pytest.mark.parametrize("share", [0.04, 0.5], ids=["fewer entries than dimensions too", "more"])
@pytest.mark.parametrize("numbers", [transductive.SYSTEM_NUMBERS, 40], ids=["in one block", "in many parts"])
def test_a_sweep_is_numpys_least_squares_for_each_vector(share, numbers, monkeypatch):
    monkeypatch.setattr(transductive, "SYSTEM_NUMBERS", numbers)
    entries, queries, items = low_rank(share)
    ridge = 0.3
    fit = Transductive(method="als", ridge=ridge, epochs=1, held_out=0).fit(entries, queries, items)
    pairs, scores = entries.pairs, entries.scores

    def solve(other: np.ndarray, targets: np.ndarray, prior: np.ndarray) -> np.ndarray:
        rows = np.vstack([other, np.sqrt(ridge) * np.eye(DIM)])
        return np.linalg.lstsq(rows, np.concatenate([targets, np.sqrt(ridge) * prior]), rcond=None)[0]

    for row in range(ITEMS):
        own = pairs.rows == row
        expected = solve(queries[pairs.queries[own]], scores[own], items[row])
        np.testing.assert_allclose(fit.item_vectors[row], expected, atol=1e-4)
    for number in range(QUERIES):  # the queries come second: they see the new item vectors
        own = pairs.queries == number
        expected = solve(fit.item_vectors[pairs.rows[own]], scores[own], queries[number])
        np.testing.assert_allclose(fit.query_vectors[number], expected, atol=1e-4)


def run_both(often: float, *, steps: int, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """The same gradients through torch's AdamW, zero where a row has none, and through ours, which gets no zeros."""
    rng = np.random.default_rng(3)
    start = torch.tensor(rng.normal(size=(30, 5)))  # float64, in which a wrong formula cannot pass for rounding
    dense, lazy = start.clone().requires_grad_(), start.clone()
    theirs = torch.optim.AdamW([dense], lr=0.01, weight_decay=decay)
    ours = LazyAdamW(lazy, learning_rate=0.01, weight_decay=decay, steps=steps)
    for step in range(1, steps + 1):
        has = np.ones(30, bool) if step == 1 else rng.random(30) < often
        rows = torch.tensor(np.flatnonzero(has))
        gradient = torch.tensor(rng.normal(size=(len(rows), 5)))
        dense.grad = torch.zeros_like(dense).index_copy_(0, rows, gradient)
        theirs.step()
        ours.write(rows, step, ours.read(rows, step - 1), gradient)
    ours.finish(steps)
    return dense.detach().numpy(), lazy.numpy()


def test_lazy_adamw_is_torchs_where_every_row_has_a_gradient():
    dense, lazy = run_both(1.0, steps=50, decay=0.01)
    np.testing.assert_allclose(lazy, dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("often", "decay"), [(0.5, 0.01), (0.05, 0.0), (0.05, 4.0), (0.002, 0.1)])
def test_lazy_adamw_is_torchs_where_rows_are_rarely_seen(often, decay):
    dense, lazy = run_both(often, steps=1000, decay=decay)
    np.testing.assert_allclose(lazy, dense, rtol=0, atol=1e-7)


def test_a_fit_is_what_torchs_adamw_does():
    entries, queries, items = low_rank(0.1)
    settings = Transductive(epochs=4, batch=16, held_out=0)
    fit = settings.fit(entries, queries, items)
    users, things = (torch.tensor(vectors).requires_grad_() for vectors in (queries, items))
    optimizer = torch.optim.AdamW([users, things], lr=settings.learning_rate, weight_decay=settings.weight_decay)
    rng = np.random.default_rng((settings.seed, 1))
    for _ in range(settings.epochs):
        for chosen in trainer.shuffled_batches(len(entries), settings.batch, rng):
            part = entries.take(chosen)
            estimates = (users[part.pairs.queries] * things[part.pairs.rows]).sum(1)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(estimates, torch.tensor(part.scores)).backward()
            optimizer.step()
    np.testing.assert_allclose(fit.query_vectors, users.detach().numpy(), atol=1e-5)
    scored = np.unique(entries.pairs.rows)
    np.testing.assert_allclose(fit.item_vectors[scored], things.detach().numpy()[scored], atol=1e-5)


@pytest.mark.parametrize("method", ["adamw", "als"])
@pytest.mark.parametrize("init", ["encoder", "random"])
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(method, init):
    entries, *vectors = low_rank()
    dim = DIM if init == "random" else None

    def bytes_of(seed: int) -> bytes:
        settings = Transductive(method=method, init=init, dim=dim, epochs=2, batch=100, seed=seed, patience=None)
        fit = settings.fit(entries, *(vectors if init == "encoder" else []))
        return fit.query_vectors.tobytes() + fit.item_vectors.tobytes()

    torch.manual_seed(1)
    first = bytes_of(5)
    torch.manual_seed(2)
    assert bytes_of(5) == first
    assert bytes_of(6) != first


class Scripted:
    """A learner whose held-out error is the script's."""

    steps = 2

    def __init__(self, *script: float) -> None:
        self.script, self.epoch, self.saved = script, 0, -1

    def run_epoch(self, tick):
        self.epoch += 1
        for _ in range(self.steps):
            tick()

    def estimate(self, pairs):
        return np.full(len(pairs), np.sqrt(self.script[self.epoch]), np.float32)

    def is_finite(self):
        return True

    def checkpoint(self):
        self.saved = self.epoch

    def restore(self):
        self.epoch = self.saved


def run_script(patience: int | None, *script: float) -> tuple[Scripted, trainer.FitReport, list[tuple[str, int, int]]]:
    zeros = SparseScores(Pairs(*(np.arange(9, dtype=np.int32),) * 2, 9, 9), np.zeros(9, np.float32))
    settings = trainer.Training(epochs=len(script) - 1, patience=patience)
    learner, calls = Scripted(*script), []
    report = trainer.train(learner, *settings.split(zeros), settings, lambda *call: calls.append(call))
    return learner, report, calls


def test_early_stopping_keeps_the_best_epoch():
    learner, report, calls = run_script(2, 9, 5, 4, 6, 4.5, 3, 1)
    assert (learner.epoch, report["best_epoch"], report["epochs"], report["stopped_early"]) == (2, 2, 4, True)
    assert report["held_out_errors"] == pytest.approx([9, 5, 4, 6, 4.5], rel=1e-5)
    assert report["held_out_error"] == report["train_error"] == pytest.approx(4)
    assert report["held_out_r2"] is None  # the scores do not vary
    assert calls[:3] == [("factorizing", 1, 12), ("factorizing", 2, 12), ("factorizing", 3, 12)]
    assert calls[-1] == ("factorizing", 12, 12)


def test_a_fit_that_only_makes_things_worse_returns_the_start():
    learner, report, _ = run_script(3, 4, 5, 6, 7)
    assert (learner.epoch, report["best_epoch"], report["stopped_early"]) == (0, 0, False)


def test_without_patience_the_last_epoch_is_kept():
    learner, report, _ = run_script(None, 1, 5, 6)
    assert (learner.epoch, learner.saved, report["best_epoch"], report["epochs"]) == (2, -1, 2, 2)


def test_overfitting_is_undone():
    entries, queries, items = low_rank(0.1)
    noise = np.random.default_rng(0).normal(size=len(entries)).astype(np.float32)
    noisy = SparseScores(entries.pairs, entries.scores + noise)
    fit = Transductive(learning_rate=0.02, epochs=60, batch=64, held_out=0.2).fit(noisy, queries, items)
    errors = fit.report["held_out_errors"]
    assert fit.report["stopped_early"]
    assert fit.report["held_out_error"] == min(errors) < errors[-1]
    again = Transductive(
        learning_rate=0.02, epochs=fit.report["best_epoch"], batch=64, held_out=0.2, patience=None
    )  # fewer epochs end where the longer fit went back to
    np.testing.assert_allclose(again.fit(noisy, queries, items).item_vectors, fit.item_vectors, atol=1e-5)


def test_divergence_raises():
    entries, queries, items = low_rank()
    with pytest.raises(InputError, match=r"diverged in epoch \d+.*`learning_rate`"):
        Transductive(learning_rate=1e30, weight_decay=0, patience=None).fit(entries, queries, items)


def test_a_singular_system_raises():
    entries, queries, items = low_rank()
    with pytest.raises(InputError, match="`ridge` must be larger"):
        Transductive(method="als", ridge=1e-300).fit(entries, np.ones_like(queries), items)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "sgd"}, "`method` must be one of 'adamw', 'als', got 'sgd'"),
        ({"init": "zeros"}, "`init` must be one of 'encoder', 'random', got 'zeros'"),
        ({"epochs": 0}, "`epochs` must be a positive integer, got 0"),
        ({"batch": 2.5}, "`batch` must be a positive integer, got 2.5"),
        ({"patience": 0}, "`patience` must be a positive integer, got 0"),
        ({"learning_rate": 0.0}, "`learning_rate` must be a positive number, got 0.0"),
        ({"weight_decay": -1.0}, "`weight_decay` must be a nonnegative number, got -1.0"),
        ({"learning_rate": 0.5, "weight_decay": 0.2}, "`weight_decay` must be at most 0.05, got 0.5 × 0.2"),
        ({"held_out": 1.0}, "`held_out` must be at least 0 and less than 1, got 1.0"),
        ({"ridge": float("nan")}, "`ridge` must be a positive number, got nan"),
        ({"init": "random"}, "`dim` must be a positive integer, got None"),
        ({"dim": 8}, "`dim` must be None .* got 8"),
        ({"init": "random", "dim": 0}, "`dim` must be a positive integer, got 0"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(InputError, match=message):
        Transductive(**settings)


def test_invalid_vectors_raise():
    entries, queries, items = low_rank()
    broken = items.copy()
    broken[7, 1] = np.nan
    with pytest.raises(InputError, match=r"`query_vectors` must have shape \(40, dim\), got \(39, 4\)"):
        Transductive().fit(entries, queries[1:], items)
    with pytest.raises(InputError, match=r"`item_vectors` must have shape \(150, 4\), got \(150, 3\)"):
        Transductive().fit(entries, queries, items[:, 1:])
    with pytest.raises(InputError, match="`item_vectors` must be finite"):
        Transductive().fit(entries, queries, broken)
    with pytest.raises(InputError, match="`item_vectors` must be floating-point, got int64"):
        Transductive().fit(entries, queries, items.astype(np.int64))
    with pytest.raises(InputError, match="requires `query_vectors` and `item_vectors`"):
        Transductive().fit(entries)
    with pytest.raises(InputError, match="init='random' takes no vectors"):
        Transductive(init="random", dim=3).fit(entries, queries, items)
    with pytest.raises(InputError, match="`entries` must hold at least one score"):
        Transductive().fit(entries.take(slice(0)), queries, items)


def test_presets_are_the_papers_table():
    values = {name: (s["learning_rate"], s["epochs"]) for name, s in Transductive.PRESETS.items()}
    assert values == {
        "paper": (0.001, 10),
        "paper-large": (0.001, 4),
        "paper-scidocs": (0.005, 10),
        "paper-scidocs-large": (0.005, 4),
        "paper-zeshel": (0.001, 20),
    }
    assert Transductive.preset("paper-zeshel", seed=3) == Transductive(epochs=20, seed=3)
    with pytest.raises(InputError, match=r"`preset` must be one of .*got 'big'"):
        Transductive.preset("big")


def test_progress_counts_the_steps():
    entries, queries, items = low_rank()
    calls = []
    Transductive(epochs=2, batch=1000, patience=None).fit(
        entries, queries, items, progress=lambda *call: calls.append(call)
    )
    steps = 2 * -(-round(0.95 * len(entries)) // 1000)
    assert calls == [("factorizing", done, steps) for done in range(1, steps + 1)]


def test_one_entry_is_enough():
    entries, queries, items = low_rank()
    for method in ("adamw", "als"):
        fit = Transductive(method=method).fit(entries.take(slice(1)), queries, items)
        assert fit.report["held_out_r2"] is None
        assert fit.report["held_out_error"] is None
        assert fit.report["train_error"] < fit.report["train_error_before"]
