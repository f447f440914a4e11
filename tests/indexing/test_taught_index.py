"""An index with a taught encoder: built, saved, loaded, searched and changed with it; resumed, damaged, replaced."""

import gc
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.indexing.builder import Build, runs_on_gpu
from crossknn.indexing.factorization.factors import Cur
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.index import Index
from crossknn.indexing.report import BuildReport
from crossknn.indexing.sampling import PerItem
from crossknn.scorers.cached import Cached
from crossknn.search.searcher import Searcher
from crossknn.storage.atomic_dir import read_folder, write_folder
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from tests.indexing.teaching import builds
from tests.indexing.teaching.builds import ITEMS, NEW_ITEMS, NEW_QUERIES, OTHER_TEACHING, QUERIES, TEACHING, build
from tests.indexing.teaching.world import Teacher

pytest.importorskip("sentence_transformers")

HALF = 1e-3  # the error of a float16 of a vector of length 1, at most


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> SentenceEncoder:
    return builds.save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def other_encoder(tmp_path_factory) -> SentenceEncoder:
    """Another model of the same size."""
    folder = builds.world.save_encoder(tmp_path_factory.mktemp("other") / "cls", pooling="cls")
    return SentenceEncoder(folder, device="cpu")


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def built(encoder, work_dir) -> Index:
    return build(encoder, work_dir=work_dir, prior=True)


@pytest.fixture(scope="module")
def taught(built, work_dir) -> SentenceEncoder:
    """The model that the teaching saved."""
    (modules,) = work_dir.rglob("modules.json")
    return SentenceEncoder(modules.parent, device="cpu")


@pytest.fixture
def folder(built, tmp_path) -> Path:
    """Of the saved index."""
    built.save(tmp_path / "index")
    return tmp_path / "index"


def searcher(index: Index, **options) -> Searcher:
    return Searcher(index, **{"scorer": Teacher().scorer, **options})


def found(index: Index, **options) -> list[list[tuple[str, float]]]:
    """What posterior search finds for a few queries."""
    hits = searcher(index, **options).search_many(NEW_QUERIES, k=5, strategy=Posterior(budget=20, rounds=4))
    return [[(hit.id, hit.score) for hit in one] for one in hits]


def assert_equal(one: Index, other: Index) -> None:
    """The same content."""
    np.testing.assert_array_equal(one.vectors, other.vectors)
    assert (one.encoder, one.scorer, one.normalization) == (other.encoder, other.scorer, other.normalization)
    assert (list(one.queries), list(one.items.ids)) == (list(other.queries), list(other.items.ids))
    assert one.is_taught
    assert other.is_taught
    texts = [*NEW_QUERIES, *NEW_ITEMS.texts]
    np.testing.assert_array_equal(one.open_encoder().encode_items(texts), other.open_encoder().encode_items(texts))


# Built


def test_the_vectors_are_those_of_the_taught_encoder(built, taught, encoder):
    assert built.is_taught
    assert built.encoder == built.open_encoder().fingerprint == taught.fingerprint != encoder.fingerprint
    np.testing.assert_allclose(built.vectors, taught.encode_items(ITEMS.texts), atol=HALF)
    assert np.abs(built.vectors - encoder.encode_items(ITEMS.texts)).max() > 10 * HALF


