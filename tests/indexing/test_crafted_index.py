"""Index folders that somebody made up, with right checksums: the loader's own checks refuse them, in one sentence."""

import shutil
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from crossknn.errors import InputError
from crossknn.indexing.index import FIELD_ORDERS, Index
from crossknn.items.items import Items
from crossknn.storage.atomic_dir import read_folder, write_folder
from crossknn.storage.safetensors import read_arrays, write_arrays
from tests.indexing.test_index import DIM, Setup, file_of, flip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An index with fitted vectors, a prior and BM25."""
    folder = tmp_path_factory.mktemp("saved") / "index"
    Setup().build(prior=True, calibrate=False).save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "index")


def rewrite(folder, *, facts=None, arrays=None, files=None):
    """Write the index again after `facts(…)` and `arrays(…)` changed theirs, with these functions that write files."""
    opened = read_folder(folder)
    content, written = dict(opened.facts), {n: partial(shutil.copyfile, path) for n, path in opened.files.items()}
    if facts is not None:
        facts(content)
    if arrays is not None:
        stored = {name: np.array(array) for name, array in read_arrays(opened.files["vectors.safetensors"]).items()}
        arrays(stored)
        written["vectors.safetensors"] = lambda path: write_arrays(path, stored)
    write_folder(folder, content, written | (files or {}))


def write_strings(path, columns):
    """An Arrow file of columns of bytes, which need not be UTF-8."""
    made = {}
    for name, values in columns.items():
        offsets = pa.py_buffer(np.cumsum([0, *map(len, values)]))
        made[name] = pa.LargeStringArray.from_buffers(len(values), offsets, pa.py_buffer(b"".join(values)))
    batch = pa.record_batch(made)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


IDS = [f"id-{row}".encode() for row in range(120)]
TEXTS = [b"word1 word2"] * 120

ARRAYS = {
    "no vectors": lambda a: a.pop("vectors"),
    "a vector too few": lambda a: a.update(vectors=a["vectors"][1:]),
    "integers": lambda a: a.update(vectors=a["vectors"].astype(np.int32)),
    "one dimension": lambda a: a.update(vectors=a["vectors"].ravel()),
    "three dimensions": lambda a: a.update(vectors=a["vectors"][:, :, None]),
    "one number": lambda a: a.update(vectors=np.array(1.0)),
    "vectors of nothing": lambda a: a.update(vectors=a["vectors"][:, :0]),
    "other width": lambda a: a.update(vectors=a["vectors"][:, 1:]),
    "fitted of another width": lambda a: a.update({"fitted.items": a["fitted.items"][:, 1:]}),
    "fitted of fewer items": lambda a: a.update({"fitted.items": a["fitted.items"][1:]}),
    "fitted bytes": lambda a: a.update({"fitted.items": a["fitted.items"].view(np.uint8)}),
    "queries of another width": lambda a: a.update({"fitted.queries": a["fitted.queries"][:, 1:]}),
    "a query too few": lambda a: a.update({"fitted.queries": a["fitted.queries"][1:]}),
    "a bias too few": lambda a: a.update(bias=a["bias"][1:]),
    "biases in a table": lambda a: a.update(bias=a["bias"][:, None]),
    "latent factors in a line": lambda a: a.update(latent_factors=a["latent_factors"][:, 0]),
    "whole latent factors": lambda a: a.update(latent_factors=a["latent_factors"].view(np.uint8)),
}


@pytest.mark.parametrize("wrong", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(folder, wrong):
    rewrite(folder, arrays=ARRAYS[wrong])
    with pytest.raises(InputError, match=f"{folder}: damaged: "):
        Index.load(folder)


FACTS = [
    ("scorer", 3),
    ("encoder", ["a"]),
    ("normalization", {"alpha": "0", "beta": 1.0}),
    ("normalization", {"alpha": None, "beta": 1.0}),
    ("factors.kind", "als"),
    ("factors.kind", 1),
    ("factors.ridge", "1"),
    ("factors.with_encoder", 1),
    ("prior.signals", "dense"),
    ("prior.signals", []),
    ("prior.signals", ["dense"]),
    ("prior.signals", [["dense"], "bm25"]),
    ("prior.noise", -1.0),
    ("prior.noise", 0),
    ("prior.intercept", None),
    ("prior.center", []),
    ("prior.center", [0.0] * 1000),
    ("prior.spread", [1.0, 1.0, 1.0, 0.0]),
    ("prior.weights", [[0.0] * 4]),
    ("prior.weights", ["a"] * 4),
    ("prior.variances", [-1.0] * 7),
    ("prior.bias_weights", [0.0] * DIM),
    ("prior.weights", [1e30] * 4),
    ("prior.gamma_slope", -1.0),
    ("prior.gamma_max", 0.5),
    ("prior.gamma_max", 1e308),
    ("prior.gamma_start", -1e308),
    ("items", 121),
    ("dim", None),
    ("recall_calibration", {"intercept": 0.0, "slope": -1.0}),
    ("recall_calibration", {"intercept": 0.0}),
    ("bm25", 5),
    ("report.calls", "many"),
    ("report.items", None),
    ("report.seconds", {"fit": "long"}),
    ("report.seconds", []),
    ("report.coverage", {"calls": []}),
    ("report.teaching", 3),
    ("report.fit", {"held_out_error": "x"}),
    ("indexed_fields", 3),
    ("indexed_fields", ["no field"]),
    ("taught", {"normalize": True, "base": "a"}),
    ("taught", 3),
    ("adapter", {"normalize": True, "base": "a"}),
    ("adapter", []),
]


@pytest.mark.parametrize(("name", "value"), FACTS)
def test_facts_of_wrong_types_or_values_are_refused(folder, name, value):
    def change(facts):
        *path, last = name.split(".")
        for one in path:
            facts = facts[one]
        facts[last] = value

    rewrite(folder, facts=change)
    with pytest.raises(InputError, match=str(folder)):
        Index.load(folder)


def test_an_adapter_of_other_vectors_is_refused(folder):
    def add_adapter(width):
        shapes = {"w1": (3, width), "b1": (3,), "w2": (width, 3), "b2": (width,)}
        added = {f"adapter.queries.{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
        rewrite(
            folder,
            facts=lambda facts: facts.update(adapter={"normalize": True, "base": "a"}),
            arrays=lambda arrays: arrays.update(added),
        )

    add_adapter(DIM)
    assert Index.load(folder).verify()
    add_adapter(DIM + 1)
    with pytest.raises(InputError, match=rf"{folder}: damaged: .*adapter must be {DIM} wide, got {DIM + 1}"):
        Index.load(folder)


STRINGS = {
    "an id twice": ({"_id": [*IDS[:-1], IDS[0]], "text": TEXTS}, r"'id-0' is not unique"),
    "an id that is no text": ({"_id": [*IDS[:-1], b"\xff\xfe"], "text": TEXTS}, "UTF8"),
    "an item too few": ({"_id": IDS[:-1], "text": TEXTS[:-1]}, "array vectors must have the shape"),
    "no item": ({"_id": [], "text": []}, "array vectors must have the shape"),
}


@pytest.mark.parametrize("wrong", STRINGS)
def test_items_that_do_not_fit_are_refused(folder, wrong):
    columns, problem = STRINGS[wrong]
    rewrite(folder, files={"items.arrow": partial(write_strings, columns=columns)})
    with pytest.raises(InputError, match=rf"{folder}: damaged: .*{problem}"):
        Index.load(folder)


def test_texts_that_are_no_text_are_refused_by_verify_and_where_they_are_read(folder):
    columns = {"_id": IDS, "text": [*TEXTS[:-1], b"\xff"]}
    rewrite(folder, files={"items.arrow": partial(write_strings, columns=columns)})
    index = Index.load(folder)
    assert index.items.text(0) == "word1 word2"
    with pytest.raises(InputError, match="not UTF-8"):
        index.items.text(119)
    for verify in (index.verify, partial(Index.load, folder, verify=True)):
        with pytest.raises(InputError, match=rf"{folder}: damaged: .*UTF8"):
            verify()


def test_queries_that_are_no_text_are_refused(folder):
    columns = {"_id": IDS[:1], "text": [b"\xff"]}
    rewrite(folder, files={"queries.arrow": partial(write_strings, columns=columns)})
    with pytest.raises(InputError, match=rf"{folder}: damaged: .*UTF8"):
        Index.load(folder)


@pytest.mark.parametrize("name", ["weights", "bias", "vectors"])
def test_numbers_that_are_none_are_refused_by_verify(folder, name):
    def put_nan(arrays):
        arrays[name].ravel()[5] = np.nan

    if name == "weights":
        path = file_of(folder, "postings.safetensors")
        stored = {name: np.array(array) for name, array in read_arrays(path).items()}
        put_nan(stored)
        rewrite(folder, files={"postings.safetensors": lambda path: write_arrays(path, stored)})
    else:
        rewrite(folder, arrays=put_nan)
    Index.load(folder)
    with pytest.raises(InputError, match=rf"{folder}: {name} holds NaN"):
        Index.load(folder, verify=True)


def test_load_verifies_if_asked_to(folder):
    flip(file_of(folder, "vectors.safetensors"), -1)
    Index.load(folder)
    with pytest.raises(InputError, match=r"vectors-\w+.safetensors: damaged: its hash is"):
        Index.load(folder, verify=True)


def test_loading_and_verifying_while_it_is_replaced_gives_one_whole_index(folder):
    ended = threading.Event()
    built = [Setup().build(None), Setup(items=60).build(None)]

    def replace():
        for number in range(12):
            built[number % 2].save(folder)
        ended.set()

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set()
    while not ended.is_set():
        seen.add(len(Index.load(folder, verify=True)))
        time.sleep(0.001)
    writer.join()
    assert seen <= {60, 120}


ORDERS = {
    "a place too few": (lambda places: places[1:], "must have the shape"),
    "a place of no item": (lambda places: np.where(places == 0, len(places), places), "a place that no value has"),
    "a negative place": (lambda places: np.where(places == 0, -1, places), "a place that no value has"),
    "fractions": (lambda places: places.astype(np.float32), "and the dtype signedinteger"),
}


@pytest.fixture
def indexed(folder):
    """The same index with a field, and an index on it."""
    index = Index.load(folder)
    items = Items(index.items.texts, ids=index.items.ids, fields={"size": range(len(index), 0, -1)})
    replace(index, items=items.index_fields("size")).save(folder)
    return folder


@pytest.mark.parametrize("wrong", ORDERS)
def test_indexes_of_fields_that_do_not_fit_are_refused(indexed, wrong):
    change, problem = ORDERS[wrong]
    places = np.array(read_arrays(indexed / file_of(indexed, FIELD_ORDERS))["0"])
    rewrite(indexed, files={FIELD_ORDERS: lambda path: write_arrays(path, {"0": change(places)})})
    with pytest.raises(InputError, match=rf"{indexed}: damaged: .*{problem}"):
        Index.load(indexed)


def test_an_index_of_a_field_out_of_order_is_found_by_verify(indexed):
    index = Index.load(indexed, verify=True)
    assert index.items.indexed_fields == ("size",)
    assert index.items.mask({"size": {"le": 3}}).nonzero()[0].tolist() == [117, 118, 119]
    places = np.arange(len(index), dtype=np.int32)
    rewrite(indexed, files={FIELD_ORDERS: lambda path: write_arrays(path, {"0": places})})
    with pytest.raises(InputError, match="out of order"):
        Index.load(indexed, verify=True)
