"""The training loop: the loss by definition, each list once in an epoch, and a checkpoint that changes nothing."""

from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.indexing.teaching.lists import ScoredLists
from crossknn.indexing.teaching.losses import ListLoss
from crossknn.indexing.teaching.settings import Teaching
from crossknn.indexing.teaching.student import ITEM, QUERY, EncoderStudent
from crossknn.indexing.teaching.trainer import CHECK_STEPS, STEP_TOKENS, Trainer, _lists_of_step
from tests.indexing.teaching.world import ITEMS, QUERIES, save_encoder, topic_scores
from tests.scorers import tiny

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

STEPS = 30


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> SentenceEncoder:
    return SentenceEncoder(save_encoder(tmp_path_factory.mktemp("encoder") / "tiny"), device="cpu")


def make_lists(queries: list[str], items: list[str], *, longest: int = 12) -> ScoredLists:
    """Random items of each query, `longest` or fewer."""
    rng = np.random.default_rng(0)
    rows = [rng.choice(len(items), longest - number % 3, replace=False) for number in range(len(queries))]
    numbers = np.repeat(np.arange(len(queries)), [len(part) for part in rows])
    flat = np.concatenate(rows)
    scores = topic_scores([(queries[number], items[row]) for number, row in zip(numbers, flat, strict=True)])
    pairs = Pairs(numbers.astype(np.int32), flat.astype(np.int32), len(queries), len(items))
    return ScoredLists.of(SparseScores(pairs, np.array(scores, np.float32)))


def make_loss(evidence: float = 1.0) -> ListLoss:
    return ListLoss("cpu", deviation=2.0, slope=8.0, temperature=0.5, squared_error=0.5, evidence=evidence)


def make_trainer(
    encoder: SentenceEncoder,
    queries=QUERIES[:20],
    items=ITEMS.texts,
    *,
    checkpoint: Path | None = None,
    total_steps: int = STEPS,
    **changes,
) -> tuple[Trainer, EncoderStudent]:
    student = EncoderStudent(encoder)
    settings = Teaching(batch=4, items_per_step=8, best_items=2, **{"learning_rate": 3e-3, **changes})
    tokens = student.read(QUERY, queries), student.read(ITEM, items)
    loss = make_loss(settings.evidence)
    return Trainer(student, loss, tokens, settings, total_steps=total_steps, checkpoint=checkpoint), student


def test_the_mean_loss_is_that_of_the_encoders_vectors(encoder):
    """Of lists with more tokens than are in memory together, and of different lengths."""
    queries, items = [tiny.words(number, 5) for number in range(60)], [tiny.words(-number, 80) for number in range(40)]
    lists = make_lists(queries, items)
    trainer, _ = make_trainer(encoder, queries, items)
    assert np.isfinite(lists.scores).sum() * tiny.LENGTH > 2 * STEP_TOKENS["cpu"]
    vectors = torch.from_numpy(encoder.encode_items(items))[torch.from_numpy(lists.rows).long()]
    expected = make_loss()(torch.from_numpy(encoder.encode_queries(queries)), vectors, torch.from_numpy(lists.scores))
    assert trainer.mean_loss(lists) == pytest.approx(expected.mean().item(), rel=1e-4)


def test_training_lowers_the_loss_and_counts_what_it_did(encoder):
    lists = make_lists(QUERIES[:20], ITEMS.texts)
    trainer, _ = make_trainer(encoder)
    before, ticks = trainer.mean_loss(lists), []
    trainer.run(lists, STEPS, ticks.append)
    assert trainer.mean_loss(lists) < 0.8 * before
    progress = trainer.progress
    assert (progress.step, progress.pairs) == (STEPS, STEPS * 4 * 8)
    assert ticks == [CHECK_STEPS, STEPS]
    assert len(progress.losses) == 2
    assert progress.losses[1] < progress.losses[0] < before
    assert progress.seconds > 0


def test_training_with_a_checkpoint_in_the_middle_is_training_at_once(encoder, tmp_path):
    lists = make_lists(QUERIES[:20], ITEMS.texts)
    path = tmp_path / "checkpoint.safetensors"
    whole, expected = make_trainer(encoder)
    whole.run(lists, STEPS, lambda _: None)
    first, _ = make_trainer(encoder, checkpoint=path)
    assert not first.load()
    first.run(lists, CHECK_STEPS, lambda _: None)
    first.save()
    second, student = make_trainer(encoder, checkpoint=path)
    assert second.load()
    assert second.progress == first.progress
    second.run(lists, STEPS, lambda _: None)
    for one, other in zip(student.parameters, expected.parameters, strict=True):
        assert torch.equal(one, other)
    assert second.progress.losses == whole.progress.losses
    assert second.progress.seconds > first.progress.seconds
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


