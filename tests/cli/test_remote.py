"""`--scorer URL` in every command that scores: the same as the model itself, and nothing is paid twice."""

import json
import re

import pytest

import crossknn as ck
from crossknn.cli.options import default_work_dir
from crossknn.scorers.remote import client
from tests.cli.test_cli import as_json, fail, invoke
from tests.evaluate.folders import write_beir
from tests.scorers import tiny
from tests.scorers.remote.completion_server import CompletionServer, log_odds
from tests.scorers.remote.rerank_server import answer, lengths, refuse, running, serving

TEXTS = [*tiny.SENTENCES, *(tiny.words(seed, 12) for seed in range(34))]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(client, "INITIAL_BACKOFF", 0.01)
    monkeypatch.delenv("CROSSKNN_API_KEY", raising=False)


@pytest.fixture
def server():
    with serving("vllm", key="sk-secret-0123456789") as one:
        yield one


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{row}", "text": text} for row, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("CROSSKNN_API_KEY", "sk-secret-0123456789")


def count_pairs(server):
    return sum(len(body["documents"]) for body in server.bodies)


def test_score(server, key):
    found = as_json(invoke("score", "ice", "snow", "water", "--scorer", f"{server.url}#org/a-model", "--json"))
    assert [line["score"] for line in found] == pytest.approx(lengths("ice", ["snow", "water"]), rel=1e-5)
    assert server.bodies[0]["model"] == "org/a-model"


def test_search_equals_the_library(server, key, corpus, tmp_path):
    command = ["search", corpus, "ice and snow", "-k", 3, "--budget", 20, "--encoder", "none", "--json"]
    found = as_json(invoke(*command, "--scorer", server.url, "--cache", tmp_path / "scores.db"))
    known = ck.function_scorer(lambda pairs: [lengths(query, [item])[0] for query, item in pairs])
    wanted = ck.Searcher(ck.Items.from_jsonl(corpus), scorer=known).search("ice and snow", k=3, budget=20)
    assert [hit["id"] for hit in found[0]["hits"]] == wanted.ids
    assert count_pairs(server) == 20
    invoke(*command, "--scorer", server.url, "--cache", tmp_path / "scores.db")
    assert count_pairs(server) == 20


def test_a_build_that_fails_goes_on_where_it_was_and_its_index_is_searched(
    server, key, corpus, tmp_path, monkeypatch, capsys
):
    (tmp_path / "train.txt").write_text("\n".join(tiny.words(1000 + seed, 5) for seed in range(20)))
    folder = tmp_path / "built.ck"
    command = ["build", corpus, "-o", folder, "--queries", tmp_path / "train.txt", "--scorer", server.url]
    command += ["--encoder", "embedded", "--per-item", 4]
    server.faults = [answer, answer, refuse(403, b"no more today")]
    code, message = fail(monkeypatch, capsys, *command)
    assert code == 1
    assert "responded with 403: no more today." in message
    paid = int(re.search(r"(\d+) of 160 pairs of this call were scored", message)[1])
    assert 0 < paid < 160
    assert (default_work_dir(folder) / "server-scores.db").exists()
    server.bodies.clear()
    invoke(*command)
    assert count_pairs(server) == 160 - paid
    found = as_json(invoke("search", folder, "ice", "--scorer", server.url, "--encoder", "embedded", "--json"))
    assert found[0]["calls"] == len(TEXTS)


def test_bench_scores_a_set_once_and_measures_the_speed_of_the_server_itself(server, key, tmp_path):
    write_beir(tmp_path / "tiny", items=60)
    command = ["bench", "set", tmp_path / "tiny", "--scorer", server.url, "--encoder", "embedded", "--budgets", "10"]
    command += ["--k", "1,5", "--strategies", "rerank:retriever=bm25", "--json", tmp_path / "out.json"]
    server.delay = 0.05
    invoke(*command)
    assert json.loads((tmp_path / "out.json").read_text())["records"][0]["seconds"]["scorer"] > 0.03
    assert {(body["query"], len(body["documents"])) for body in server.bodies} > {(query_of(0), 60), (query_of(5), 60)}
    paid = count_pairs(server)
    invoke(*command)
    assert count_pairs(server) - paid == 300


