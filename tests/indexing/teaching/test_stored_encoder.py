"""A taught encoder in the files of an index: the same vectors again, from a folder that is deleted with the encoder."""

import gc
import json
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError, ModelNotFound
from crossknn.indexing.teaching.stored_encoder import FILES, WEIGHTS, StoredEncoder
from crossknn.indexing.teaching.student import EncoderStudent
from tests.indexing.teaching import world

pytest.importorskip("sentence_transformers")

TEXTS = ["", "ice", "a text of more than seven words, and of some letters: 水", *world.QUERIES[:5]]
ENCODERS = {
    "mean": ({}, {}),
    "cls": ({"pooling": "cls"}, {}),
    "dense": ({"dense": 16}, {}),
    "roberta": ({"family": "roberta"}, {}),
    "prompts": ({"prompts": {"query": "ice snow ", "document": "the dog "}}, {}),
    "own prompts": ({}, {"query_prompt": "ice snow ", "item_prompt": "the dog "}),
    "max tokens": ({}, {"max_tokens": 7}),
    "not normalized": ({}, {"normalize": False}),
}


def save_taught(folder: Path, encoder: SentenceEncoder) -> SentenceEncoder:
    """As at the end of a teaching."""
    EncoderStudent(encoder).finish(folder)
    return SentenceEncoder(folder, device="cpu", normalize=encoder.normalize)


def store(encoder: SentenceEncoder) -> StoredEncoder:
    return StoredEncoder.of(encoder, base="base")


def write(stored: StoredEncoder, folder: Path) -> dict[str, Path]:
    """The files of an index folder."""
    folder.mkdir()
    files = {name: folder / f"{Path(name).stem}-hash{Path(name).suffix}" for name in stored.files()}
    for name, write_file in stored.files().items():
        write_file(files[name])
    return files


def change_contents(path: Path, contents: dict[str, object]) -> None:
    """Change what the list of files says about some of them."""
    listed = json.loads(path.read_text())
    path.write_text(json.dumps({**listed, "contents": {**listed["contents"], **contents}}))


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> SentenceEncoder:
    folder = tmp_path_factory.mktemp("taught")
    return save_taught(folder / "taught", SentenceEncoder(world.save_encoder(folder / "tiny"), device="cpu"))


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def assert_same(found: SentenceEncoder, expected: SentenceEncoder) -> None:
    assert found.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(found.encode_queries(TEXTS), expected.encode_queries(TEXTS))
    np.testing.assert_array_equal(found.encode_items(TEXTS), expected.encode_items(TEXTS))


@pytest.mark.parametrize("name", ENCODERS)
def test_it_opens_as_it_was(tmp_path, name):
    model, settings = ENCODERS[name]
    taught = save_taught(
        tmp_path / "taught", SentenceEncoder(world.save_encoder(tmp_path / "tiny", **model), device="cpu", **settings)
    )
    stored = store(taught)
    loaded = StoredEncoder.load(write(stored, tmp_path / "index"), json.loads(json.dumps(stored.facts)))
    assert (loaded.normalize, loaded.base) == (taught.normalize, "base")
    for one in (stored, loaded):
        assert_same(one.open(device="cpu"), taught)


def test_the_embedded_encoder_can_be_stored(tmp_path):
    """It has a module without weights, and a tokenizer of 30,000 words."""
    embedded = SentenceEncoder("embedded", device="cpu")
    taught = save_taught(tmp_path / "taught", embedded)
    opened = StoredEncoder.load(write(store(taught), tmp_path / "index"), store(taught).facts).open(device="cpu")
    assert_same(opened, taught)
    np.testing.assert_allclose(opened.encode_items(TEXTS), embedded.encode_items(TEXTS), atol=2e-3)  # float16


def test_its_folder_is_deleted_with_it(taught, temporary):
    stored = store(taught)
    one, other = stored.open(device="cpu"), stored.open(device="cpu")
    assert {one.folder.parent, other.folder.parent} == {temporary}
    kept = other.folder
    del one
    gc.collect()
    assert list(temporary.iterdir()) == [kept]
    assert_same(other, taught)
    del other
    gc.collect()
    assert not list(temporary.iterdir())


def test_files_that_are_not_of_a_taught_encoder_are_refused(taught, tmp_path):
    folder = shutil.copytree(taught.folder, tmp_path / "more")
    (folder / "notes.md").write_text("A model.")
    with pytest.raises(InputError, match=r"notes\.md: a file that an index cannot hold"):
        store(SentenceEncoder(folder, device="cpu"))


def test_a_binary_file_comes_back_byte_by_byte(taught, tmp_path):
    folder = shutil.copytree(taught.folder, tmp_path / "more")
    (folder / "spm.bpe.model").write_bytes(bytes(range(256)))
    stored = store(SentenceEncoder(folder, device="cpu"))
    opened = StoredEncoder.load(write(stored, tmp_path / "index"), stored.facts).open(device="cpu")
    assert (opened.folder / "spm.bpe.model").read_bytes() == bytes(range(256))


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "HERE/evil.json",
        "1_Pooling/../../evil.json",
        "a/b/evil.json",
        "..\\evil.json",
        "C:\\evil.json",
        "model.safetensors",
        "evil.py",
        ".json",
        "",
    ],
)
def test_names_that_lead_elsewhere_are_refused(taught, tmp_path, temporary, name):
    files = write(store(taught), tmp_path / "index")
    change_contents(files[FILES], {name.replace("HERE", str(tmp_path)): "{}"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"damaged: it lists .*, which is not a file of an encoder"):
        StoredEncoder.load(files, store(taught).facts)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_without_text_is_refused(taught, tmp_path):
    files = write(store(taught), tmp_path / "index")
    change_contents(files[FILES], {"config.json": {"model_type": "bert"}})
    with pytest.raises(InputError, match="damaged"):
        StoredEncoder.load(files, store(taught).facts)


def test_modules_elsewhere_get_no_folder_there(taught, tmp_path, temporary):
    files = write(store(taught), tmp_path / "index")
    modules = json.loads(store(taught).contents["modules.json"])
    change_contents(files[FILES], {"modules.json": json.dumps([modules[0], {**modules[1], "path": "../../evil"}])})
    with pytest.raises((ModelNotFound, InputError)):
        StoredEncoder.load(files, store(taught).facts).open(device="cpu")
    gc.collect()
    assert not (tmp_path / "evil").exists()
    assert not list(temporary.iterdir())


def test_damaged_weights_do_not_open(taught, tmp_path):
    files = write(store(taught), tmp_path / "index")
    files[WEIGHTS[0]].write_bytes(files[WEIGHTS[0]].read_bytes()[:100])
    with pytest.raises(ModelNotFound, match="could not load"):
        StoredEncoder.load(files, store(taught).facts).open(device="cpu")


def test_a_pickle_is_the_same_encoder(taught):
    opened = store(taught).open(device="cpu")
    assert_same(pickle.loads(pickle.dumps(opened)), taught)


def test_an_open_encoder_needs_its_files_no_more(taught, tmp_path):
    """As when the index that it came from is deleted or replaced."""
    files = write(store(taught), tmp_path / "index")
    opened = StoredEncoder.load(files, store(taught).facts).open(device="cpu")
    shutil.rmtree(tmp_path / "index")
    assert_same(opened, taught)
