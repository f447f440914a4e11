"""`ck.open`: the models that an index remembers, others in their place, and what a crafted index may not do."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import crossknn as ck
from crossknn.errors import CrossKnnError, InputError, ModelNotFound
from crossknn.scorers.remote import client
from tests.indexing.test_crafted_index import rewrite
from tests.scorers import tiny
from tests.scorers.remote.completion_server import CompletionServer
from tests.scorers.remote.rerank_server import running, serving

ITEMS = ck.Items([*tiny.SENTENCES, *(tiny.words(seed, 12) for seed in range(24))])
TRAIN = [tiny.words(1000 + seed, 5) for seed in range(6)]
KEY = "sk-secret-0123456789"


def build(scorer, encoder=None, **options):
    settings = {"queries": TRAIN, "factors": None, "prior": False, **options}
    return ck.Index.build(ITEMS, scorer=scorer, encoder=encoder or ck.SentenceEncoder("embedded"), **settings)


def search(searcher):
    return [(hit.id, round(hit.score, 4)) for hit in searcher.search(TRAIN[0], k=3, budget=8)]


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setattr(client, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setenv("CROSSKNN_API_KEY", KEY)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save_cross_encoder(tmp_path_factory.mktemp("model") / "ce", "bert")


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """An index of a local cross-encoder, and what a searcher finds in it."""
    folder = tmp_path_factory.mktemp("saved") / "corpus.ck"
    scorer, encoder = ck.CrossEncoder(model, max_item_tokens=6), ck.SentenceEncoder("embedded", query_prompt="query: ")
    index = build(scorer, encoder)
    index.save(folder)
    return folder, search(ck.Searcher(index, scorer=scorer, encoder=encoder))


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "corpus.ck")


@pytest.fixture
def server():
    with serving("vllm", key=KEY) as one:
        yield one


def test_the_packaged_models_open_in_a_new_process(tmp_path):
    scorer = ck.CrossEncoder("embedded")
    index = build(scorer)
    index.save(tmp_path / "corpus.ck")
    code = f"import crossknn as ck; print(ck.open('corpus.ck').search({TRAIN[0]!r}, k=3, budget=8).ids)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    searcher = ck.Searcher(index, scorer=scorer, encoder=ck.SentenceEncoder("embedded"))
    assert done.stdout.strip() == str(searcher.search(TRAIN[0], k=3, budget=8).ids)


def test_settings_of_both_models_are_remembered(saved):
    folder, found = saved
    searcher = ck.open(folder, verify=True)
    assert search(searcher) == found
    assert searcher.scorer.truncation.max_item_tokens == 6


def test_every_kind_of_local_model_is_opened_with_its_settings(model, encoder_folder, tmp_path):
    emb = ck.EmbCrossEncoder(encoder_folder, query_pooling="mean", item_pooling="mean", long_items="max", stride=5)
    prompted = ck.CrossEncoder(model, template="{item} for {query}, {instruction}", instruction="to freeze")
    for scorer in (emb, prompted, ck.CrossEncoder(model, dtype="int8"), ck.Cached(emb, tmp_path / "scores.db")):
        build(scorer).save(tmp_path / "corpus.ck")
        opened = ck.open(tmp_path / "corpus.ck").scorer
        assert opened.fingerprint == scorer.fingerprint


def test_a_relative_folder_is_found_from_any_working_directory(model, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    build(ck.CrossEncoder("ce")).save(tmp_path / "corpus.ck")
    monkeypatch.chdir(tmp_path)
    assert len(search(ck.open("corpus.ck"))) == 3


def test_models_that_are_given_take_the_place_of_those_remembered(saved, model, tmp_path):
    folder, found = saved
    moved = shutil.copytree(model, tmp_path / "moved")
    assert search(ck.open(folder, scorer=str(moved), device="cpu")) == found  # with the settings of the index
    given = ck.SentenceEncoder("embedded", query_prompt="query: ")
    assert search(ck.open(folder, encoder=given)) == found
    with pytest.raises(InputError, match="another encoder"):
        ck.open(folder, encoder=ck.SentenceEncoder("embedded"))
    own = ck.function_scorer(lambda pairs: [len(item) for _, item in pairs])
    with pytest.raises(InputError, match="another scorer"):
        ck.open(folder, scorer=own)
    assert ck.open(folder, scorer=own, check_models=False).scorer is own
    other = ck.open(folder, scorer="embedded", check_models=False).scorer
    assert other.fingerprint == ck.CrossEncoder("embedded").fingerprint  # without the settings of the index


def test_retrievers_and_other_arguments_reach_the_searcher(saved):
    own = ck.Given({TRAIN[0]: [ITEMS.ids[5]]}, name="mine")
    found = ck.open(saved[0], retrievers=[own]).search(TRAIN[0], k=1, strategy=ck.Rerank(1, retriever="mine"))
    assert found.ids == [ITEMS.ids[5]]


def test_models_stay_remembered_when_an_index_changes(folder, saved):
    searcher = ck.open(folder)
    models = {"scorer": searcher.scorer, "encoder": searcher.encoder}
    changed = searcher.index.add(ck.Items(["a new item"], ids=["new"]), **models).remove(["new"])
    changed.save(folder)
    assert search(ck.open(folder)) == saved[1]


def test_a_model_that_has_moved_is_remembered_where_it_is_when_items_are_added(folder, model, tmp_path):
    moved = shutil.copytree(model, tmp_path / "moved")
    searcher = ck.open(folder, scorer=str(moved))
    models = {"scorer": searcher.scorer, "encoder": searcher.encoder}
    searcher.index.add(ck.Items(["a new item"], ids=["new"]), **models).save(folder)
    assert ck.Index.load(folder).scorer_spec.name == str(moved)


def test_functions_have_to_be_given(tmp_path):
    scorer = ck.function_scorer(lambda pairs: [len(item) for _, item in pairs], fingerprint="lengths")
    encoder = ck.function_encoder(lambda texts: [[len(text), 1.0] for text in texts])
    build(scorer, encoder).save(tmp_path / "corpus.ck")
    with pytest.raises(InputError, match=r"does not know its scorer by name.*'lengths'.*Give `scorer`"):
        ck.open(tmp_path / "corpus.ck")
    with pytest.raises(InputError, match=r"encoder by name.*unnamed function.*Give `encoder`"):
        ck.open(tmp_path / "corpus.ck", scorer=scorer)
    assert len(search(ck.open(tmp_path / "corpus.ck", scorer=scorer, encoder=encoder, check_models=False))) == 3


def test_a_missing_model_is_named_with_what_to_do(saved, tmp_path):
    folder = shutil.copytree(saved[0], tmp_path / "corpus.ck")
    change(folder, "scorer", name=str(tmp_path / "gone"))
    with pytest.raises(ModelNotFound, match=r"the scorer of the index, CrossEncoder.*gone.*give `scorer` its folder"):
        ck.open(folder)
    change(folder, "scorer", name="someone/a-model-of-nobody")
    with pytest.raises(ModelNotFound, match=r"a-model-of-nobody' is neither a folder nor .* downloaded from the hub"):
        ck.open(folder)


def test_a_name_that_is_another_model_by_now_is_refused(folder, tmp_path):
    other = tiny.save_cross_encoder(tmp_path / "other", "roberta")
    change(folder, "scorer", name=str(other))
    with pytest.raises(InputError, match="built with another scorer"):
        ck.open(folder)


# Servers


def test_a_server_is_called_only_where_the_user_names_it(server, tmp_path):
    scorer = ck.RemoteScorer(f"{server.url}?token=private-123456", model="org/a-model", api_key=KEY, max_item_chars=9)
    build(scorer).save(tmp_path / "corpus.ck")
    text = (tmp_path / "corpus.ck" / "index.json").read_text()
    assert "private-123456" not in text
    assert KEY not in text
    server.bodies.clear()
    with pytest.raises(InputError, match=f"{server.url}#org/a-model.*if you trust it: give `scorer`"):
        ck.open(tmp_path / "corpus.ck")
    for other in ("https://127.0.0.1:1/rerank", f"{server.url}#another"):
        with pytest.raises(InputError, match="another scorer"):
            ck.open(tmp_path / "corpus.ck", scorer=other)
    assert not server.bodies
    for name in (f"{server.url}?token=private-123456", f"{server.url}?token=private-123456#org/a-model"):
        opened = ck.open(tmp_path / "corpus.ck", scorer=name)
        assert opened.scorer.fingerprint == scorer.fingerprint
        assert len(search(opened)) == 3
    assert all(len(text) <= 9 for body in server.bodies for text in body["documents"])


def test_headers_and_fields_are_not_kept_so_that_the_scorer_has_to_be_given(server, tmp_path):
    headers, fields = {"X-Key": "another-secret"}, {"truncate_prompt_tokens": 64}
    scorer = ck.RemoteScorer(server.url, headers=headers, fields=fields)
    build(scorer).save(tmp_path / "corpus.ck")
    assert "another-secret" not in (tmp_path / "corpus.ck" / "index.json").read_text()
    with pytest.raises(InputError, match="its own headers and fields, which are not kept"):
        ck.open(tmp_path / "corpus.ck")
    assert len(search(ck.open(tmp_path / "corpus.ck", scorer=scorer))) == 3


def test_a_language_model_behind_a_server_keeps_its_prompt(tmp_path):
    with running(CompletionServer()) as one:
        settings = {"template": "{query} or {item}?", "top_logprobs": 7, "fallback_score": -9}
        scorer = ck.LogprobScorer(one.url, **settings, fingerprint="judge-v1")
        build(scorer).save(tmp_path / "corpus.ck")
        with pytest.raises(InputError, match="if you trust it"):
            ck.open(tmp_path / "corpus.ck")
        opened = ck.open(tmp_path / "corpus.ck", scorer=one.url).scorer
        assert opened.fingerprint == "judge-v1"
        assert opened.spec == scorer.spec


# Crafted indexes


def change(folder, role, **values):
    """Write the index again with other values in the spec of a model, and right checksums."""
    rewrite(folder, facts=lambda facts: facts["models"][role].update(values))


def test_a_crafted_index_cannot_send_anything_to_its_server(folder, server):
    spec = {"kind": "RemoteScorer", "name": server.url, "settings": {"dialect": "vllm"}, "omitted": []}
    change(folder, "scorer", **spec)
    with pytest.raises(InputError, match="if you trust it"):
        ck.open(folder)
    change(folder, "scorer", kind="CrossEncoder", settings={})
    with pytest.raises(CrossKnnError, match="no such folder"):
        ck.open(folder)
    assert not server.bodies


@pytest.mark.parametrize(
    ("role", "values"),
    [
        ("scorer", {"kind": "SentenceEncoder"}),
        ("scorer", {"kind": "os.system"}),
        ("scorer", {"kind": 3}),
        ("encoder", {"kind": "RemoteScorer"}),
        ("encoder", {"name": ""}),
        ("encoder", {"name": "a\nb"}),
        ("encoder", {"name": "\x1b[2J"}),
        ("scorer", {"name": "m" * 5_000}),
        ("scorer", {"name": None}),
        ("scorer", {"settings": {"trust_remote_code": True}}),
        ("scorer", {"settings": {"max_length": "512"}}),
        ("scorer", {"settings": {"dtype": ["float32"]}}),
        ("scorer", {"settings": {"label": True}}),
        ("scorer", {"settings": []}),
        ("encoder", {"settings": {"normalize": 1}}),
        ("encoder", {"settings": {"device": "cuda"}}),
        ("scorer", {"kind": "RemoteScorer", "name": "http://user:word@127.0.0.1/rerank", "settings": {}}),
        ("scorer", {"kind": "RemoteScorer", "name": "http://127.0.0.1/rerank?key=1", "settings": {}}),
        ("scorer", {"kind": "RemoteScorer", "name": "file:///etc/passwd", "settings": {}}),
        ("scorer", {"kind": "RemoteScorer", "name": "http://127.0.0.1/rerank", "settings": {"api_key": "x"}}),
        ("scorer", {"omitted": ["head ers"]}),
        ("scorer", {"omitted": "headers"}),
        ("scorer", {"more": 1}),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else value,
)
def test_specs_that_no_index_would_have_are_refused(folder, role, values):
    change(folder, role, **values)
    with pytest.raises(InputError, match=f"{folder}: damaged: .*models.{role}"):
        ck.open(folder)


@pytest.mark.parametrize("models", [[], "embedded", {"other": None}, {"scorer": 3}])
def test_models_that_are_no_models_are_refused(folder, models):
    rewrite(folder, facts=lambda facts: facts.update(models=models))
    with pytest.raises(InputError, match=f"{folder}: damaged: .*models"):
        ck.open(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "pickle"},
        {"max_length": -3},
        {"max_length": 10**15},
        {"max_item_tokens": 0},
        {"long_items": "all"},
        {"stride": 4},
        {"label": 99},
        {"label": -1},
        {"template": "{query.__class__}"},
        {"template": ""},
        {"instruction": "x"},
        {"true_token": -7},
    ],
    ids=str,
)
def test_settings_that_the_model_does_not_take_are_refused(folder, settings):
    change(folder, "scorer", settings=settings)
    with pytest.raises(CrossKnnError):
        ck.open(folder)


def test_an_index_without_remembered_models_says_what_to_give(folder, saved):
    rewrite(folder, facts=lambda facts: facts.pop("models"))
    with pytest.raises(InputError, match="does not know its scorer by name"):
        ck.open(folder)
