"""Tools for agents: the SDK's own client against the service in process, over HTTP, and as a command over stdio."""

import asyncio
import json
import sys

import pytest

pytest.importorskip("mcp", reason="the MCP SDK is not installed: pip install 'crossknn[mcp]'")

from mcp import Client, StdioServerParameters

from crossknn.items.fields import fields_as_json
from crossknn.serve.mcp import make_mcp_server
from tests.scorers import tiny
from tests.serve.processes import slow_server
from tests.serve.servers import ITEMS, QUERIES, opened, serving

QUERY = "river ice"


@pytest.fixture(scope="module")
def service():
    with opened(title="Words") as service:
        yield service


@pytest.fixture
def searcher(service):
    return service.live_index.current.searcher


def call(server, tool, **arguments):
    """The structured result of a tool; an error as a string."""
    (result,) = call_all(server, [(tool, arguments)])
    return result


def call_all(server, calls):
    async def run():
        async with Client(server) as client:
            return await asyncio.gather(*(client.call_tool(tool, arguments) for tool, arguments in calls))

    results = asyncio.run(run())
    return [one.content[0].text if one.is_error else one.structured_content for one in results]


def test_an_agent_learns_what_is_there(service):
    async def run():
        async with Client(make_mcp_server(service)) as client:
            return client.instructions, (await client.list_tools()).tools

    instructions, tools = asyncio.run(run())
    assert "315 items (Words)" in instructions
    assert "word (string)" in instructions
    assert [tool.name for tool in tools] == ["search", "explain", "get"]
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint
        assert all(about.get("description") for about in tool.input_schema["properties"].values())
        assert tool.output_schema


def test_search_finds_what_the_library_finds(service, searcher):
    answer = call(make_mcp_server(service), "search", query=QUERY, k=3, budget=30)
    hits = searcher.search(QUERY, k=3, budget=30)
    assert answer["hits"] == [
        {"id": hit.id, "score": hit.score, "text": hit.text, "fields": fields_as_json(hit.fields)} for hit in hits
    ]
    assert (answer["calls"], answer["stopped"]) == (30, None)
    assert answer["expected_recall"] == pytest.approx(hits.expected_recall)


def test_search_takes_filter_and_deadline(service):
    server = make_mcp_server(service)
    by_id = call(server, "search", query=QUERY, filter={"prefix": "r"}, deadline=30.0)
    assert {hit["id"][0] for hit in by_id["hits"]} == {"r"}
    by_field = call(server, "search", query=QUERY, filter={"word": ["snow", "ice"]})
    assert {hit["fields"]["word"] for hit in by_field["hits"]} <= {"snow", "ice"}


def test_explain_says_how_the_search_came_to_items(service, searcher):
    trace = searcher.search(QUERY, k=10, budget=30).trace
    best, unscored = max(trace, key=lambda hit: hit.score), next(i for i in ITEMS.ids if i not in {h.id for h in trace})
    explained = call(make_mcp_server(service), "explain", query=QUERY, ids=[best.id, unscored], budget=30)
    first, second = explained["items"]
    assert first == {
        "id": best.id, "score": best.score, "rank": 1, "scored_by_search": True, "round": best.round,
        "proposed_by": best.proposed_by, "estimate": best.estimate, "ranks": dict(best.ranks),
    }  # fmt: skip
    (score,) = searcher.scorer.score([QUERY], [ITEMS.text(ITEMS.row(unscored))])
    assert second == {
        "id": unscored, "score": score, "rank": 1 + sum(hit.score > score for hit in trace), "scored_by_search": False
    }  # fmt: skip
    assert explained["calls"] == 31


def test_get_returns_texts(service):
    answer = call(make_mcp_server(service), "get", ids=["r0", "i20", "r0"])
    rows = [ITEMS.row(id_) for id_ in ("r0", "i20")]
    expected = zip(("r0", "i20"), ITEMS.texts_of(rows), ITEMS.fields_of(rows), strict=True)
    assert answer["result"] == [{"id": id_, "text": text, "fields": fields} for id_, text, fields in expected]


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("search", {"query": ""}, "at least 1 character"),
        ("search", {"query": QUERY, "k": 0}, "greater than or equal to 1"),
        ("search", {"query": QUERY, "budget": 10**6}, "at most 1000 on this server"),
        ("search", {"query": QUERY, "filter": {"color": "red"}}, "'color'"),
        ("search", {"query": "raise ice"}, "the scorer raised RuntimeError"),
        ("explain", {"query": QUERY, "ids": ["nowhere"]}, "'nowhere'"),
        ("explain", {"query": QUERY, "ids": []}, "at least 1 item"),
        ("get", {"ids": ["r0"] * 2_000}, "at most 1,000 ids"),
        ("get", {"ids": [{}] * 10_000}, "1 validation error"),
        ("search", {"query": QUERY, "filter": {"or": [{}] * 100}}, "at most 64 conditions"),
        ("search", {"query": QUERY, "deadline": -1.0}, "greater than 0"),
    ],
)
def test_errors_are_sentences_for_the_agent(service, tool, arguments, said):
    answer = call(make_mcp_server(service), tool, **arguments)
    assert isinstance(answer, str)
    assert said in answer
    assert "Traceback" not in answer
    assert len(answer) < 1_000


