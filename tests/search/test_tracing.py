"""OpenTelemetry spans of searches, collected by the SDK's in-memory exporter."""

import asyncio
import re
import subprocess
import sys
import threading

import httpx
import pytest

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK is not installed: pip install opentelemetry-sdk")
conventions = pytest.importorskip(
    "openinference.semconv.trace", reason="pip install openinference-semantic-conventions"
)

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

from crossknn.errors import ScorerError  # noqa: E402
from crossknn.search import tracing  # noqa: E402
from crossknn.strategies.axn import Axn  # noqa: E402
from tests.search.test_searcher import Setup  # noqa: E402
from tests.serve.servers import ITEMS, QUERIES, opened, serving  # noqa: E402

STRATEGY = Axn(budget=30, rounds=3)
EXPORTER = InMemorySpanExporter()


@pytest.fixture
def spans(monkeypatch):
    """What reads the spans so far, by name; the provider of a process can be set only once."""
    monkeypatch.delenv(tracing.TEXTS_VARIABLE, raising=False)
    if not isinstance(trace.get_tracer_provider(), sdk.TracerProvider):
        provider = sdk.TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(provider)
    EXPORTER.clear()

    def read():
        found = {}
        for span in EXPORTER.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found

    return read


def search(setup):
    return setup.searcher.search(setup.queries[0], k=5, strategy=STRATEGY)


def search_on_a_loop(setup):
    return asyncio.run(setup.searcher.asearch(setup.queries[0], k=5, strategy=STRATEGY))


def stream(setup):
    *_, last = setup.searcher.stream(setup.queries[0], k=5, strategy=STRATEGY)
    return last


@pytest.mark.parametrize("run", [search, search_on_a_loop, stream])
def test_a_search_has_a_first_stage_and_rounds_that_score(spans, run):
    setup = Setup()
    hits = run(setup)
    found = spans()
    assert {name: len(some) for name, some in found.items()} == {
        "search": 1, "first stage": 1, "round 1": 1, "round 2": 1, "round 3": 1, "scoring": 3
    }  # fmt: skip
    (root,) = found["search"]
    for name in ("first stage", "round 1", "round 2", "round 3"):
        assert found[name][0].parent.span_id == root.context.span_id
    rounds = [found[f"round {number}"][0].context.span_id for number in (1, 2, 3)]
    assert [span.parent.span_id for span in found["scoring"]] == rounds
    assert {span.context.trace_id for some in found.values() for span in some} == {root.context.trace_id}
    attributes = root.attributes
    assert attributes["openinference.span.kind"] == "RETRIEVER"
    assert [attributes[f"retrieval.documents.{place}.document.id"] for place in range(5)] == hits.ids
    assert attributes["retrieval.documents.0.document.score"] == hits[0].score
    assert (attributes["crossknn.calls"], attributes["crossknn.rounds"], attributes["crossknn.budget"]) == (30, 3, 30)


def test_scoring_is_a_reranker(spans):
    setup = Setup()
    search(setup)
    attributes = spans()["scoring"][0].attributes
    assert attributes["openinference.span.kind"] == "RERANKER"
    assert attributes["reranker.model_name"] == setup.scorer.fingerprint
    given = {attributes[f"reranker.input_documents.{place}.document.id"] for place in range(10)}
    ranked = [attributes[f"reranker.output_documents.{place}.document.id"] for place in range(10)]
    scores = [attributes[f"reranker.output_documents.{place}.document.score"] for place in range(10)]
    assert given == set(ranked)
    assert scores == sorted(scores, reverse=True)


def test_names_are_those_of_openinference(spans, monkeypatch):
    monkeypatch.setenv(tracing.TEXTS_VARIABLE, "true")
    search(Setup())
    known = {
        value
        for part in ("SpanAttributes", "DocumentAttributes", "RerankerAttributes")
        for name, value in vars(getattr(conventions, part)).items()
        if name.isupper()
    }
    kinds = {kind.value for kind in conventions.OpenInferenceSpanKindValues}
    for span in (one for some in spans().values() for one in some):
        assert span.attributes["openinference.span.kind"] in kinds
        for name in span.attributes:
            parts = re.split(r"\.\d+\.", name)  # such as retrieval.documents and document.id
            assert name.startswith("crossknn.") or known.issuperset(parts), name