def query_of(row):
    """A query of the test split that `write_beir` writes."""
    return f"{' '.join(tiny.words(row, 10).split()[:4])} test"


def test_a_spend_limit_holds_in_a_command(server, key, monkeypatch, capsys):
    command = ["score", "ice", "snow", "water", "--scorer", server.url, "--spend-limit", 1]
    code, message = fail(monkeypatch, capsys, *command)
    assert (code, len(server.bodies)) == (2, 0)
    assert "--spend-limit needs --price-per-1000 or --price-per-million-tokens" in message
    for price in ("--price-per-1000", "--price-per-million-tokens"):
        code, message = fail(monkeypatch, capsys, *command, price, 1e6)
        assert (code, len(server.bodies)) == (1, 0)
        assert "--spend-limit is 1 and 0 is spent" in message
    invoke(*command, "--price-per-1000", 0.5)
    assert count_pairs(server) == 2
    code, message = fail(monkeypatch, capsys, "score", "ice", "snow", "--scorer", "embedded", "--price-per-1000", 1)
    assert code == 2
    assert "--price-per-1000 applies to servers only, and embedded runs here" in message


def test_long_items_and_refused_pairs_are_handled_as_the_options_say(server, key, monkeypatch, capsys):
    command = ["score", "ice", "snow and water", "--scorer", server.url]
    invoke(*command, "--max-item-chars", 4)
    assert server.bodies[-1]["documents"] == ["snow"]
    invoke(*command, "--max-item-chars", 8, "--long-items", "max")
    assert server.bodies[-1]["documents"] == ["snow and", " and wat", "nd water"]
    code, message = fail(monkeypatch, capsys, *command, "--long-items", "max")
    assert code == 2
    assert "--long-items 'max' needs --max-item-chars" in message
    server.faults = [refuse(422), refuse(422)]  # of both items, then of one of them
    found = as_json(invoke(*command, "lake", "--fallback-score", -9.5, "--json"))
    assert sorted(line["score"] == -9.5 for line in found) == [False, True]
    local = ["score", "ice", "snow", "--scorer", "embedded"]
    invoke(*local, "--long-items", "max")
    for option in (["--max-item-chars", 9], ["--fallback-score", 1]):
        code, message = fail(monkeypatch, capsys, *local, *option)
        assert code == 2
        assert f"{option[0]} applies to servers only" in message


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_language_model_is_a_judge_with_a_prompt(path, monkeypatch, capsys):
    with running(CompletionServer(path)) as judge:
        command = ["score", "ice", "snow", "--scorer", f"{judge.url}#a-model", "--json"]
        options = ["--template", "{instruction} {query}: {item}?", "--instruction", "Say", "--true-token", "yes"]
        found = as_json(invoke(*command, *options, "--false-token", "no", "--price-per-million-tokens", 1))
        assert judge.prompts == ["Say ice: snow?"]
        assert found[0]["score"] == pytest.approx(log_odds("Say ice: snow?"), abs=1e-4)
        assert judge.bodies[0]["model"] == "a-model"
        code, message = fail(monkeypatch, capsys, *command, "--template", "{query}")
        assert code == 2
        assert "--template must contain {item} exactly once" in message


def test_errors_are_one_sentence_without_the_key(server, key, monkeypatch, capsys):
    server.key = "another"
    code, message = fail(monkeypatch, capsys, "score", "ice", "snow", "--scorer", server.url)
    assert code == 1
    assert message.startswith(f"error: {server.url} responded with 401: ")
    assert "sk-secret" not in message
    code, message = fail(monkeypatch, capsys, "score", "ice", "snow", "--scorer", server.url, "--dtype", "float16")
    assert (code, len(server.bodies)) == (2, 1)
    assert "applies to local models only" in message
    code, message = fail(monkeypatch, capsys, "score", "ice", "snow", "--scorer", "http://localhost:port/rerank")
    assert code == 2
    assert "must be the URL of a rerank endpoint" in message
