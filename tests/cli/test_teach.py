"""Teaching on the command line: what it says, what it refuses, and the index it makes, used without --encoder."""

import json
import re
import shutil
from pathlib import Path

import pytest

import crossknn as ck
from crossknn.cli.index import BuildOptions
from crossknn.cli.options import default_work_dir
from tests.cli.test_cli import as_json, fail, invoke
from tests.indexing.teaching import builds, world

pytest.importorskip("sentence_transformers")

LISTS = 8  # so few that none is held out: what is taught is used
QUERY = builds.NEW_QUERIES[0]


def write_corpus(path: Path, items: ck.Items) -> None:
    rows = zip(items.ids, items.texts, strict=True)
    path.write_text("".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in rows))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with corpus.jsonl, more.jsonl, train.txt and an encoder."""
    folder = tmp_path_factory.mktemp("files")
    write_corpus(folder / "corpus.jsonl", builds.ITEMS)
    write_corpus(folder / "more.jsonl", builds.NEW_ITEMS)
    (folder / "train.txt").write_text("\n".join(builds.QUERIES))
    world.save_encoder(folder / "encoder")
    return folder


@pytest.fixture(scope="module")
def scorer(bert_folder) -> list[object]:
    return ["--scorer", bert_folder, "--device", "cpu"]


@pytest.fixture(scope="module")
def corpus(files, scorer) -> list[object]:
    """The corpus, train queries and models, as arguments."""
    return [files / "corpus.jsonl", "--queries", files / "train.txt", *scorer, "--encoder", files / "encoder"]


@pytest.fixture(scope="module")
def built(files, corpus) -> dict[str, object]:
    """What `crossknn build` said, as JSON, and its index."""
    (said,) = as_json(invoke("build", *corpus, "-o", files / "taught.ck", "--teach-lists", LISTS, "--json"))
    return said


@pytest.fixture
def index(built, tmp_path) -> Path:
    """A copy of the index, to be changed."""
    return Path(shutil.copytree(built["folder"], tmp_path / "copy.ck"))


# Building


def test_a_build_teaches_the_encoder(built, files):
    loaded = ck.Index.load(built["folder"])
    assert built["taught"] is loaded.is_taught is True
    assert built["encoder"] == loaded.encoder != ck.SentenceEncoder(files / "encoder", device="cpu").fingerprint
    assert built["vectors"] == "encoder"
    teaching = built["report"]["teaching"]
    assert (teaching["lists"], teaching["helped"]) == (LISTS, True)
    assert teaching["calls"] == built["report"]["calls"] == built["report"]["calls_made"]


def test_a_build_says_what_it_taught_and_scores_nothing_again(built, corpus, tmp_path):
    shutil.copytree(built["work_dir"], tmp_path / "new.ck.work")
    result = invoke("build", *corpus, "-o", tmp_path / "new.ck", "--teach", "--teach-lists", LISTS)
    assert f"encoder: taught by {LISTS} lists" in result.stdout
    assert "0 of them in this run" in result.stdout
    assert "teaching: " in result.stderr
    assert ck.Index.load(tmp_path / "new.ck").encoder == built["encoder"]


@pytest.mark.parametrize("options", [["--teach"], ["--teach", "--teach-lists", LISTS]], ids=["default", "few lists"])
def test_a_build_says_how_long_the_teaching_takes(corpus, tmp_path, options):
    result = invoke("build", *corpus, "-o", tmp_path / "new.ck", *options)
    assert re.search(r"Teaching the encoder takes about [\d.]+ \w+ on this CPU\.", result.stderr)
    assert ck.Index.load(tmp_path / "new.ck").report.teaching is not None


def test_a_build_without_teaching_says_what_it_would_bring_and_cost(corpus, tmp_path):
    result = invoke("build", *corpus, "-o", tmp_path / "new.ck")
    assert not ck.Index.load(tmp_path / "new.ck").is_taught
    said = " ".join(result.stderr.split())
    assert "The encoder stays as it came. --teach would train it on cross-encoder scores" in said
    assert re.search(r"in about [\d.]+ \w+ on this CPU, or in minutes on a GPU", said)
    assert "--teach" not in result.stdout


@pytest.mark.parametrize("options", [["--no-teach"], ["--factors", "none"], ["--per-item", "4"]], ids=" ".join)
def test_a_build_that_chose_otherwise_is_not_told(corpus, tmp_path, options):
    result = invoke("build", *corpus, "-o", tmp_path / "new.ck", *options)
    assert "--teach" not in result.stderr
    assert not ck.Index.load(tmp_path / "new.ck").is_taught


def test_options_set_the_teaching(files):
    encoder = ck.SentenceEncoder(files / "encoder", device="cpu")
    (teaching,) = BuildOptions(teach_lists=12, teach_seconds=90.0, seed=3).teaching(builds.ITEMS, encoder).values()
    assert (teaching.lists, teaching.time_limit, teaching.seed, teaching.device) == (12, 90.0, 3, "cpu")
    (teaching,) = BuildOptions(teach_seconds=90.0).teaching(builds.ITEMS, encoder).values()
    assert (teaching.lists, teaching.time_limit) == (200, 90.0)
    assert BuildOptions(teach=True).teaching(builds.ITEMS, encoder) == {}


def test_a_time_limit_is_taken(corpus, tmp_path):
    options = ["--teach-lists", LISTS, "--teach-seconds", 60, "--json"]
    (said,) = as_json(invoke("build", *corpus, "-o", tmp_path / "new.ck", *options))
    assert said["taught"]
    assert said["report"]["teaching"]["training_seconds"] < 60


def test_a_plan_lists_the_taught_encoder(corpus):
    ways = [cost["way"] for cost in as_json(invoke("plan", *corpus, "--json"))]
    assert ways[0].startswith("transductive")
    assert ways[1] == "taught encoder, 200 lists"
    first, second = as_json(invoke("plan", *corpus, "--teach-lists", LISTS, "--prior", "--json"))[:2]
    assert (first["way"], second["way"]) == (f"taught encoder and prior, {LISTS} lists", "taught encoder, 200 lists")
    assert 0 < first["calls"] < second["calls"]
    assert 0 < first["factorizing"] < second["factorizing"]
    assert first["at_most"]
    assert "taught encoder, 200 lists" in invoke("plan", *corpus).stdout


# Using the index


def test_a_search_needs_no_encoder(built, scorer, bert_folder):
    command = ["search", built["folder"], QUERY, "-k", 3, "--budget", 20, *scorer, "--json"]
    (found,) = as_json(invoke(*command))
    searcher = ck.Searcher(ck.Index.load(built["folder"]), scorer=ck.CrossEncoder(bert_folder, device="cpu"))
    assert [hit["id"] for hit in found["hits"]] == searcher.search(QUERY, k=3, budget=20).ids
    (near,) = as_json(invoke(*command, "-k", 8, "--budget", 8, "--retriever", "dense"))
    taught = ck.Index.load(built["folder"]).open_encoder(device="cpu")
    assert {hit["id"] for hit in near["hits"]} == builds.nearest(taught, QUERY, 8)


def test_add_needs_no_encoder(built, index, files, scorer):
    result = invoke("add", index, files / "more.jsonl", *scorer)
    assert "added 5 items with 0 calls: 65 items now" in result.stdout
    loaded = ck.Index.load(index)
    assert (loaded.encoder, loaded.is_taught) == (built["encoder"], True)
    taught = loaded.open_encoder(device="cpu")
    assert loaded.vectors[60:] == pytest.approx(taught.encode_items(builds.NEW_ITEMS.texts), abs=1e-3)
    assert len(as_json(invoke("search", index, QUERY, "--budget", 20, *scorer, "--json"))[0]["hits"]) == 10


def test_remove_and_verify(built, index, scorer):
    assert "59 items now" in invoke("remove", index, "d0").stdout
    assert "intact" in invoke("verify", index).stdout
    assert ck.Index.load(index).encoder == built["encoder"]
    assert invoke("search", index, QUERY, "--budget", 20, *scorer)


def test_info_says_that_it_is_taught(built):
    (facts,) = as_json(invoke("info", built["folder"], "--json"))
    assert facts["taught"] is True
    assert facts["report"]["teaching"]["lists"] == LISTS
    shown = invoke("info", built["folder"]).stdout
    assert f"taught by {LISTS} lists" in shown
    assert built["encoder"] in shown


def test_info_answers_whether_it_is_taught_with_a_word(built):
    assert re.search(r"^taught +(True|yes)", invoke("info", built["folder"]).stdout, re.MULTILINE)


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no-teach", "--teach-lists", 8], "--teach-lists and --teach-seconds need --teach"),
        (["--no-teach", "--teach-seconds", 8], "--teach-lists and --teach-seconds need --teach"),
        (["--teach", "--worker", "1/2"], "teaching"),
        (["--teach-lists", 8, "--worker", "1/2"], "teaching"),
        (["--teach", "--per-item", 4], "--teach chooses the pairs to score: leave out --sampling"),
        (["--teach", "--factors", "cur"], "--teach chooses the pairs to score"),
        (["--teach-lists", 0], "Invalid value for '--teach-lists'"),
        (["--teach-seconds", 0], "Invalid value for '--teach-seconds'"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_build_that_cannot_teach_is_refused(corpus, tmp_path, monkeypatch, capsys, options, message):
    code, said = fail(monkeypatch, capsys, "build", *corpus, "-o", tmp_path / "new.ck", *options)
    assert code == 2
    assert message in said
    assert not (tmp_path / "new.ck").exists()
    assert not list(default_work_dir(tmp_path / "new.ck").glob("**/*.parquet"))  # nothing was scored


def test_workers_are_told_which_option_to_leave_out(corpus, tmp_path, monkeypatch, capsys):
    _, said = fail(monkeypatch, capsys, "build", *corpus, "-o", tmp_path / "new.ck", "--teach", "--worker", "1/2")
    assert "--worker" in said


@pytest.mark.parametrize("command", ["search", "add", "serve"])
def test_no_encoder_is_refused(index, files, scorer, monkeypatch, capsys, command):
    arguments = {"search": [QUERY], "add": [files / "more.jsonl"], "serve": ["--port", 0]}[command]
    code, said = fail(monkeypatch, capsys, command, index, *arguments, *scorer, "--encoder", "none")
    assert code == 2
    search = "--encoder none does not apply to an index with an encoder of its own. Leave it out."
    assert ("--encoder must be" if command == "add" else search) in said


@pytest.mark.parametrize("command", ["search", "add"])
def test_another_encoder_is_refused(index, files, scorer, monkeypatch, capsys, command):
    arguments = {"search": [QUERY], "add": [files / "more.jsonl"]}[command]
    code, said = fail(monkeypatch, capsys, command, index, *arguments, *scorer, "--encoder", "embedded")
    assert code == 2
    assert "the index was built with another encoder" in said
    assert "Leave it out: the index has its own" in said


def test_a_damaged_encoder_ends_with_exit_code_2(index, scorer, monkeypatch, capsys):
    (texts,) = index.glob("encoder-*.json")
    texts.write_bytes(b"[" + texts.read_bytes()[1:])
    for command in (["verify", index], ["search", index, QUERY, *scorer]):
        code, said = fail(monkeypatch, capsys, *command)
        assert code == 2
        assert "damaged" in said