def test_texts_are_recorded_only_on_request(spans, monkeypatch):
    setup = Setup()
    search(setup)
    texts = (setup.queries[0], "item ")
    recorded = [str(value) for some in spans().values() for span in some for value in span.attributes.values()]
    assert not [value for value in recorded if value.startswith(texts)]
    monkeypatch.setenv(tracing.TEXTS_VARIABLE, "1")
    EXPORTER.clear()
    hits = search(setup)
    found = spans()
    assert found["search"][0].attributes["input.value"] == setup.queries[0]
    assert found["search"][0].attributes["retrieval.documents.0.document.content"] == hits[0].text
    assert found["scoring"][0].attributes["reranker.query"] == setup.queries[0]


def test_a_failed_search_ends_its_spans_without_the_message(spans):
    class Failing:
        fingerprint = "failing"

        def score(self, queries, items):
            raise ScorerError("private text")

    with pytest.raises(ScorerError):
        search(Setup(scorer=Failing()))
    found = spans()
    for name in ("search", "round 1", "scoring"):
        status = found[name][0].status
        assert (status.status_code, status.description) == (trace.StatusCode.ERROR, "ScorerError")
        assert not found[name][0].events


def test_a_stream_that_is_left_ends_its_span(spans):
    setup = Setup()
    stream = setup.searcher.stream(setup.queries[0], strategy=STRATEGY)
    next(stream)
    stream.close()
    assert spans()["search"][0].status.status_code is trace.StatusCode.UNSET


def test_spans_of_a_scorer_lie_within_the_scoring(spans):
    class Traced:
        fingerprint = "traced"

        def score(self, queries, items):
            with trace.get_tracer("mine").start_as_current_span("model"):
                return [0.0] * len(items)

    setup = Setup(scorer=Traced())
    with trace.get_tracer("mine").start_as_current_span("request") as request:
        search(setup)
        search_on_a_loop(setup)
    found = spans()
    assert [span.parent.span_id for span in found["model"]] == [span.context.span_id for span in found["scoring"]]
    assert {span.parent.span_id for span in found["search"]} == {request.get_span_context().span_id}


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/search", {"query": QUERIES[0], "k": 3, "budget": 20}, "search"),
        ("/search", {"query": QUERIES[0], "k": 3, "budget": 20, "stream": True}, "search"),
        ("/rerank", {"query": QUERIES[0], "texts": [ITEMS.text(0)]}, "scoring"),
    ],
)
def test_the_service_continues_the_trace_of_its_client(spans, path, body, name):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with opened() as service, serving(service) as url:
        EXPORTER.clear()  # of what the service does before it is ready
        assert httpx.post(f"{url}{path}", json=body, headers={"traceparent": parent}).status_code == 200
        assert httpx.post(f"{url}{path}", json=body).status_code == 200
    own, other = spans()[name]
    assert f"{own.context.trace_id:032x}" == parent.split("-")[1] != f"{other.context.trace_id:032x}"
    known = {span.context.span_id: span for some in spans().values() for span in some}
    while own.parent.span_id in known:  # spans of FastAPI itself
        own = known[own.parent.span_id]
    assert f"{own.parent.span_id:016x}" == parent.split("-")[2]


def test_nothing_is_imported_where_no_spans_are_exported():
    code = """
import sys
import crossknn as ck
items = ck.Items(["ice", "snow"])
searcher = ck.Searcher(items, scorer=ck.function_scorer(lambda pairs: [0.0] * len(pairs)))
assert len(searcher.search("cold", strategy=ck.Rerank(2, "random"), k=1)) == 1
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_threads_of_one_searcher_have_their_own_traces(spans):
    setup = Setup()
    threads = [threading.Thread(target=search, args=(setup,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = spans()
    assert len({span.context.trace_id for span in found["search"]}) == 4
    assert len(found["scoring"]) == 12
