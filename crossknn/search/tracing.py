"""OpenTelemetry spans of a search, with OpenInference's attributes of retrievers and rerankers.

A program that exports spans has imported OpenTelemetry itself. Where none has, nothing is imported or recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, Literal

from crossknn.types import Scores

TEXTS_VARIABLE: Final = "CROSSKNN_TRACE_TEXTS"
MAX_DOCUMENTS: Final = 20  # of a span: OpenTelemetry keeps 128 attributes by default
SpanKind = Literal["RETRIEVER", "RERANKER", "CHAIN"]

SPAN_KIND: Final = "openinference.span.kind"
INPUT: Final = "input.value"
INPUT_TYPE: Final = "input.mime_type"
RETRIEVED: Final = "retrieval.documents"
RERANKER_QUERY: Final = "reranker.query"
RERANKER_MODEL: Final = "reranker.model_name"
RERANKER_INPUT: Final = "reranker.input_documents"
RERANKER_OUTPUT: Final = "reranker.output_documents"
DOCUMENT_ID: Final = "document.id"
DOCUMENT_SCORE: Final = "document.score"
DOCUMENT_CONTENT: Final = "document.content"


class Span:
    """A span, or nothing where spans are not recorded; it becomes current only where `active` says so."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def __bool__(self) -> bool:
        """Whether it is recorded."""
        return self._span is not None

    @property
    def records_texts(self) -> bool:
        """Whether it may have queries and texts: they are private unless the environment says otherwise."""
        return bool(self) and os.environ.get(TEXTS_VARIABLE, "").lower() in ("1", "true", "yes")

    def child(self, name: str, kind: SpanKind) -> Span:
        """A span within this one."""
        if self._span is None:
            return self
        trace = sys.modules["opentelemetry.trace"]
        return _start(name, kind, trace.set_span_in_context(self._span))

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add the attributes that have a value."""
        if self._span is not None:
            self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def set_query(self, name: str, queries: Sequence[str]) -> None:
        """Add the query, if texts may be recorded and there is one."""
        self.set({"crossknn.queries": len(queries)})
        if self.records_texts and len(set(queries)) == 1:
            self.set({name: queries[0]} | ({INPUT_TYPE: "text/plain"} if name == INPUT else {}))

    def set_documents(
        self, name: str, ids: Sequence[str], *, scores: Scores | None = None, texts: Sequence[str] = ()
    ) -> None:
        """Add the first documents of a list."""
        for place, id_ in enumerate(ids[:MAX_DOCUMENTS] if self else ()):
            prefix = f"{name}.{place}"
            self.set({f"{prefix}.{DOCUMENT_ID}": id_})
            if scores is not None and scores[place] == scores[place]:  # not NaN
                self.set({f"{prefix}.{DOCUMENT_SCORE}": float(scores[place])})
            if self.records_texts and place < len(texts):
                self.set({f"{prefix}.{DOCUMENT_CONTENT}": texts[place]})

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make it current, and end it; of an error only the type is recorded, for its message may quote texts."""
        if self._span is None:
            yield
            return
        trace = sys.modules["opentelemetry.trace"]
        try:
            with trace.use_span(self._span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            self.end(error)
            raise
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End it, once."""
        if self._span is None:
            return
        if error is not None and not isinstance(error, GeneratorExit):
            trace = sys.modules["opentelemetry.trace"]
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
        self._span.end()
        self._span = None


def start_span(name: str, kind: SpanKind) -> Span:
    """A span within the current one of the program, if any."""
    return _start(name, kind, None)


def _start(name: str, kind: SpanKind, parent: Any) -> Span:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return Span()
    span = trace.get_tracer("crossknn").start_span(name, context=parent, attributes={SPAN_KIND: kind})
    return Span(span if span.is_recording() else None)


def in_sampled_trace() -> bool:
    """Whether the current span, or that of the request that is answered, is recorded."""
    trace = sys.modules.get("opentelemetry.trace")
    return trace is not None and bool(trace.get_current_span().get_span_context().trace_flags.sampled)


@contextmanager
def incoming_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Continue the trace that a request's headers name (`traceparent`), unless a span is current already."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or trace.get_current_span().get_span_context().is_valid:
        yield
        return
    context = import_module("opentelemetry.context")
    token = context.attach(import_module("opentelemetry.propagate").extract(headers))
    try:
        yield
    finally:
        context.detach(token)