def test_a_build_without_a_work_folder_is_the_same_and_leaves_nothing_behind(encoder, built, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    index = build(encoder, prior=True)
    assert_equal(index, built)
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    del index
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert_equal(loaded, built)


def test_only_the_teachings_pairs_are_scored(encoder):
    teacher = Teacher()
    index = build(encoder, teacher=teacher, prior=True)
    report = index.report
    assert index.factors is None
    assert index.prior is not None
    assert len(teacher.scored) == len(set(teacher.scored)) == report.teaching.calls == report.calls == report.calls_made
    assert {query for query, _ in teacher.scored} == set(index.queries) <= set(QUERIES)
    assert len(index.queries) == TEACHING.lists == report.queries


def test_no_pair_is_scored_twice_without_a_work_folder(encoder):
    """Also by a second round, whose random items may have a score already."""
    teacher = Teacher()
    report = build(encoder, teacher=teacher, teach=replace(TEACHING, items_per_list=24, rounds=2)).report
    assert len(teacher.scored) == len(set(teacher.scored))
    assert report.calls_made == report.calls


def test_factors_may_be_fitted_to_the_scores_of_a_teaching(encoder, built):
    teacher = Teacher()
    index = build(encoder, teacher=teacher, factors=Transductive(method="als", epochs=2))
    assert index.factors.kind == "transductive"
    assert index.encoder == built.encoder
    assert len(teacher.scored) == index.report.calls
    assert len(found(index)) == len(NEW_QUERIES)


def test_the_report_says_what_was_taught(built, folder):
    report = built.report
    assert report.teaching.lists == TEACHING.lists
    assert report.teaching.helped
    assert f"encoder: taught by {TEACHING.lists} lists" in str(report)
    assert report.seconds["teach"] > 0
    assert BuildReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report == Index.load(folder).report


def test_an_encoder_that_learned_nothing_stays(encoder, tmp_path):
    index = build(encoder, teach=replace(TEACHING, lists=20, learning_rate=1e-12))
    assert not index.report.teaching.helped
    assert not index.is_taught
    assert index.encoder == encoder.fingerprint
    assert "the encoder stays as it was" in str(index.report)
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert not loaded.is_taught
    assert found(loaded, encoder=encoder) == found(index, encoder=encoder)
    with pytest.raises(InputError, match="no encoder of its own"):
        loaded.open_encoder()


def test_a_build_on_a_cpu_teaches_only_if_asked_to(encoder):
    index = build(encoder, teach=None)
    assert not index.is_taught
    assert index.report.teaching is None
    assert index.factors.kind == "transductive"


def test_a_taught_encoder_can_be_taught_again(built, encoder):
    again = build(built.open_encoder(), teach=OTHER_TEACHING)
    assert again.is_taught
    assert again.encoder not in (built.encoder, encoder.fingerprint)


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": PerItem(queries=4)}, "`teach` chooses the pairs to score: leave out `sampling`"),
        ({"sampling": PerItem(queries=4), "teach": TEACHING}, "`teach` chooses the pairs to score"),
        ({"factors": Cur(anchors=4)}, "leave out .* CUR"),
        ({"encoder": function_encoder(lambda texts: np.ones((len(texts), 2))), "teach": TEACHING}, 'student="adapter"'),
        ({"teach": "yes"}, r"`teach` must be True, False, None or Teaching\(…\), got 'yes'"),
    ],
)
def test_what_does_not_go_with_a_teaching_is_refused(encoder, options, message):
    teacher = Teacher()
    given = {"encoder": encoder, "teach": True, **options}
    with pytest.raises(InputError, match=message):
        build(given.pop("encoder"), teacher=teacher, **given)
    assert not teacher.scored


def test_workers_cannot_share_a_teaching(encoder, tmp_path):
    teacher = Teacher()
    settings = {"scorer": teacher.scorer, "encoder": encoder, "queries": QUERIES, "work_dir": tmp_path}
    with pytest.raises(InputError, match=r"teaching .* as a whole"):
        Build(ITEMS, **settings, teach=TEACHING).score((0, 2))
    assert not teacher.scored


# Saved and loaded


def test_a_loaded_index_is_the_built_one(built, folder):
    loaded = Index.load(folder)
    assert_equal(loaded, built)
    assert found(loaded) == found(built)
    assert loaded.verify() == sum(path.stat().st_size for path in read_folder(folder).files.values())


def test_a_loaded_index_is_saved_elsewhere_and_over_itself(built, folder, tmp_path):
    Index.load(folder).save(tmp_path / "elsewhere")
    shutil.rmtree(folder)
    loaded = Index.load(tmp_path / "elsewhere")
    for _ in range(2):
        loaded.save(tmp_path / "elsewhere")
    loaded.verify()
    assert_equal(loaded, built)
    assert_equal(Index.load(tmp_path / "elsewhere"), built)


