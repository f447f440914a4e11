"""`crossknn serve` as a user runs it: with a real model it serves, and what it cannot do it says in one sentence."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict

import httpx
import pytest

from crossknn.cli import main
from crossknn.cli.serve import serve
from crossknn.serve.server import bind
from crossknn.serve.settings import Settings
from tests.scorers import tiny


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{row}", "text": tiny.words(row, 12)} for row in range(40)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def fail(monkeypatch, capsys, *arguments):
    """The exit code and the message of a command that ends in an error."""
    monkeypatch.setattr(sys, "argv", ["crossknn", "serve", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    message = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in message
    return end.value.code, message


@contextmanager
def serving(corpus, *options):
    """A server in a process of its own, its URL, and what it said when it started."""
    command = ["-m", "crossknn", "serve", corpus, "--encoder", "none", "--port", "0", *options]
    environment = {**os.environ, "COLUMNS": "300"}
    environment.pop("CROSSKNN_API_KEY", None)
    process = subprocess.Popen([sys.executable, *map(str, command)], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        lines = []
        while "serving" not in "".join(lines[-1:]):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        yield process, re.search(r"serving 40 items at (http://[\d.]+:\d+)", lines[-1])[1], lines
    finally:
        process.kill()
        process.communicate()


def test_a_model_is_served_until_sigterm(corpus, bert_folder, tmp_path):
    limits = ["--max-budget", "30", "--max-k", "5", "--cache", tmp_path / "scores.db", "--host", "0.0.0.0"]
    with serving(corpus, "--scorer", bert_folder, *limits) as (process, url, lines):
        assert url.startswith("http://0.0.0.0:")
        assert any("warning" in line and "--api-key" in line for line in lines)
        answer = httpx.post(f"{url}/search", json={"query": "ice"}, headers={"x-request-id": "mine"}).json()
        assert answer["strategy"] == "Rerank(budget=30)"
        assert len(answer["results"][0]["hits"]) == 5
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=20)[1]
        assert process.returncode == 0
        (line,) = map(json.loads, rest.splitlines())
        assert (line["request_id"], line["status"], line["calls"]) == ("mine", 200, 30)


def test_what_cannot_be_served_is_said(monkeypatch, capsys, corpus, tmp_path):
    assert (
        fail(monkeypatch, capsys, tmp_path / "none.jsonl", "--scorer", tmp_path, "--encoder", "none", "--port", 0)[0]
        == 2
    )
    code, message = fail(monkeypatch, capsys)
    assert (code, "Give either a corpus or an index to serve, or --example" in message) == (2, True)
    code, message = fail(monkeypatch, capsys, corpus, "--example", "--port", 0)
    assert (code, "or --example" in message) == (2, True)
    code, message = fail(monkeypatch, capsys, corpus, "--any-model", "--port", 0)
    assert (code, "--any-model applies to indexes only" in message) == (2, True)
    code, message = fail(monkeypatch, capsys, corpus, "--poll", 0)
    assert (code, "poll must be" in message) == (2, True)
    code, message = fail(monkeypatch, capsys, corpus, "--api-key", "two words")
    assert (code, "without spaces" in message) == (2, True)


def test_two_servers_cannot_have_one_port(monkeypatch, capsys, corpus, tmp_path):
    """The second is refused before it loads its models, even while the first one still loads its own."""
    with bind("127.0.0.1", 0) as taken:
        code, message = fail(monkeypatch, capsys, corpus, "--scorer", tmp_path, "--port", taken.getsockname()[1])
        assert (code, "Address already in use" in message) == (2, True)


@pytest.mark.parametrize(
    ("options", "others"),
    [
        ([], []),
        (["--allow-host", "search.example"], ["search.example"]),
        (["--api-key", "s3cret"], ["search.example", "evil.example"]),
        (["--host", "0.0.0.0"], ["search.example", "evil.example"]),
    ],
    ids=" ".join,
)
def test_on_loopback_without_a_key_it_answers_to_its_own_names(corpus, options, others):
    """To its own only: else a page on the web could reach it by a name that resolves to this machine."""
    with serving(corpus, "--scorer", "http://127.0.0.1:9/rerank", *options) as (_, url, _):
        for name in ("localhost", "127.0.0.1", "[::1]", "search.example", "evil.example"):
            status = httpx.get(f"{url}/healthz", headers={"Host": name}).status_code
            assert status == (200 if name in others or "example" not in name else 421), name


def test_a_missing_extra_is_named(monkeypatch, capsys, corpus):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, message = fail(monkeypatch, capsys, corpus)
    assert (code, message.endswith("pip install 'crossknn[serve]'")) == (2, True)


def test_the_defaults_of_options_are_those_of_the_settings():
    options = {name: one.default for name, one in inspect.signature(serve).parameters.items()}
    settings = asdict(Settings())
    assert settings.pop("hosts") is None  # set by the command, from --host and --allow-host
    settings |= settings.pop("limits")
    assert {name: options[name] for name in settings} == settings
