"""Limits on requests, and the settings of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crossknn._checks import check_number, check_positive, check_seconds, invalid
from crossknn.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits of what one request may ask for."""

    k: int = 1_000  # hits per query
    budget: int = 1_000  # cross-encoder calls per query
    queries: int = 64  # per search
    pairs: int = 1_000  # per request for scores
    filter_ids: int = 100_000  # in a filter
    text_bytes: int = 65_536  # of one text
    body_bytes: int = 4_194_304  # of a request
    deadline: float = 60.0  # seconds; also the deadline of a search that sets none

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            (check_number if name == "deadline" else check_positive)(name, value)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a server.

    `hosts` are the names that clients may use (their header `Host`); None allows any. Without a key this protects
    against DNS rebinding: pages of other sites whose names resolve to this machine.
    """

    limits: Limits = field(default_factory=Limits)
    running: int = 32  # requests that run at the same time
    waiting: int = 128  # requests that may be queued; any more are rejected with status 429
    connections: int = 512  # any more are refused with status 503; the limit of open files may allow fewer
    header_timeout: float = 10.0  # seconds that a client has to send the headers of a request
    body_timeout: float = 30.0  # seconds that it has to send the body
    write_timeout: float = 60.0  # seconds that it has to read the response
    batch_pairs: int = 512  # maximum number of pairs in a scorer batch
    batch_queries: int | None = None  # of requests that are searched together; None: 64 with a scorer on a GPU, else 1
    scorer_timeout: float = 60.0  # seconds after which a scorer that does not answer counts as stalled
    poll: float = 2.0  # seconds between two checks for a newer index
    grace: float = 30.0  # seconds that running requests have to finish at shutdown
    api_key: str | None = field(default=None, repr=False)  # the key that clients must send; None for no key
    public_info: bool = False  # whether /info and /metrics need no key
    hosts: tuple[str, ...] | None = None
    log_queries: bool = False  # whether logs may contain queries and error messages, which may quote texts
    learn: Path | None = None  # a folder that keeps the queries, ids and scores of searches, for `crossknn learn`
    learn_mb: int = 1_024  # its maximum size
    mcp: bool = False  # whether agents can use it at /mcp, by the Model Context Protocol
    title: str = ""  # what is searched, for the page
    example_queries: Sequence[str] | None = None  # for the page; by default the first words of some items

    def __post_init__(self) -> None:
        for name in ("running", "connections", "batch_pairs", "batch_queries", "learn_mb"):
            if name != "batch_queries" or self.batch_queries is not None:
                check_positive(name, getattr(self, name))
        if not isinstance(self.waiting, int) or self.waiting < 0:
            raise invalid("waiting", "a nonnegative integer", self.waiting)
        for name in ("header_timeout", "body_timeout", "write_timeout", "scorer_timeout", "poll", "grace"):
            check_seconds(name, getattr(self, name))
        if self.api_key is not None and (not self.api_key or not self.api_key.isascii() or " " in self.api_key):
            raise InputError("`api_key` must be a nonempty string of ASCII characters without spaces.")