def test_an_untaught_index_can_take_the_place_of_a_taught_one(encoder, folder):
    build(encoder, teach=False).save(folder)
    assert not Index.load(folder).is_taught
    assert not list(folder.glob("encoder*"))


def test_an_index_outlives_a_later_build_in_its_work_folder(encoder, tmp_path):
    first = build(encoder, work_dir=tmp_path / "work")
    expected = first.open_encoder().encode_queries(NEW_QUERIES)
    build(encoder, work_dir=tmp_path / "work", teach=OTHER_TEACHING)
    first.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert loaded.open_encoder().fingerprint == first.encoder
    np.testing.assert_array_equal(loaded.open_encoder().encode_queries(NEW_QUERIES), expected)


def test_an_encoder_that_is_damaged_after_the_build_does_not_get_into_an_index(encoder, tmp_path):
    index = build(encoder, work_dir=tmp_path / "work")
    [weights] = (tmp_path / "work").rglob("encoder/model.safetensors")
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(bytes(64))
    with pytest.raises(InputError, match=r"model\.safetensors of the taught encoder was damaged"):
        index.save(tmp_path / "index")


def test_an_open_index_stays_valid_when_its_folder_is_replaced(encoder, built, folder, tmp_path):
    """As `Index.save` promises."""
    loaded = Index.load(folder)
    build(encoder, teach=OTHER_TEACHING).save(folder)
    assert found(loaded) == found(built)
    loaded.save(tmp_path / "copy")
    assert_equal(Index.load(tmp_path / "copy"), built)


def test_an_open_searcher_stays_valid_when_its_folder_is_replaced(encoder, built, folder):
    opened = searcher(Index.load(folder))
    build(encoder, teach=OTHER_TEACHING).save(folder)
    assert opened.encoder.fingerprint == built.encoder


# Searched


def test_queries_are_encoded_with_the_taught_encoder(built, taught):
    opened = searcher(built)
    assert opened.encoder.fingerprint == built.encoder
    np.testing.assert_array_equal(opened.encoder.encode_queries(NEW_QUERIES), taught.encode_queries(NEW_QUERIES))


def test_the_nearest_items_are_those_of_the_taught_encoder(built, taught, encoder):
    opened, differ = searcher(built), False
    for query in NEW_QUERIES:
        hits = opened.search(query, k=8, strategy=Rerank(budget=8, retriever="dense"))
        assert set(hits.ids) == builds.nearest(taught, query, 8)
        differ |= set(hits.ids) != builds.nearest(encoder, query, 8)
    assert differ


def test_the_encoder_that_was_taught_stands_for_the_taught_one(built, folder, encoder):
    for index in (built, Index.load(folder)):
        assert searcher(index, encoder=encoder).encoder.fingerprint == built.encoder
        assert found(index, encoder=encoder) == found(built)


def test_the_taught_encoder_may_be_given(built, taught):
    assert searcher(built, encoder=taught).encoder is taught
    assert found(built, encoder=taught) == found(built)


def test_another_encoder_is_refused(built, other_encoder):
    with pytest.raises(InputError, match=r"built with another encoder .* Leave it out: the index has its own"):
        searcher(built, encoder=other_encoder)
    with pytest.raises(InputError, match="Leave it out"):
        built.add(NEW_ITEMS, scorer=Teacher().scorer, encoder=other_encoder)
    assert searcher(built, encoder=other_encoder, check_models=False).encoder is other_encoder


# Changed


def test_new_items_are_encoded_with_the_taught_encoder(built, folder, taught, encoder, tmp_path):
    teacher = Teacher()
    for index in (built, Index.load(folder)):
        for options in ({}, {"encoder": encoder}):
            added = index.add(NEW_ITEMS, scorer=teacher.scorer, **options)
            np.testing.assert_array_equal(added.vectors[:60], built.vectors)
            np.testing.assert_allclose(added.vectors[60:], taught.encode_items(NEW_ITEMS.texts), atol=HALF)
    assert not teacher.scored  # they need no calls
    added.save(tmp_path / "added")
    loaded = Index.load(tmp_path / "added")
    assert loaded.encoder == loaded.open_encoder().fingerprint == built.encoder
    together = builds.nearest(taught, NEW_QUERIES[0], 8, loaded.items)
    assert set(searcher(loaded).search(NEW_QUERIES[0], k=8, strategy=Rerank(8, "dense")).ids) == together