LONG = 240  # steps on eight lists, in which the loss of others rises again


def make_long(encoder: SentenceEncoder, checkpoint: Path | None = None, **changes) -> Trainer:
    return make_trainer(encoder, checkpoint=checkpoint, total_steps=LONG, **{"patience": 2, **changes})[0]


@pytest.fixture(scope="module")
def few_lists() -> tuple[ScoredLists, ScoredLists]:
    return make_lists(QUERIES[:20], ITEMS.texts).split(np.arange(8, 20))


def test_training_ends_when_held_out_lists_get_no_better_and_keeps_the_best_weights(encoder, few_lists):
    lists, held_out = few_lists
    whole, stopped = make_long(encoder), make_long(encoder)
    losses = []
    whole.run(lists, LONG, lambda step: losses.append(whole.mean_loss(held_out)))
    stopped.run(lists, LONG, held_out=held_out)
    assert stopped.progress.step == LONG
    made = LONG - stopped.progress.skipped
    assert losses.index(min(losses)) < made // CHECK_STEPS < len(losses)
    best = min(losses[: made // CHECK_STEPS])
    assert stopped.mean_loss(held_out) == pytest.approx(best, rel=1e-5)
    assert best < losses[-1]


def test_without_patience_all_steps_are_made_and_the_best_weights_kept(encoder, few_lists):
    lists, held_out = few_lists
    trainer = make_long(encoder, patience=None)
    losses = []
    trainer.run(lists, LONG, lambda step: losses.append(trainer.mean_loss(held_out)), held_out=held_out)
    assert (trainer.progress.skipped, len(losses)) == (0, LONG // CHECK_STEPS)
    assert trainer.mean_loss(held_out) == pytest.approx(min(losses), rel=1e-5)


def test_a_checkpoint_remembers_the_best_weights(encoder, few_lists, tmp_path):
    lists, held_out = few_lists
    first, second, whole = (make_long(encoder, path) for path in (tmp_path / "one", tmp_path / "one", None))

    class Killed(Exception):
        pass

    def kill(step: int) -> None:
        if step == 2 * CHECK_STEPS:
            first.save()
            raise Killed

    with pytest.raises(Killed):
        first.run(lists, LONG, kill, held_out=held_out)
    assert second.load()
    second.run(lists, LONG, held_out=held_out)
    whole.run(lists, LONG, held_out=held_out)
    assert second.mean_loss(held_out) == whole.mean_loss(held_out)
    assert second.progress.skipped == whole.progress.skipped


def test_the_learning_rate_warms_up_and_falls_to_zero(encoder):
    lists = make_lists(QUERIES[:20], ITEMS.texts)
    trainer, student = make_trainer(encoder)

    def change_of_step(number: int) -> float:
        trainer.run(lists, number, lambda _: None)
        before = [value.detach().clone() for value in student.parameters]
        trainer.run(lists, number + 1, lambda _: None)
        return max(
            float((one.detach() - other).abs().max()) for one, other in zip(student.parameters, before, strict=True)
        )

    assert change_of_step(0) == pytest.approx(3e-3 / 2, rel=0.05)  # the first of two steps of warm-up
    assert change_of_step(STEPS // 2) > 20 * change_of_step(STEPS - 1)


@pytest.mark.parametrize(("count", "size"), [(7, 3), (6, 3), (2, 5)])
def test_an_epoch_is_a_new_order_of_all_lists(count, size):
    steps = [_lists_of_step(count, size, step, seed=0) for step in range(4 * count)]
    assert {len(step) for step in steps} == {size}
    epochs = np.concatenate(steps).reshape(-1, count)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(count), (len(epochs), 1)))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


def test_the_time_limit_ends_the_training(encoder):
    trainer, _ = make_trainer(encoder, time_limit=1e-9)
    assert not trainer.is_out_of_time()
    trainer.run(make_lists(QUERIES[:20], ITEMS.texts), STEPS, lambda _: None)
    assert trainer.is_out_of_time()
    assert trainer.progress.step == CHECK_STEPS  # the clock is looked at that often


@pytest.mark.parametrize("evidence", [0.0, 1.0])
def test_divergence_raises(encoder, evidence):
    trainer, _ = make_trainer(encoder, learning_rate=1e30, evidence=evidence)
    with pytest.raises(InputError, match=r"diverged.*`learning_rate`"):
        trainer.run(make_lists(QUERIES[:20], ITEMS.texts), STEPS, lambda _: None)