def test_many_agents_over_http_get_their_own_answers(searcher):
    with opened(mcp=True) as service, serving(service) as url:
        calls = [("search", {"query": query, "k": 3, "budget": 20}) for query in QUERIES[:16]]
        answers = call_all(f"{url}/mcp", calls)
    for query, answer in zip(QUERIES, answers, strict=False):
        assert [hit["id"] for hit in answer["hits"]] == searcher.search(query, k=3, budget=20).ids


def test_a_hostile_message_gets_an_error_and_one_line_in_the_log():
    """The log stays that of the service: JSON, without tracebacks."""
    import httpx

    def tool(arguments):
        call = f'{{"name": "search", "arguments": {{"query": "a", {arguments}}}}}'
        return f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {call}}}'

    messages = [
        tool('"deadline": 1e999'), tool('"deadline": NaN'), tool('"k": 1' + "0" * 400),
        tool('"filter": ' + '{"not":' * 10_000 + "{}" + "}" * 10_000), "[" * 100_000, "{", "",
    ]  # fmt: skip
    with slow_server(mcp=True) as server:
        for message in messages:
            answer = httpx.post(f"{server.url}/mcp", content=message, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400 or answer.json()["result"]["isError"]
            assert len(answer.content) < 1_000
            assert not answer.content.endswith(b'"Error executing tool search"}],"isError":true}}')
        lines = server.stop()
    assert [line["event"] for line in lines] == ["request"] * len(messages)


def test_every_tool_over_http(searcher):
    with opened(mcp=True) as service, serving(service) as url:
        unlimited, cut, explained, stored = call_all(
            f"{url}/mcp",
            [
                ("search", {"query": QUERY, "k": 3, "budget": 30, "filter": {"prefix": "r"}, "deadline": 30.0}),
                ("search", {"query": QUERY, "k": 3, "deadline": 1e-6}),
                ("explain", {"query": QUERY, "ids": ["r0"], "budget": 30}),
                ("get", {"ids": ["r0"]}),
            ],
        )
    hits = searcher.search(QUERY, k=3, budget=30, filter=lambda id_: id_.startswith("r"))
    assert [hit["id"] for hit in unlimited["hits"]] == hits.ids
    assert unlimited["expected_recall"] == pytest.approx(hits.expected_recall)
    assert 0 < unlimited["expected_recall"] <= 1
    assert (cut["stopped"], cut["calls"], cut["expected_recall"]) == ("deadline", 0, None)
    assert {hit["score"] for hit in cut["hits"]} == {None}
    assert explained["items"][0]["id"] == stored["result"][0]["id"] == "r0"


def test_http_needs_the_key_and_the_flag(client_error):
    assert client_error(mcp=True, api_key="secret") == 401
    assert client_error(mcp=False) == 404


@pytest.fixture
def client_error():
    import httpx

    def status(**settings):
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        with opened(**settings) as service, serving(service) as url:
            return httpx.post(f"{url}/mcp", json=request).status_code

    return status


def test_the_command_serves_an_agent_over_stdio(tmp_path, bert_folder):
    corpus = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{row}", "text": tiny.words(row, 12)} for row in range(40)]
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    command = ["-m", "crossknn", "mcp", str(corpus), "--encoder", "none", "--scorer", str(bert_folder)]
    server = StdioServerParameters(command=sys.executable, args=command)
    query, filter_ = records[7]["text"], {"ids": ["d7", "d8", "d9"]}
    answer, explained, text = call_all(
        server,
        [
            ("search", {"query": query, "k": 2, "budget": 3, "deadline": 30.0, "filter": filter_}),
            ("explain", {"query": query, "ids": ["d7"], "budget": 10}),
            ("get", {"ids": ["d7"]}),
        ],
    )
    assert len(answer["hits"]) == 2
    assert {hit["id"] for hit in answer["hits"]} < set(filter_["ids"])
    assert (answer["calls"], answer["stopped"]) == (3, None)
    (item,) = explained["items"]
    assert (item["id"], item["round"]) == ("d7", 1)
    assert text["result"][0]["text"] == records[7]["text"]
