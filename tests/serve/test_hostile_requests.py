"""Hostile requests to a server in a process of its own: each gets a response, none an error of the server."""

import json

import httpx
import pytest

from tests.serve.processes import connect, read_all, slow_server
from tests.serve.servers import QUERIES

CHUNKED = "Transfer-Encoding: chunked"
PATHS = (
    "/page/",
    "/page/.",
    "/page/..%2fapp.py",
    "/page/%2e%2e/app.py",
    "/page/a%00.js",
    "/page/a%0a.js",
    "/page/%ff.js",
)


@pytest.fixture(scope="module")
def server():
    with slow_server(body_timeout=0.4, header_timeout=0.4) as server:
        yield server
        lines = server.stop()
        assert max(line.get("status", 0) for line in lines) < 500
        assert {line["event"] for line in lines} <= {"request", "Invalid HTTP request received."}


def request(body=b"", *headers, path="/search", method="POST", length=None):
    """The bytes of a request."""
    if CHUNKED not in headers or length is not None:
        headers = (*headers, f"Content-Length: {len(body) if length is None else length}")
    first = (f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close")
    return "\r\n".join([*first, *headers, "", ""]).encode() + body


def statuses(server, sent):
    """The status of each response to these bytes, until the server closes the connection."""
    with connect(server.url) as connection:
        connection.sendall(sent)
        received = read_all(connection)
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


HEALTHZ = request(path="/healthz", method="GET")
CASES = {
    "deep list": (request(b"[" * 1_000_000), 400),
    "deep object": (request(b'{"query":' * 100_000), 400),
    "deep setting": (request(b'{"query":"a","strategy":{"name":"rerank","x":' + b"[" * 900 + b"]" * 900 + b"}}"), 400),
    "deep filter": (request(b'{"query":"a","filter":' + b'{"not":' * 900 + b"{}" + b"}" * 900 + b"}"), 413),
    "endlessly deep filter": (request(b'{"query":"a","filter":' + b'{"and":[' * 10_000 + b"]}" * 10_000 + b"}"), 400),
    "deep value in a filter": (request(b'{"query":"a","filter":{"size":' + b"[" * 500 + b"]" * 500 + b"}}"), 400),
    "a hundred empty conditions": (request(b'{"query":"a","filter":{"or":[{}' + b",{}" * 99 + b"]}}"), 413),
    "many empty conditions": (request(b'{"query":"a","filter":{"or":[{}' + b",{}" * 200_000 + b"]}}"), 413),
    "half a million values": (request(b'{"query":"a","filter":{"size":[1' + b",1" * 500_000 + b"]}}"), 413),
    "a score of no float32": (request(b'{"query":"a","budget":3,"min_score":1e308}'), 200),
    "5000 digits": (request(b'{"query":"a","k":' + b"9" * 5_000 + b"}"), 400),
    "400 digits": (request(b'{"query":"a","budget":' + b"9" * 400 + b"}"), 400),
    "huge setting": (request(b'{"query":"a","strategy":{"name":"axn","rounds":' + b"9" * 400 + b"}}"), 400),
    "infinite deadline": (request(b'{"query":"a","deadline":1e999}'), 422),
    "NaN": (request(b'{"query":"a","stop_at":NaN}'), 422),
    "NaN in a setting": (request(b'{"query":"a","strategy":{"name":"axn","mix":NaN}}'), 400),
    "duplicate key": (request(b'{"query":"a","k":1,"k":"x"}'), 422),
    "invalid UTF-8": (request(b'{"query":"\xff\xfe"}'), 400),
    "surrogate": (request(rb'{"query":"\ud800"}'), 422),
    "surrogate as a field": (request(rb'{"query":"a","\ud800":1}'), 422),
    "surrogate in a setting": (request(rb'{"query":"a","strategy":{"name":"rerank","retriever":"\ud800"}}'), 400),
    "surrogate that is echoed": (request(rb'{"query":"a","documents":["b"],"model":"\ud800"}', path="/rerank"), 200),
    "long setting": (request(b'{"query":"a","strategy":{"name":"tour","loss":"' + b"x" * 1_000_000 + b'"}}'), 400),
    "megabyte of a word": (request(b'{"query":"' + b"x" * 1_000_000 + b'"}'), 413),
    "a million bad texts": (request(b'{"query":"a","texts":[1' + b",1" * 1_000_000 + b"]}", path="/rerank"), 422),
    "half a million bad pairs": (request(b'{"pairs":[[1]' + b",[1]" * 500_000 + b"]}", path="/score"), 422),
    "many fields": (request(json.dumps({f"f{i}": 1 for i in range(200_000)}).encode()), 422),
    "two lengths": (request(b"{}", "Content-Length: 5"), 400),
    "negative length": (request(length=-1), 400),
    "length of 5000 digits": (request(length="9" * 5_000), 400),
    "huge length": (request(length="9" * 20), 413),
    "length above the body": (request(b"{}", length=100), 408),
    "length and chunks": (request(b"0\r\n\r\n" + HEALTHZ, CHUNKED, length=5), 400),
    "chunks without end": (request(b"5\r\nhello\r\n", CHUNKED), 408),
    "invalid chunk": (request(b"5\r\nhello\r\nzz\r\n", CHUNKED), 400),
    "unknown encoding": (request(b"", "Transfer-Encoding: gzip"), 400),
    "compressed": (request(b"\x1f\x8b", "Content-Encoding: gzip"), 400),
    "thousands of headers": (request(b"{}", *(f"X-{i}: a" for i in range(4_000))), 422),
    "megabytes of headers": (request(b"{}", *(f"X-{i}: a" for i in range(200_000))), 431),
    "long URL": (request(path="/" + "a" * 1_000_000, method="GET"), 414),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01" * 10, 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "long path": (request(path=f"/page/{'a' * 1_000}.js", method="GET"), 404),
    "very long path": (request(path=f"/page/{'a' * 50_000}.js", method="GET"), 404),
    **{path: (request(path=path, method="GET"), 404) for path in PATHS},
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_request_gets_one_response(server, case):
    sent, expected = CASES[case]
    assert statuses(server, sent) == [expected]
    assert statuses(server, HEALTHZ) == [200]


def test_pipelined_requests_are_answered_in_order(server):
    search = json.dumps({"query": QUERIES[0], "k": 1}).encode()
    sent = b"".join(request(body).replace(b"Connection: close\r\n", b"") for body in [search, b"{}"] * 20)
    assert statuses(server, sent + HEALTHZ) == [200, 422] * 20 + [200]


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/docs", "/openapi.json", "/info", "/healthz", "/readyz"])
def test_head_is_get_without_its_body(server, path):
    got, headed = httpx.get(f"{server.url}{path}"), httpx.head(f"{server.url}{path}")
    assert (headed.status_code, headed.content) == (200, b"")
    assert headed.headers["content-length"] == got.headers["content-length"] == str(len(got.content))


@pytest.mark.parametrize(("path", "methods"), [("/", "GET, HEAD, OPTIONS"), ("/search", "OPTIONS, POST")])
def test_other_methods_are_told_which_ones_are_allowed(server, path, methods):
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "PATCH"} - set(methods.split(", ")):
        answer = httpx.request(method, f"{server.url}{path}")
        assert (answer.status_code, answer.headers["allow"]) == (405, methods), method
    answer = httpx.options(f"{server.url}{path}")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")
