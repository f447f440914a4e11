"""Random damage to an index: it is refused in one sentence, or it is found by nothing and changes nothing.

Damage without new checksums has to be refused, or leave the hits of all searches as they are. Damage with new
checksums, as a crafted folder has it, meets the loader's own checks: what they let through is searched, and must give
hits or an error of crossknn's own.
"""

import copy
import json
import math
import os
import shutil
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.adapter import Adapter
from crossknn.errors import CrossKnnError, InputError
from crossknn.indexing.index import Index
from crossknn.indexing.remembered_models import RememberedModels
from crossknn.indexing.teaching.stored_encoder import StoredEncoder
from crossknn.items.items import Items
from crossknn.models.specs import ModelSpec
from crossknn.search.calibration import ScoreCalibration
from crossknn.storage.atomic_dir import MANIFEST, read_folder
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.calibration import RecallCalibration
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from tests.indexing.test_index import DIM, Setup

SETUP = Setup(items=60, queries=14)
QUERIES = SETUP.new_queries[:2]
STRATEGIES = [Rerank(12, "bm25"), Axn(12, rounds=2, mix=0.5, first="dense"), Posterior(12, rounds=2)]
CONDITIONS = [{"size": {"lt": 50}, "tags": "even"}, {"when": {"gt": "2000-01-01"}}, {"not": {"ok": True, "by": "me"}}]
FIELDS = {
    "size": [*range(59), None],
    "weight": [row / 7 for row in range(60)],
    "by": ["me", "you", None] * 20,
    "ok": [True, False, None] * 20,
    "tags": [["even", "ice"], None, []] * 20,
    "day": [date(2020, 1, 1 + row % 28) for row in range(60)],
    "when": [datetime(1990 + row, 1, 1, 12) for row in range(60)],
    "zoned": [datetime(1990 + row, 1, 1, 12, tzinfo=UTC) for row in range(60)],
}
NUMBERS = [0, -1, 2**70, 1e308, math.nan, -math.inf]
VALUES = [*NUMBERS, None, True, "", "none", [], {}, [None], [[[]]], {"a": 1}, ["dense"] * 3]


@pytest.fixture(scope="module")
def built():
    """An index with everything: fields of all kinds, fitted vectors, a prior, a calibration, BM25, models by name."""
    index = SETUP.build(items=Items(SETUP.texts, ids=SETUP.items.ids, fields=FIELDS), prior=True, calibrate=False)
    scorer = ModelSpec("CrossEncoder", "some/reranker", {"max_length": 128, "true_token": "yes"})
    encoder = ModelSpec("SentenceEncoder", "some/encoder", {"normalize": True})
    calibration = RecallCalibration(intercept=0.5, slope=1.5)
    return replace(index, recall_calibration=calibration, scorer_spec=scorer, encoder_spec=encoder)


@pytest.fixture(scope="module")
def saved(built, tmp_path_factory):
    """The index with an encoder of its own, which no search opens."""
    weights = {"model.safetensors": np.arange(64, dtype=np.uint8)}
    taught = StoredEncoder(weights, {"config.json": b"{}", "a.model": b"\xff"}, normalize=True, base="other")
    return save(replace(built, _taught=taught), tmp_path_factory)


@pytest.fixture(scope="module")
def adapted(built, tmp_path_factory):
    """The index with an adapter of its encoder, which searches use."""
    rng = np.random.default_rng(3)
    shapes = {"w1": (3, DIM), "b1": (3,), "w2": (DIM, 3), "b2": (DIM,)}
    network = {name: rng.normal(size=shape).astype(np.float32) / 9 for name, shape in shapes.items()}
    adapter = Adapter(network, None, normalize=True, base=built.encoder)
    return save(replace(built, _taught=adapter, encoder=adapter.fingerprint), tmp_path_factory)


@pytest.fixture(params=["saved", "adapted"])
def any_saved(request):
    return request.getfixturevalue(request.param)