def test_an_untaught_index_needs_an_encoder_for_new_items(encoder):
    index = build(encoder, teach=False, factors=None)
    with pytest.raises(InputError, match="no encoder of its own: give the one that it was built with"):
        index.add(NEW_ITEMS, scorer=Teacher().scorer)


def test_removing_items_keeps_the_encoder(built, folder):
    Index.load(folder).remove(["d0", "d7"]).save(folder)
    loaded = Index.load(folder)
    assert loaded.verify()
    assert len(loaded) == 58
    assert loaded.encoder == loaded.open_encoder().fingerprint == built.encoder
    np.testing.assert_array_equal(loaded.vectors, np.delete(built.vectors, [0, 7], axis=0))


# Interrupted


class Interrupt(BaseException):
    """As a kill."""


@pytest.mark.parametrize("step", ["encode items", "encode queries"])
def test_a_build_killed_after_the_teaching_repeats_no_call_and_ends_alike(encoder, built, tmp_path, step):
    teacher, seen = Teacher(), []

    def interrupt(now, *_):
        seen.append(now)
        if now == step:
            raise Interrupt

    with pytest.raises(Interrupt):
        build(encoder, teacher=teacher, work_dir=tmp_path, prior=True, progress=interrupt)
    assert "teaching" in seen
    scored = list(teacher.scored)
    again = build(encoder, teacher=teacher, work_dir=tmp_path, prior=True)
    assert teacher.scored == scored
    assert (again.report.calls_made, again.report.calls) == (0, built.report.calls)
    assert_equal(again, built)
    assert found(again) == found(built)


# By default


@pytest.mark.parametrize(("device", "expected"), [("cuda", True), ("cpu", False)])
def test_only_models_on_a_gpu_are_called_without_being_asked(device, expected, tmp_path):
    model = SimpleNamespace(device=SimpleNamespace(type=device), fingerprint="model")
    assert runs_on_gpu(model) == expected
    assert runs_on_gpu(Cached(model, tmp_path / "scores.db")) == expected
    assert not runs_on_gpu(Teacher().scorer)


# Damaged


def rewrite(folder: Path, texts: str) -> None:
    """Write other text files of the encoder, with their checksum."""
    opened = read_folder(folder)
    content = {name: path.read_bytes() for name, path in opened.files.items()} | {"encoder.json": texts.encode()}
    files = {name: (lambda path, name=name: path.write_bytes(content[name])) for name in content}
    write_folder(folder, opened.facts, files)


def test_a_flipped_bit_is_found(folder):
    weights = read_folder(folder).files["encoder.safetensors"]
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 4
    weights.write_bytes(content)
    with pytest.raises(InputError, match=f"{weights.name}: damaged"):
        Index.load(folder).verify()


def test_a_missing_file_is_found(folder):
    weights = read_folder(folder).files["encoder.safetensors"]
    weights.unlink()
    with pytest.raises(InputError, match=f"{weights.name}: missing"):
        Index.load(folder)


@pytest.mark.parametrize("name", ["../evil.json", "HERE/evil.json", "1_Pooling/../../evil.json"])
def test_an_encoder_that_would_write_elsewhere_is_refused(folder, tmp_path, monkeypatch, name):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rewrite(folder, json.dumps({"weights": {}, "contents": {name.replace("HERE", str(tmp_path)): "{}"}}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="not a file of an encoder"):
        Index.load(folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", ["[]", "{"])
def test_an_unreadable_list_of_files_is_refused(folder, content):
    rewrite(folder, content)
    with pytest.raises(InputError, match="damaged"):
        Index.load(folder)
