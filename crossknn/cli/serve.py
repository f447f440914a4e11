"""`crossknn serve`: a corpus or an index over HTTP, with a web page."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossknn.cli import options
from crossknn.cli.console import ProgressBars, say
from crossknn.errors import InputError
from crossknn.example import DEMO_FOLDER, DEMO_SENSES

if TYPE_CHECKING:
    from crossknn.items.items import Items
    from crossknn.serve.service import Service
    from crossknn.serve.settings import Settings
    from crossknn.types import Progress

REQUIRED_MODULES = ("fastapi", "uvicorn", "prometheus_client")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def serve(
    corpus: Annotated[
        Path | None,
        typer.Argument(help="An index, or items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder."),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Serve the dictionary of `crossknn demo`, without corpus or network.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 for any free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="CROSSKNN_API_KEY", help="Key that clients must send, as Authorization: Bearer KEY."),
    ] = None,
    public_info: Annotated[bool, typer.Option("--public-info", help="Serve /info and /metrics without a key.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further Host name to accept, on loopback without a key; repeat for several."),
    ] = None,
    scorer: options.ScorerOption = options.DEFAULT_SCORER,
    encoder: options.OptionalEncoderOption = options.DEFAULT_ENCODER,
    vectors: options.VectorsOption = None,
    any_model: options.AnyModelOption = False,
    id_field: options.IdFieldOption = None,
    text_field: options.TextFieldOption = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = options.Dtype.auto,
    cache: options.CacheOption = None,
    max_k: Annotated[int, typer.Option(min=1, help="Limit of hits per query.")] = 1_000,
    max_budget: Annotated[int, typer.Option(min=1, help="Limit of calls per query.")] = 1_000,
    max_queries: Annotated[int, typer.Option(min=1, help="Limit of queries per search.")] = 64,
    max_pairs: Annotated[int, typer.Option(min=1, help="Limit of pairs per request for scores.")] = 1_000,
    max_filter_ids: Annotated[int, typer.Option(min=1, help="Limit of ids per filter.")] = 100_000,
    max_text_bytes: Annotated[int, typer.Option(min=1, help="Limit of bytes per text.")] = 65_536,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Limit of bytes per request.")] = 4_194_304,
    max_deadline: Annotated[float, typer.Option(help="Limit and default of a search's deadline, in seconds.")] = 60.0,
    workers: Annotated[int, typer.Option(min=1, help="Requests to run at once.")] = 32,
    waiting: Annotated[int, typer.Option(min=0, help="Requests to queue; further ones get status 429.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Limit of pairs per scorer batch.")] = 512,
    scorer_timeout: Annotated[float, typer.Option(help="Seconds after which a scorer counts as stalled.")] = 60.0,
    poll: Annotated[float, typer.Option(help="Seconds between two checks for a newer index.")] = 2.0,
    grace: Annotated[float, typer.Option(help="Seconds for running requests to end after SIGTERM.")] = 30.0,
    log_queries: Annotated[bool, typer.Option("--log-queries", help="Also log the queries.")] = False,
) -> None:
    """Serve CORPUS over HTTP: search, scores, the common /rerank, and a web page.

    Logs go to standard error, one JSON object per line. A replaced index is reloaded without a pause (hot reload).
    """
    from crossknn._imports import import_extra

    for module in REQUIRED_MODULES:
        import_extra(module, extra="serve")
    from crossknn.serve.server import bind, is_loopback
    from crossknn.serve.service import Service
    from crossknn.serve.settings import Limits, Settings

    limits = Limits(
        k=max_k,
        budget=max_budget,
        queries=max_queries,
        pairs=max_pairs,
        filter_ids=max_filter_ids,
        text_bytes=max_text_bytes,
        body_bytes=max_body_bytes,
        deadline=max_deadline,
    )
    settings = Settings(
        limits=limits,
        running=workers,
        waiting=waiting,
        batch_pairs=batch,
        scorer_timeout=scorer_timeout,
        poll=poll,
        grace=grace,
        api_key=api_key,
        public_info=public_info,
        log_queries=log_queries,
    )
    # OpenMP threads that spin while they wait slow each other down where many of them run.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read when torch is first imported
    with bind(host, port) as bound:
        if is_loopback(bound) and api_key is None:
            settings = replace(settings, hosts=(*LOOPBACK_HOSTS, host, *(allow_host or ())))
        if example == (corpus is not None):
            raise InputError("Give either a corpus or an index to serve, or --example.")
        with ProgressBars(log=True) as progress:
            if corpus is None:
                service = _open_example(settings, device=device, progress=progress)
            else:
                for_items = {"--vectors": vectors, "--id-field": id_field, "--text-field": text_field}
                options.check_corpus_options(corpus, for_items=for_items, for_index={"--any-model": any_model})
                source: Path | Items = corpus
                if not options.is_index(corpus):
                    source = options.read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
                model = options.load_scorer(scorer, device=device, dtype=dtype, cache=cache)
                dual_encoder = options.load_encoder(encoder, device=device)
                service = Service(
                    source,
                    scorer=model,
                    encoder=dual_encoder,
                    settings=settings,
                    vectors=options.load_vectors(source, dual_encoder, vectors, progress),
                    device=device,
                    check_models=not any_model,
                    progress=progress,
                )
        _run(service, bound)


def _open_example(settings: Settings, *, device: str | None, progress: Progress) -> Service:
    """The dictionary of the demo, built first if there is none."""
    from crossknn.example.demo import Demo, last_build
    from crossknn.serve.service import Service

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
