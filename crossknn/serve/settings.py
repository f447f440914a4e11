"""What a server allows, and how it behaves."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from crossknn._checks import check_positive
from crossknn.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one request may ask for.

    k           hits per query
    budget      calls per query
    queries     of one search
    pairs       of one request for scores
    filter_ids  ids of a filter
    text_bytes  of one text
    body_bytes  of a whole request
    deadline    seconds; also that of a request that sets none
    """

    k: int = 1_000
    budget: int = 1_000
    queries: int = 64
    pairs: int = 1_000
    filter_ids: int = 100_000
    text_bytes: int = 65_536
    body_bytes: int = 4_194_304
    deadline: float = 60.0

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name != "deadline":
                check_positive(one.name, getattr(self, one.name))
        check_seconds("deadline", self.deadline)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server behaves.

    running         requests that are worked on at once
    waiting         requests that may wait for their turn; more are told to come back later
    batch_pairs     most pairs of a scorer's batch
    scorer_timeout  seconds after which a scorer that does not answer counts as stalled
    poll            seconds between two looks whether the index was replaced
    grace           seconds that running requests have to end when the server does
    api_key         what clients must send, if anything
    public_info     whether /info and /metrics need no key
    hosts           names by which clients may call the server (their header Host); None is any. Without a key this
                    keeps web pages of others out, which may have a name of theirs lead to this machine
    log_queries     whether logs hold queries and the messages of errors, which may name texts
    """

    limits: Limits = field(default_factory=Limits)
    running: int = 32
    waiting: int = 128
    batch_pairs: int = 512
    scorer_timeout: float = 60.0
    poll: float = 2.0
    grace: float = 30.0
    api_key: str | None = field(default=None, repr=False)
    public_info: bool = False
    hosts: tuple[str, ...] | None = None
    log_queries: bool = False

    def __post_init__(self) -> None:
        check_positive("running", self.running)
        check_positive("batch_pairs", self.batch_pairs)
        if not isinstance(self.waiting, int) or self.waiting < 0:
            raise InputError(f"waiting must be a whole number of at least 0. Got {self.waiting!r} instead.")
        for name in ("scorer_timeout", "poll", "grace"):
            check_seconds(name, getattr(self, name))
        if self.api_key is not None and (not self.api_key or not self.api_key.isascii() or " " in self.api_key):
            raise InputError("an API key must be plain characters without spaces, at least one.")


def check_seconds(name: str, value: float) -> None:
    """An error unless it is a positive number of seconds."""
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"{name} must be a positive number of seconds. Got {value!r} instead.")
