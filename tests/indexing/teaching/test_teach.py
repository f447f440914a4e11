"""Teaching from end to end: it helps, it says so, the same seed gives the same bits, and an interrupted one resumes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.indexing.teaching.settings import POOL_DEPTH, Teaching
from crossknn.indexing.teaching.teach import POOL_BEST, Taught, TeachReport, teach
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.storage.json_values import read_as
from tests.indexing.teaching.world import ITEMS, QUERIES, Teacher, save_encoder, topic_scores

pytest.importorskip("sentence_transformers")

SETTINGS = Teaching(
    lists=160, items_per_list=24, rounds=2, epochs=4, batch=8, items_per_step=16, best_items=4, learning_rate=3e-3
)
STEPS, FIRST_ROUND = 76, 38  # 4 epochs of the 152 lists that are not held out, 8 in a step
CHUNK = 1_000  # pairs per call
LONGER = replace(SETTINGS, epochs=10)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> SentenceEncoder:
    return SentenceEncoder(save_encoder(tmp_path_factory.mktemp("encoder") / "tiny"), device="cpu")


def run(encoder: SentenceEncoder, folder: Path, *, teacher: Teacher | None = None, **options) -> Taught:
    scorer = (teacher or Teacher()).scorer
    return teach(
        ITEMS, folder, **{"scorer": scorer, "encoder": encoder, "queries": QUERIES, "settings": SETTINGS, **options}
    )


@pytest.fixture(scope="module")
def taught(encoder, tmp_path_factory) -> Taught:
    return run(encoder, tmp_path_factory.mktemp("models") / "taught", settings=LONGER)


class Run(NamedTuple):
    """A teaching, and what was seen of it."""

    made: Taught
    teacher: Teacher
    work_dir: Path
    reported: list[tuple[str, int, int]]
    calls: list[int]


@pytest.fixture(scope="module")
def uninterrupted(encoder, tmp_path_factory) -> Run:
    folder, teacher, reported, calls = tmp_path_factory.mktemp("uninterrupted"), Teacher(), [], []
    given = {"teacher": teacher, "work_dir": folder / "work", "chunk": CHUNK, "on_calls": calls.append}
    made = run(encoder, folder / "model", progress=lambda *call: reported.append(call), **given)
    return Run(made, teacher, folder / "work", reported, calls)


def weights_of(made: Taught) -> bytes:
    assert made.report.helped
    return (made.encoder.folder / "model.safetensors").read_bytes()


def facts(report: TeachReport) -> dict[str, object]:
    """All but the time."""
    return {name: value for name, value in report.as_dict().items() if not name.endswith("seconds")}


# What it brings


def test_teaching_raises_recall_on_queries_held_out(encoder, taught):
    report = taught.report
    assert report.helped
    assert report.recall_before < 0.6 < 0.75 < report.recall
    assert (report.lists, report.held_out_lists, report.pseudo_queries) == (152, 8, 0)
    assert report.steps == 190
    assert report.pairs == 190 * 8 * 16
    assert "before" in str(report)
    assert read_as(TeachReport, json.loads(json.dumps(report.as_dict()))) == report
    fresh = SentenceEncoder(encoder.folder, device="cpu")  # the given encoder is left alone
    np.testing.assert_array_equal(encoder.encode_items(ITEMS.texts), fresh.encode_items(ITEMS.texts))


def test_the_reported_recall_is_that_of_pools_by_definition(encoder, taught):
    queries = [taught.queries[number] for number in taught.held_out]
    assert len(queries) == taught.report.held_out_lists
    near_of, shares = [], []
    for model in (encoder, taught.encoder):
        products = model.encode_queries(queries) @ model.encode_items(ITEMS.texts).T
        near_of.append(np.argsort(-products, axis=1)[:, :POOL_DEPTH])
    for query, before, after in zip(queries, *near_of, strict=True):
        pool = np.union1d(before, after)
        scores = np.array(topic_scores([(query, ITEMS.texts[row]) for row in pool]))
        best = pool[np.argsort(-scores, kind="stable")[:POOL_BEST]]
        shares.append([np.isin(best, before).mean(), np.isin(best, after).mean()])
    expected = np.mean(shares, axis=0)
    # the saved weights may be rounded, which moves an item or two
    assert [taught.report.recall_before, taught.report.recall] == pytest.approx(expected.tolist(), abs=0.03)


def test_entries_are_the_scorers(taught):
    entries, pairs = taught.entries, taught.entries.pairs
    assert sorted(taught.queries) == sorted(QUERIES)
    texts = [(taught.queries[number], ITEMS.texts[row]) for number, row in zip(pairs.queries, pairs.rows, strict=True)]
    np.testing.assert_array_equal(entries.scores, topic_scores(texts))
    assert len(np.unique(pairs.keys())) == len(pairs) <= LONGER.calls


def test_each_round_mines_the_nearest_items_without_a_score(encoder, tmp_path):
    """Half of 24 in each of two rounds: those of an encoder that hardly moves are the nearest 24."""
    made = run(encoder, tmp_path / "model", settings=replace(SETTINGS, lists=40, epochs=1, learning_rate=1e-12))
    nearest = np.argsort(-encoder.encode_queries(made.queries) @ encoder.encode_items(ITEMS.texts).T, axis=1)[:, :24]
    for number in np.unique(made.entries.pairs.queries):
        assert set(nearest[number]) <= set(made.entries.pairs.rows[made.entries.pairs.queries == number])
    assert made.report.recall == made.report.recall_before
    assert not made.report.helped


def test_an_encoder_that_agrees_with_the_scorer_stays_as_it_is(encoder, tmp_path):
    """Its nearest items hold the best of every pool: nothing finds more."""

    def own_products(pairs):
        queries, items = zip(*pairs, strict=True)
        return (encoder.encode_queries(queries) * encoder.encode_items(items)).sum(1)

    scorer = function_scorer(own_products, fingerprint="own")
    made = run(encoder, tmp_path / "model", scorer=scorer, settings=replace(SETTINGS, epochs=1, evidence=0))
    assert made.report.recall_before == 1.0
    assert not made.report.helped
    assert made.encoder is encoder
    assert "stays" in str(made.report)
    assert not (tmp_path / "model").exists()


# Where the queries come from


def test_pseudo_queries_make_up_for_missing_ones(encoder, tmp_path):
    settings = replace(SETTINGS, lists=40, items_per_list=8, rounds=1, epochs=1)
    made = run(encoder, tmp_path / "model", queries=[*QUERIES[:12], QUERIES[0]], settings=settings)
    assert sorted(made.queries[:12]) == sorted(QUERIES[:12])
    assert made.report.pseudo_queries == len(made.queries) - 12 == 28
    assert all(any(query in item for item in ITEMS.texts) for query in made.queries[12:])
    assert made.report.lists + made.report.held_out_lists == 40


def test_with_nothing_held_out_the_taught_encoder_is_used(encoder, tmp_path):
    settings = replace(SETTINGS, lists=5, items_per_list=8, epochs=1)
    report = run(encoder, tmp_path / "model", settings=settings).report
    assert (report.held_out_lists, report.recall_before, report.recall, report.helped) == (0, None, None, True)
    assert "nothing held out" in str(report)


def test_lists_longer_than_the_collection(encoder, tmp_path):
    settings = replace(SETTINGS, lists=5, items_per_list=24, epochs=1)
    made = teach(
        Items(ITEMS.texts[:16]),
        tmp_path / "m",
        scorer=Teacher().scorer,
        encoder=encoder,
        queries=QUERIES,
        settings=settings,
    )
    assert len(made.entries) == 5 * 16


# The same seed, and interruptions


def test_the_same_seed_gives_the_same_bits_and_another_does_not(encoder, uninterrupted, tmp_path):
    again, other = (run(encoder, tmp_path / str(seed), settings=replace(SETTINGS, seed=seed)) for seed in (0, 1))
    assert weights_of(again) == weights_of(uninterrupted.made)
    assert facts(again.report) == facts(uninterrupted.made.report)
    assert weights_of(other) != weights_of(uninterrupted.made)


class Interrupt(BaseException):
    """As a kill."""


def interrupt_at(number: int) -> Callable[..., None]:
    """A progress callback that raises at this call."""
    calls = iter(range(number))

    def progress(*_: object) -> None:
        if next(calls, None) is None:
            raise Interrupt

    return progress


@pytest.mark.parametrize(
    ("moment", "trained"),
    [
        (("scoring", 1), [20, FIRST_ROUND, 40, 60, STEPS, STEPS]),
        (("teaching", 0), [20, FIRST_ROUND, 40, 60, STEPS, STEPS]),
        (("teaching", 1), [20, FIRST_ROUND, 40, 60, STEPS, STEPS]),  # before the checkpoint of the first round
        (("scoring", 7), [40, 60, STEPS, STEPS]),
        (("teaching", 3), [40, 60, STEPS, STEPS]),
        (("scoring", -1), [STEPS]),
    ],
)
def test_an_interrupted_teaching_ends_like_an_uninterrupted_one(encoder, uninterrupted, tmp_path, moment, trained):
    name, number = moment
    calls = [place for place, (step, *_) in enumerate(uninterrupted.reported) if step == name]
    teacher, reported = Teacher(), []
    given = {"teacher": teacher, "work_dir": tmp_path / "work", "chunk": CHUNK}
    with pytest.raises(Interrupt):
        run(encoder, tmp_path / "model", progress=interrupt_at(calls[number]), **given)
    assert not (tmp_path / "model").exists()
    made = run(encoder, tmp_path / "model", progress=lambda *call: reported.append(call), **given)
    assert [done for step, done, _ in reported if step == "teaching"] == trained
    assert sorted(teacher.scored) == sorted(uninterrupted.teacher.scored)  # no pair twice
    assert weights_of(made) == weights_of(uninterrupted.made)
    assert facts(made.report) == facts(uninterrupted.made.report)


def test_a_finished_teaching_is_not_repeated(encoder, uninterrupted, tmp_path):
    work_dir, teacher = shutil.copytree(uninterrupted.work_dir, tmp_path / "work"), Teacher()
    made = run(encoder, tmp_path / "model", teacher=teacher, work_dir=work_dir, chunk=CHUNK)
    assert teacher.scored == []
    assert weights_of(made) == weights_of(uninterrupted.made)


@pytest.mark.parametrize("name", ["checkpoint", "lists-1", "lists-2"])
@pytest.mark.parametrize("damage", ["zeros", "cut"])
def test_damaged_files_of_a_teaching_are_not_used(encoder, uninterrupted, tmp_path, name, damage):
    work_dir, teacher = shutil.copytree(uninterrupted.work_dir, tmp_path / "work"), Teacher()
    [path] = work_dir.rglob(f"{name}.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-40] + bytes(40) if damage == "zeros" else content[:-40])
    made = run(encoder, tmp_path / "model", teacher=teacher, work_dir=work_dir, chunk=CHUNK)
    assert teacher.scored == []
    assert weights_of(made) == weights_of(uninterrupted.made)
    assert facts(made.report) == facts(uninterrupted.made.report)


def test_another_teaching_in_the_same_work_folder_shares_nothing_but_scores(encoder, uninterrupted, tmp_path):
    work_dir, teacher = shutil.copytree(uninterrupted.work_dir, tmp_path / "work"), Teacher()
    settings = replace(SETTINGS, seed=1)
    made = run(encoder, tmp_path / "one", teacher=teacher, work_dir=work_dir, chunk=CHUNK, settings=settings)
    assert not set(teacher.scored) & set(uninterrupted.teacher.scored)
    assert weights_of(made) == weights_of(run(encoder, tmp_path / "other", settings=settings))


def test_calls_are_counted(uninterrupted):
    report, scored = uninterrupted.made.report, uninterrupted.teacher.scored
    assert report.calls == sum(uninterrupted.calls) == len(scored) == len(set(scored)) <= SETTINGS.calls


def test_nothing_is_printed(encoder, tmp_path, capfd):
    run(encoder, tmp_path / "model", settings=replace(SETTINGS, lists=5, items_per_list=8, epochs=1))
    assert capfd.readouterr() == ("", "")


# Settings


def test_a_time_limit_stops_early(encoder, tmp_path):
    report = run(encoder, tmp_path / "model", settings=replace(SETTINGS, time_limit=1e-9)).report
    assert 0 < report.steps < FIRST_ROUND


def test_a_function_without_a_fingerprint_has_no_work_folder(encoder, tmp_path):
    with pytest.raises(InputError, match="fingerprint"):
        run(encoder, tmp_path / "model", scorer=function_scorer(topic_scores), work_dir=tmp_path / "work")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lists": 0}, "`lists` must be a positive integer, got 0"),
        ({"items_per_list": 3}, "`items_per_list` must be 0 or an integer of at least 4, got 3"),
        ({"random_share": 1.5}, "`random_share` must be between 0 and 1, got 1.5"),
        ({"held_out_share": 0.6}, "`held_out_share` must be between 0 and 0.5, got 0.6"),
        ({"items_per_step": 1}, "`items_per_step` must be at least 2, got 1"),
        ({"rounds": 1.5}, "`rounds` must be a positive integer, got 1.5"),
        ({"batch": 0}, "`batch` must be a positive integer, got 0"),
        ({"best_items": 0}, "`best_items` must be a positive integer, got 0"),
        ({"epochs": 0}, "`epochs` must be a positive number, got 0"),
        ({"learning_rate": float("inf")}, "`learning_rate` must be a positive number, got inf"),
        ({"temperature": -1}, "`temperature` must be a positive number, got -1"),
        ({"squared_error": -0.5}, "`squared_error` must be between 0 and 1000, got -0.5"),
        ({"evidence": float("nan")}, "`evidence` must be between 0 and 1000, got nan"),
        ({"time_limit": 0}, "`time_limit` must be a positive number, got 0"),
        ({"seed": -1}, "`seed` must be a nonnegative integer, got -1"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(InputError, match=message):
        Teaching(**settings)


def test_the_default_is_smaller_for_few_items_and_on_a_cpu():
    few, many, gpu = Teaching.default(30), Teaching.default(10**6), Teaching.default(10**6, device="cuda", seed=5)
    assert few.items_per_list == 30
    assert few.lists < many.lists < gpu.lists
    assert gpu == Teaching(device="cuda", seed=5)


def test_some_entries_are_those_of_held_out_and_then_the_first_queries_numbered_anew(taught):
    numbers, rows = np.array([1, 4, 1, 3, 4], np.int32), np.array([5, 6, 7, 8, 9], np.int32)
    entries = SparseScores(Pairs(numbers, rows, 6, 10), np.arange(5, dtype=np.float32))
    made = replace(taught, queries=list("abcdef"), entries=entries, held_out=np.array([0, 4]))
    queries, some, held_out = made.some_entries(2)
    assert queries == ["b", "e"]  # "a" has no scores
    assert held_out.tolist() == [1]
    assert (some.pairs.n_queries, some.pairs.n_items) == (2, 10)
    assert some.pairs.queries.tolist() == [0, 1, 0, 1]
    assert some.pairs.rows.tolist() == [5, 6, 7, 9]
    assert some.scores.tolist() == [0.0, 1.0, 2.0, 4.0]