def save(index, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "index"
    index.save(folder)
    return folder


def search(index):
    """The ids, scores and fields of all searches."""
    searcher = SETUP.searcher(index)
    found = [
        hits
        for strategy, condition in zip(STRATEGIES, CONDITIONS, strict=True)
        for hits in searcher.search_many(QUERIES, k=5, strategy=strategy, filter=condition)
    ]
    return [[(hit.id, hit.score, repr(hit.fields)) for hit in hits] for hits in found]


def damage_bytes(content, rng):
    """Flip a bit, cut, extend, zero a block, or repeat a block elsewhere."""
    kind, size = rng.integers(5), len(content)
    at = int(rng.integers(size)) if size else 0
    changed = bytearray(content)
    if kind == 0 and size:
        changed[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        changed[size:] = rng.bytes(int(rng.integers(1, 40)))
    elif kind == 3:
        end = min(size, at + int(rng.integers(1, 200)))
        changed[at:end] = bytes(end - at)
    else:
        start = int(rng.integers(size)) if size else 0
        block = content[start : start + 8]
        changed[at : at + len(block)] = block
    return bytes(changed)


def assert_refused_or_same(folder, expected):
    try:
        index = Index.load(folder, verify=True)
    except InputError as error:
        assert_one_sentence(error, folder)
        return "refused"
    assert search(index) == expected
    return "same"


def assert_refused_or_usable(folder):
    try:
        index = Index.load(folder, verify=True)
    except InputError as error:
        assert_one_sentence(error, folder)
        return "refused"
    str(index.report)
    RememberedModels.of(index)
    try:
        found = search(index)
    except CrossKnnError:
        return "refused by a search"  # such as a retriever or a model of another name
    assert all(math.isfinite(score) and id_ in index.items for hits in found for id_, score, _ in hits)
    return "usable"


def assert_one_sentence(error, folder):
    assert str(error).startswith(str(folder)), error
    assert "\n" not in str(error)


def test_random_bytes(any_saved, tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "index"
    shutil.copytree(any_saved, folder)
    expected = search(Index.load(folder))
    paths = sorted(path for path in folder.iterdir() if path.stat().st_size)
    outcomes = []
    for _ in range(150):
        path = paths[rng.integers(len(paths))]
        content = path.read_bytes()
        path.write_bytes(damage_bytes(content, rng))
        outcomes.append(assert_refused_or_same(folder, expected))
        path.write_bytes(content)
    assert outcomes.count("refused") > 125
    assert assert_refused_or_same(folder, expected) == "same"


def replace_by(make, path):
    path.unlink()
    make(path)


STRUCTURE = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "a folder": partial(replace_by, Path.mkdir),
    "a link to nothing": partial(replace_by, lambda path: path.symlink_to("nothing")),
    "a link to itself": partial(replace_by, lambda path: path.symlink_to(path.name)),
    "a device": partial(replace_by, lambda path: path.symlink_to("/dev/zero")),
    "a named pipe": partial(replace_by, lambda path: os.mkfifo(path)),
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
@pytest.mark.parametrize("kind", STRUCTURE)
def test_anything_in_the_place_of_a_file(saved, tmp_path, kind):
    for name in [MANIFEST, *(path.name for path in read_folder(saved).files.values())]:
        folder = shutil.copytree(saved, tmp_path / name)
        STRUCTURE[kind](folder / name)
        with pytest.raises(InputError) as error:
            Index.load(folder)
        assert_one_sentence(error.value, folder)


def test_every_file_in_the_place_of_every_other(saved, tmp_path):
    """Both without and with new checksums."""
    folder = tmp_path / "index"
    expected = search(Index.load(saved))
    paths = list(read_folder(saved).files.values())
    for path in paths:
        for other in paths:
            shutil.copytree(saved, folder)
            shutil.copyfile(other, folder / path.name)
            assert assert_refused_or_same(folder, expected) == ("same" if path == other else "refused")
            sign(folder)
            assert_refused_or_usable(folder)
            shutil.rmtree(folder)


def sign(folder, facts=None):
    """Write the manifest again, with the checksums of the files as they are, and maybe other facts."""
    content = json.loads((folder / MANIFEST).read_bytes())
    content["facts"] = content["facts"] if facts is None else facts
    for entry in content["files"].values():
        data = (folder / entry["file"]).read_bytes()
        entry |= {"bytes": len(data), "hash": blake2b(data, digest_size=32).hexdigest()}
    signed = json.dumps([content["facts"], content["files"]], sort_keys=True).encode()
    content["hash"] = blake2b(signed, digest_size=32).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(content))


def test_random_bytes_with_new_checksums(any_saved, tmp_path):
    rng, folder = np.random.default_rng(1), tmp_path / "index"
    shutil.copytree(any_saved, folder)
    paths = sorted(read_folder(folder).files.values())
    outcomes = []
    for _ in range(50):
        path = paths[rng.integers(len(paths))]
        content = path.read_bytes()
        path.write_bytes(damage_bytes(content, rng))
        sign(folder)
        outcomes.append(assert_refused_or_usable(folder))
        path.write_bytes(content)
    assert outcomes.count("refused") > 15


def places_of(value, path=()):
    """The paths to all parts of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inside = [place for name, part in parts for place in places_of(part, (*path, name))]
    return [path, *inside] if path else inside


def test_other_values_in_the_manifest_with_new_checksums(any_saved, tmp_path):
    rng, folder = np.random.default_rng(2), tmp_path / "index"
    shutil.copytree(any_saved, folder)
    facts = read_folder(folder).facts
    places = places_of(facts)
    outcomes = []
    for _ in range(75):
        changed = copy.deepcopy(facts)
        *path, last = places[rng.integers(len(places))]
        part = changed
        for name in path:
            part = part[name]
        part[last] = VALUES[rng.integers(len(VALUES))]
        sign(folder, changed)
        outcomes.append(assert_refused_or_usable(folder))
    assert outcomes.count("refused") > 25


def test_a_calibration_is_refused_or_one_that_gives_probabilities(tmp_path):
    rng, path = np.random.default_rng(4), tmp_path / "calibration.json"
    ScoreCalibration(slope=1.5, intercept=-0.25, scorer="true", relevant=20, irrelevant=30).save(path)
    content, facts = path.read_bytes(), json.loads(path.read_bytes())
    damaged = [damage_bytes(content, rng) for _ in range(200)]
    crafted = [json.dumps({**facts, name: value}).encode() for name in facts for value in VALUES]
    refused = 0
    for changed in (*damaged, *crafted):
        path.write_bytes(changed)
        try:
            calibration = ScoreCalibration.load(path)
        except InputError as error:
            assert_one_sentence(error, path)
            refused += 1
        else:
            found = calibration.probabilities(np.array([-1e30, 0.0, 1e30]))
            assert ((found >= 0) & (found <= 1)).all()
    assert refused > 150
