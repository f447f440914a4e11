"""`crossknn serve`: a corpus or an index over HTTP, with a web page."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from crossknn.cli import options
from crossknn.cli.config import configurable
from crossknn.cli.console import ProgressBars, say
from crossknn.errors import InputError
from crossknn.example import DEMO_FOLDER, DEMO_SENSES, SHOWCASE

if TYPE_CHECKING:
    from crossknn.serve.service import Service
    from crossknn.serve.settings import Settings
    from crossknn.types import Progress

REQUIRED_MODULES = ("fastapi", "uvicorn", "prometheus_client")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class LimitOptions:
    """`Limits` as options."""

    k: Annotated[int, Option("--max-k", min=1, help="Limit of hits per query.")] = 1_000
    budget: Annotated[int, Option("--max-budget", min=1, help="Limit of calls per query.")] = 1_000
    queries: Annotated[int, Option("--max-queries", min=1, help="Limit of queries per search.")] = 64
    pairs: Annotated[int, Option("--max-pairs", min=1, help="Limit of pairs per request for scores.")] = 1_000
    filter_ids: Annotated[int, Option("--max-filter-ids", min=1, help="Limit of ids per filter.")] = 100_000
    text_bytes: Annotated[int, Option("--max-text-bytes", min=1, help="Limit of bytes per text.")] = 65_536
    body_bytes: Annotated[int, Option("--max-body-bytes", min=1, help="Limit of bytes per request.")] = 4_194_304
    deadline: Annotated[
        float, Option("--max-deadline", help="Limit and default of a search's deadline, in seconds.")
    ] = 60.0


@dataclass(frozen=True)
class ServerOptions:
    """`Settings` as options."""

    api_key: Annotated[
        str | None, Option(envvar="CROSSKNN_API_KEY", help="Key that clients must send, as Authorization: Bearer KEY.")
    ] = None
    public_info: Annotated[bool, Option("--public-info", help="Serve /info and /metrics without a key.")] = False
    running: Annotated[int, Option("--workers", min=1, help="Requests to run at once.")] = 32
    waiting: Annotated[int, Option(min=0, help="Requests to queue; further ones get status 429.")] = 128
    connections: Annotated[
        int, Option("--max-connections", min=1, help="Limit of open connections; further ones get status 503.")
    ] = 512
    header_timeout: Annotated[float, Option(help="Seconds for a client to send the headers of a request.")] = 10.0
    body_timeout: Annotated[float, Option(help="Seconds for it to send the body.")] = 30.0
    write_timeout: Annotated[float, Option(help="Seconds for it to read the response.")] = 60.0
    batch_pairs: Annotated[int, Option("--batch", min=1, help="Limit of pairs per scorer batch.")] = 512
    batch_queries: Annotated[
        int | None,
        Option(min=1, help="Limit of requests' queries per search; by default 64 with a scorer on a GPU, else 1."),
    ] = None
    scorer_timeout: Annotated[float, Option(help="Seconds after which a scorer counts as stalled.")] = 60.0
    poll: Annotated[float, Option(help="Seconds between two checks for a newer index.")] = 2.0
    grace: Annotated[float, Option(help="Seconds for running requests to end after SIGTERM.")] = 30.0
    log_queries: Annotated[bool, Option("--log-queries", help="Also log the queries.")] = False
    learn: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Keep the queries, ids and scores of searches here, for `crossknn learn`."),
    ] = None
    learn_mb: Annotated[int, Option(min=1, help="Limit of that folder's size, in MB; the oldest searches go.")] = 1_024
    mcp: Annotated[
        bool, Option("--mcp", help="Also serve agents at /mcp, by the Model Context Protocol, as `crossknn mcp` does.")
    ] = False
    title: Annotated[str, Option(help="What is searched, for the page; by default CORPUS's name.")] = ""
    example_queries: Annotated[
        list[str] | None,
        Option("--example-query", metavar="TEXT", help="Query to click on the page; repeat for several."),
    ] = None


@configurable
@options.with_groups
def serve(
    *,
    corpus: Annotated[
        Path | None, Argument(help="An index, or items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")
    ] = None,
    example: Annotated[
        bool, Option("--example", help="Serve the dictionary of `crossknn demo`, without corpus or network.")
    ] = False,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65_535, help="Port to listen on; 0 for any free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None, Option(help="Further Host name to accept, on loopback without a key; repeat for several.")
    ] = None,
    opened: options.SourceOptions,
    limits: LimitOptions,
    server: ServerOptions,
) -> None:
    """Serve CORPUS over HTTP: search, scores, the common /rerank, and a web page.

    Logs go to standard error, one JSON object per line. A replaced index is reloaded without a pause (hot reload).
    """
    from crossknn._imports import import_extra

    for module in REQUIRED_MODULES:
        import_extra(module, extra="serve")
    if server.mcp:
        import_extra("mcp", extra="mcp")
    from crossknn.serve.server import bind, is_loopback
    from crossknn.serve.settings import Limits, Settings

    settings = Settings(limits=Limits(**asdict(limits)), **asdict(server))
    # OpenMP threads that spin while they wait slow each other down where many of them run.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read when torch is first imported
    with bind(host, port) as bound:
        if is_loopback(bound) and settings.api_key is None:
            settings = replace(settings, hosts=(*LOOPBACK_HOSTS, host, *(allow_host or ())))
        with ProgressBars(log=True) as progress:
            service = open_service(corpus, opened, settings, example=example, progress=progress)
        _run(service, bound)


def open_service(
    corpus: Path | None, opened: options.SourceOptions, settings: Settings, *, example: bool, progress: Progress
) -> Service:
    """The service of a corpus or an index, or of the example."""
    from crossknn.serve.service import Service

    if example == (corpus is not None):
        raise InputError("Give either a corpus or an index to serve, or --example.")
    if corpus is None:
        return _open_example(settings, device=opened.device, progress=progress)
    opened.check(corpus)
    settings = replace(settings, title=settings.title or corpus.stem)
    source = corpus if options.is_index(corpus) else opened.read(corpus, progress)
    return Service(source, settings=settings, **opened.arguments(source, corpus, progress))


def _open_example(settings: Settings, *, device: str | None, progress: Progress) -> Service:
    """The dictionary of the demo, built first if there is none, with its title and queries where none are given."""
    from crossknn.example.demo import Demo, last_build
    from crossknn.serve.service import Service

    queries = SHOWCASE if settings.example_queries is None else settings.example_queries
    title = settings.title or "A dictionary: the senses of WordNet"
    settings = replace(settings, title=title, example_queries=queries)
    demo = Demo(DEMO_FOLDER, senses=last_build(DEMO_FOLDER) or DEMO_SENSES, device=device, progress=progress)
    index = demo.build().index
    assert index is not None
    return Service(index, scorer=demo.scorer, encoder=demo.encoder, settings=settings, device=device)


def _run(service: Service, bound: socket.socket) -> None:
    from crossknn.serve import server
    from crossknn.serve.monitoring import log_to_stderr

    url = server.url_of(bound)
    if not server.is_loopback(bound) and service.settings.api_key is None:
        say(f"warning: {url} can be reached from other machines without a key. Set one with --api-key.")

    def announce() -> None:
        say(f"serving {len(service.live_index.current.searcher.items):,} items at {url} (Ctrl-C to stop)")

    log_to_stderr()
    server.run(service, bound, on_start=announce)
