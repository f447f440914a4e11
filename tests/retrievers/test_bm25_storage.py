"""BM25 in an index: fitted once, stored, and fitted again where the items or the settings changed."""

import shutil
import sys
from functools import partial

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerQuery
from crossknn.items.items import Items
from crossknn.retrievers import bm25
from crossknn.retrievers.bm25 import POSTINGS_FILE, STEMS_FILE, Bm25, StoredBm25, estimate_bytes
from crossknn.storage.atomic_dir import read_folder, write_folder
from crossknn.storage.safetensors import read_arrays, write_arrays
from crossknn.strategies.rerank import Rerank
from tests.indexing.test_index import Setup, found

QUERY = "word3 word5 word17"
RERANK = Rerank(20, "bm25")


class ReadItems(Items):
    """Items that count how often all their texts are read, as they are to fit BM25."""

    def __init__(self, setup):
        super().__init__(setup.texts, ids=list(setup.items.ids))
        self.reads = 0

    def iter_texts(self, **options):
        self.reads += 1
        return super().iter_texts(**options)


@pytest.fixture
def saved(tmp_path):
    Setup().build(None).save(tmp_path / "index")
    return tmp_path / "index"


def fitted_scores(items):
    return Bm25().fit(items).scores(QUERY)


def rewrite(folder, change):
    """Write an index again after `change(facts, files)`, where files are functions that write them."""
    opened = read_folder(folder)
    facts, files = dict(opened.facts), {name: partial(shutil.copyfile, path) for name, path in opened.files.items()}
    change(facts, files)
    write_folder(folder, facts, files)


def change_postings(folder, change):
    """Write the index again after `change(arrays)`."""
    arrays = {name: np.array(values) for name, values in read_arrays(read_folder(folder).files[POSTINGS_FILE]).items()}
    change(arrays)
    rewrite(folder, lambda facts, files: files.update({POSTINGS_FILE: lambda path: write_arrays(path, arrays)}))


def double_weights(folder):
    """Double all scores of the stored BM25: they differ from those of one that is fitted again."""
    change_postings(folder, lambda arrays: arrays.update(weights=2 * arrays["weights"]))


def drop_bm25(facts, files):
    """As an index without BM25."""
    del facts["bm25"], files[STEMS_FILE], files[POSTINGS_FILE]


def test_a_searcher_on_a_loaded_index_uses_the_stored_one_and_finds_the_same(saved):
    setup = Setup()
    fitted = found(setup.searcher(setup.items), setup.new_queries, RERANK)
    assert found(setup.searcher(Index.load(saved)), setup.new_queries, RERANK) == fitted
    double_weights(saved)
    doubled = found(setup.searcher(Index.load(saved)), setup.new_queries, RERANK)
    for hits, expected in zip(doubled, fitted, strict=True):
        assert [hit.estimate for hit in hits] == [2 * hit.estimate for hit in expected]


def test_stored_scores_are_fitted_scores(saved):
    np.testing.assert_array_equal(Index.load(saved).bm25.scores(QUERY), fitted_scores(Setup().items))


def test_an_index_stores_what_its_build_fitted(tmp_path):
    setup = Setup()
    items = ReadItems(setup)
    index = setup.build(None, items=items, sampling=PerQuery(items=5, retriever="fused"))
    index.save(tmp_path)
    setup.searcher(index).prepare()
    assert items.reads == 1


def test_saving_twice_fits_once_and_writes_the_same(tmp_path):
    setup = Setup()
    items = ReadItems(setup)
    index = setup.build(None, items=items)
    index.save(tmp_path / "one")
    index.save(tmp_path / "two")
    assert items.reads == 1
    Index.load(tmp_path / "one").save(tmp_path / "three")
    names = [sorted(path.name for path in (tmp_path / name).glob("*-*")) for name in ("one", "two", "three")]
    assert names[0] == names[1] == names[2]


def test_a_loaded_index_is_saved_with_the_stored_one(saved, tmp_path):
    double_weights(saved)
    Index.load(saved).save(tmp_path / "copy")
    np.testing.assert_array_equal(Index.load(tmp_path / "copy").bm25.scores(QUERY), 2 * fitted_scores(Setup().items))


def test_an_index_without_it_is_opened_and_fits(saved):
    rewrite(saved, drop_bm25)
    setup = Setup()
    expected = found(setup.searcher(setup.items), setup.new_queries, RERANK)
    assert found(setup.searcher(Index.load(saved)), setup.new_queries, RERANK) == expected


@pytest.mark.parametrize("setting", ["k1", "b", "method", "stemmer", "stemmer_version", "stopwords"])
def test_other_settings_are_fitted_again(saved, setting):
    double_weights(saved)
    rewrite(saved, lambda facts, files: facts["bm25"].update({setting: "another"}))
    np.testing.assert_array_equal(Index.load(saved).bm25.scores(QUERY), fitted_scores(Setup().items))


def test_your_own_takes_precedence(saved):
    setup, own = Setup(), Bm25(k1=2.0, b=1.0)
    hits = found(setup.searcher(Index.load(saved), retrievers=[own]), setup.new_queries, RERANK)
    assert own.n_items == 120
    assert hits != found(setup.searcher(Index.load(saved)), setup.new_queries, RERANK)


