"""A cross-encoder behind a server that speaks the common `/rerank` protocol."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError, PartialScores, ScorerError
from crossknn.models.fingerprints import function_fingerprint
from crossknn.scorers.base import describe_pair
from crossknn.scorers.remote.client import HttpPosts
from crossknn.scorers.remote.cost import Spending
from crossknn.scorers.remote.providers import Answer, choose_dialect, read_answer, to_logits
from crossknn.scorers.remote.request_threads import Request, group_by_query, send_all
from crossknn.scorers.remote.retry import Retrying
from crossknn.scorers.remote.settings import check_limits, copy_fields, find_secrets, make_headers, read_url
from crossknn.types import Scores

WATCHED = 100  # scores after which a server that seems to give probabilities is reported

logger = logging.getLogger(__name__)


class RemoteScorer:
    """The scores of a server: text-embeddings-inference, vLLM, Jina, Cohere, and others that speak like one of them.

    `url` is that of its rerank endpoint; the model's name may stand behind a `#`. `dialect` "auto" goes by the URL.
    The pairs of a call are grouped by query into requests of at most `batch_size` items, of which `concurrency` are
    in flight at once. One that is not answered within `timeout` seconds, or with 429 or 5xx, is sent again up to
    `retries` times, after longer and longer waits or as long as the server asks for. When that fails, `PartialScores`
    carries what was scored.

    `api_key` (by default `CROSSKNN_API_KEY` of the environment) is sent as a bearer token. `fields` are put into
    every request. `logits=True` says that the server gives probabilities, to be turned back into logits.

    With `price_per_1000`, the price of 1,000 pairs (Cohere: searches, of up to 100 pairs each), `spent` says what was
    spent so far, and what would spend more than `spend_limit` is not sent. `fingerprint` names the model where the
    URL does not: a server may move, or change what it serves.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        dialect: str = "auto",
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
        logits: bool | None = None,
        batch_size: int | None = None,
        concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 4,
        price_per_1000: float | None = None,
        spend_limit: float | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self._url, self.model = read_url(url, model)
        self._dialect = choose_dialect(dialect, host=str(self._url.hostname), path=self._url.path, model=self.model)
        self.logits = self._dialect.probabilities if logits is None else bool(logits)
        self.batch_size = self._dialect.batch_size if batch_size is None else batch_size
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        check_limits(batch_size=self.batch_size, concurrency=concurrency, timeout=timeout, retries=retries)
        self._fields = copy_fields(fields or {})
        self._headers = make_headers(self._url, api_key, headers or {})
        self._spending = Spending(price_per_1000, spend_limit)
        self._fingerprint = self._describe() if fingerprint is None else function_fingerprint(fingerprint)
        self._start()

    def _start(self) -> None:
        posts = HttpPosts(self._url, self._headers, timeout=self.timeout)
        secrets = find_secrets(self._headers)
        self._posts = Retrying(posts, self.url, self.timeout, self.retries, secrets, self._spending)
        self._watched = 0

    def __getstate__(self) -> dict[str, Any]:
        """Workers get all settings, the key among them; each opens its own connections and counts its own spending."""
        return {name: value for name, value in vars(self).items() if name not in ("_posts", "_watched")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        return f"RemoteScorer({self.url!r}, model={self.model!r}, dialect={self.dialect!r})"

    @property
    def url(self) -> str:
        """Where requests go, without a query string: it may hold a key."""
        return f"{self._url.scheme}://{self._url.netloc}{self._url.path}"

    @property
    def dialect(self) -> str:
        """What is spoken with the server."""
        return self._dialect.name

    @property
    def fingerprint(self) -> str:
        """The name given, or the URL, the model and a hash of every setting that changes scores; never the key."""
        return self._fingerprint

    @property
    def spent(self) -> float:
        """Money spent so far in this process; requests whose answer never came are counted, for they may be billed."""
        return self._spending.money

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One score per pair, in the order given."""
        if len(queries) != len(items):
            raise InputError(f"queries and items must pair up. Got {len(queries)} and {len(items)} instead.")
        requests = group_by_query(queries, items, size=self.batch_size)
        self._spending.check(sum(self._dialect.count_units(len(request.items)) for request in requests))
        scores, failure = send_all(requests, self._send, pairs=len(queries), threads=self.concurrency)
        if isinstance(failure, ScorerError):
            raise self._partial(failure, queries, items, scores) from failure
        if failure is not None:
            raise failure
        return scores

    def close(self) -> None:
        """Close the connections to the server; the next call of `score` opens others."""
        self._posts.posts.close()

    def _partial(
        self, failure: ScorerError, queries: Sequence[str], items: Sequence[str], scores: Scores
    ) -> PartialScores:
        done = np.flatnonzero(~np.isnan(scores)).tolist()
        return PartialScores(
            f"{failure} {len(done):,} of {len(scores):,} pairs of this call were scored.",
            fingerprint=self.fingerprint,
            queries=[queries[place] for place in done],
            items=[items[place] for place in done],
            scores=scores[done].tolist(),
        )

    def _send(self, request: Request, stop: threading.Event) -> Scores:
        body = self._dialect.write(request.query, request.items, model=self.model, fields=self._fields)
        reply = self._posts.post(body, self._dialect.count_units(len(request.items)), stop)
        try:
            answer = read_answer(reply, len(request.items))
            scores = to_logits(answer.scores) if self.logits else answer.scores
        except ValueError as error:
            first = describe_pair(request.query, request.items[0])
            raise ScorerError(
                f"{self.url} gave an answer that cannot be used, to {first} and {len(request.items) - 1} more: {error}."
            ) from error
        self._settle(answer)
        self._watch(scores)
        return scores.astype(np.float32)

    def _settle(self, answer: Answer) -> None:
        """Count what the server bills instead of what was expected, where it says."""
        if answer.units is not None and self._dialect.unit > 1:
            self._spending.correct(answer.units - self._dialect.count_units(len(answer.scores)))

    def _watch(self, scores: NDArray[np.float64]) -> None:
        """Say once that scores seem to be probabilities, if the first ones all do."""
        if self.logits or self._watched >= WATCHED:
            return
        if ((scores < 0) | (scores > 1)).any():
            self._watched = WATCHED
            return
        self._watched += len(scores)
        if self._watched >= WATCHED:
            logger.warning("%s seems to give probabilities, and strategies want logits: give logits=True.", self.url)

    def _describe(self) -> str:
        settings = [self._url.scheme, self._url.query, self.dialect, self.logits, self._fields]
        digest = blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()
        return f"remote:{self._url.netloc}{self._url.path}#{self.model or ''}:{digest}"
