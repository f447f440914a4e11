"""Python, the command line and the service treat k, budget, strategy, rounds and thresholds alike."""

import json
import re

import httpx
import pytest
from typer.testing import CliRunner

import crossknn as ck
from crossknn.cli import app
from crossknn.serve.service import Service
from crossknn.strategies.registry import make_strategy
from tests.scorers import tiny
from tests.serve.servers import serving

TEXTS = [*tiny.SENTENCES, *(tiny.words(seed, 12) for seed in range(34))]
QUERY = "ice and snow"


@pytest.fixture(scope="module")
def world(tmp_path_factory, bert_folder, encoder_folder):
    folder = tmp_path_factory.mktemp("defaults")
    (folder / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    items = ck.Items.from_lines(folder / "corpus.txt")
    models = {"scorer": ck.CrossEncoder(bert_folder), "encoder": ck.SentenceEncoder(encoder_folder)}
    service = Service(items, **models)
    with serving(service) as url:
        yield ck.Searcher(items, **models), url, folder / "corpus.txt", bert_folder, encoder_folder
    service.close()


def ask_python(world, options):
    options = dict(options)
    if (name := options.pop("strategy", None)) is not None:
        options["strategy"] = make_strategy(name, budget=options.pop("budget", None))
    try:
        return world[0].search(QUERY, **options).to_dict()
    except ck.InputError as error:
        return str(error)


def ask_service(world, options):
    response = httpx.post(f"{world[1]}/search", json={"query": QUERY, **options}, timeout=60)
    answer = response.json()
    return answer["results"][0] if response.status_code == 200 else answer["error"]["message"]


def ask_command_line(world, options):
    _, _, corpus, scorer, encoder = world
    named = {"k": "-k", **{name: f"--{name.replace('_', '-')}" for name in options if name != "k"}}
    arguments = [part for name, value in options.items() for part in (named[name], value)]
    command = ["search", corpus, QUERY, *arguments, "--scorer", scorer, "--encoder", encoder, "--json"]
    result = CliRunner().invoke(app, [str(part) for part in command])
    if result.exit_code:
        return str(result.exception)
    return json.loads(result.stdout)


OPTIONS = [
    {},
    {"budget": 5},
    {"budget": 1},
    {"k": 3},
    {"k": 20, "budget": 20},
    {"k": 200, "budget": 1_000},
    {"budget": 1_000},
    {"k": 12, "strategy": "axn"},
    {"strategy": "axn", "budget": 4},
    {"strategy": "rerank", "budget": 7},
    {"strategy": "exact"},
    {"strategy": "exact", "k": 30},
    {"min_score": 0.0},
    {"min_score": 1e9},
    {"k": 5, "diversity": 0.5},
]
ERRORS = [
    {"k": 20, "budget": 5},
    {"k": 101},
    {"k": 101, "strategy": "axn"},
    {"diversity": 1.5},
    {"min_probability": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_three_give_the_same_answer(world, options):
    python, service, command = (ask(world, options) for ask in (ask_python, ask_service, ask_command_line))
    assert isinstance(python, dict), python
    for answer in (service, command):
        assert isinstance(answer, dict), answer
        for name in ("query", "calls", "rounds", "stopped"):
            assert answer[name] == python[name]
        assert [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in python["hits"]]
        assert [hit.keys() for hit in answer["hits"]] == [hit.keys() for hit in python["hits"]]
        assert [hit["text"] for hit in answer["hits"]] == [hit["text"] for hit in python["hits"]]


def test_defaults(world):
    counts = {
        (): (10, len(TEXTS)),  # at most 100 calls
        (("budget", 5),): (5, 5),
        (("k", 200), ("budget", 1_000)): (len(TEXTS), len(TEXTS)),
        (("min_score", 1e9),): (0, len(TEXTS)),
    }
    for options, (hits, calls) in counts.items():
        answer = ask_python(world, dict(options))
        assert (len(answer["hits"]), answer["calls"]) == (hits, calls)
    assert (ck.Posterior(5).round_count, ck.Axn(3).round_count, ck.Tour(20).round_count) == (5, 3, 10)


@pytest.mark.parametrize("options", ERRORS, ids=str)
def test_the_three_refuse_the_same(world, options):
    python, service, command = (ask(world, options) for ask in (ask_python, ask_service, ask_command_line))
    assert isinstance(python, str)
    assert isinstance(command, str)
    assert isinstance(service, str)
    if "diversity" in options:  # the schema of a request refuses it in its own words
        assert "diversity" in service
        service = python
    assert service == python
    assert re.sub(r"--?([a-z-]+)", lambda match: f"`{match[1].replace('-', '_')}`", command) == python