def test_your_own_of_a_build_is_not_stored(tmp_path):
    own = Bm25(k1=2.0, b=1.0)
    setup = Setup()
    index = setup.build(None, sampling=PerQuery(items=5, retriever="bm25"), retrievers=[own])
    assert index.bm25 is not own
    index.save(tmp_path)
    np.testing.assert_array_equal(Index.load(tmp_path).bm25.scores(QUERY), fitted_scores(setup.items))


def test_added_and_removed_items_are_counted(saved, tmp_path):
    setup = Setup()
    grown = setup.add(Index.load(saved))
    shrunk = grown.remove(["id-0", "id-7"])
    for index in (grown, shrunk):
        index.save(tmp_path / "changed")
        scores = Index.load(tmp_path / "changed").bm25.scores(QUERY)
        np.testing.assert_array_equal(scores, fitted_scores(index.items))


def test_items_without_words_can_be_stored(tmp_path):
    stored = StoredBm25.of(Bm25().fit(Items(["?", "!", "a"])))
    for name, write in stored.files().items():
        write(tmp_path / name)
    files = {name: tmp_path / name for name in stored.files()}
    assert StoredBm25.load(files, stored.settings, 3).open().scores("a word").tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["stems", "postings"])
def test_verify_names_a_damaged_file(saved, name):
    (path,) = saved.glob(f"{name}-*")
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{path.name}: damaged"):
        Index.load(saved).verify()


def test_files_that_do_not_belong_together_are_refused(saved, tmp_path):
    Setup(items=6).build(None).save(tmp_path / "other")  # of fewer words
    (other,) = (tmp_path / "other").glob("postings-*")
    rewrite(saved, lambda facts, files: files.update({POSTINGS_FILE: partial(shutil.copyfile, other)}))
    with pytest.raises(InputError, match=r"postings-\w+.safetensors: damaged: .*one range of rows per stem"):
        Index.load(saved)
    rewrite(saved, lambda facts, files: files.pop(POSTINGS_FILE))
    with pytest.raises(InputError, match=r"do not fit together .*postings"):
        Index.load(saved)


WRONG_POSTINGS = {
    "one row too far": lambda arrays: arrays["rows"].__setitem__(7, 120),
    "far outside": lambda arrays: arrays["rows"].__setitem__(0, 2**31 - 1),
    "negative row": lambda arrays: arrays["rows"].__setitem__(-1, -1),
    "range before the first": lambda arrays: arrays["starts"].__setitem__(0, -5),
    "range past the last": lambda arrays: arrays["starts"].__setitem__(-1, 2**40),
    "crossed ranges": lambda arrays: arrays["starts"].__setitem__(5, 2**40),
    "wide rows": lambda arrays: arrays.update(rows=arrays["rows"].astype(np.int64) + 2**32),
    "rows of fractions": lambda arrays: arrays.update(rows=arrays["rows"].astype(np.float32)),
    "table of rows": lambda arrays: arrays.update(rows=arrays["rows"][:, None]),
    "one number": lambda arrays: arrays.update(starts=np.array(3)),
    "no ranges": lambda arrays: arrays.update(starts=arrays["starts"][:0]),
    "few weights": lambda arrays: arrays.update(weights=arrays["weights"][1:]),
    "no rows": lambda arrays: arrays.pop("rows"),
}


@pytest.mark.parametrize("wrong", WRONG_POSTINGS)
def test_postings_that_point_outside_are_refused_when_opened(saved, wrong):
    """With right checksums, as in an index from elsewhere: the sparse product of a search checks nothing."""
    change_postings(saved, WRONG_POSTINGS[wrong])
    with pytest.raises(InputError, match=r"postings-\w+\.safetensors: damaged: "):
        Index.load(saved)


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be deleted there")
def test_an_open_index_keeps_its_own_while_another_takes_the_folder(saved):
    expected = fitted_scores(Setup().items)
    old = Index.load(saved)
    Setup(items=60).build(None).save(saved)
    np.testing.assert_array_equal(old.bm25.scores(QUERY), expected)


def test_without_bm25s_an_index_is_saved_without(tmp_path, monkeypatch):
    index = Setup().build(None)
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "bm25s", None)
        missing.setitem(sys.modules, "bm25s.tokenization", None)
        index.save(tmp_path)
        assert Index.load(tmp_path).verify()
        assert estimate_bytes(index.items) == 0
    assert not list(tmp_path.glob("stems-*"))
    assert Index.load(tmp_path).bm25.scores(QUERY).any()


def test_its_bytes_are_estimated_from_some_items(tmp_path, monkeypatch):
    setup = Setup()
    setup.build(None).save(tmp_path)
    size = sum(path.stat().st_size for name in ("stems", "postings") for path in tmp_path.glob(f"{name}-*"))
    assert estimate_bytes(setup.items) == pytest.approx(size, abs=1500)  # but for headers
    exact = estimate_bytes(setup.items)
    monkeypatch.setattr(bm25, "ESTIMATE_ITEMS", 40)
    assert estimate_bytes(setup.items) == pytest.approx(exact, rel=0.2)
