"""`crossknn serve`: a corpus or an index over HTTP, with a page for people."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossknn.cli.corpus import (
    SearchEncoderOption,
    VectorsOption,
    check_corpus,
    is_index,
    item_vectors,
    load_search_encoder,
)
from crossknn.cli.options import (
    DEFAULT_ENCODER,
    DEFAULT_SCORER,
    AnyModelOption,
    CacheOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    IdFieldOption,
    ScorerOption,
    Steps,
    TextFieldOption,
    load_scorer,
    naming_any_model,
    read_items,
    say,
)
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.serve.service import Service
    from crossknn.serve.settings import Settings
    from crossknn.types import Encoder, Progress, Scorer

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
EXAMPLE_FOLDER = Path("crossknn-demo")  # that of `crossknn demo`
EXAMPLE_SENSES = 3_000
OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def serve(
    corpus: Annotated[
        Path | None,
        typer.Argument(help="An index, or items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder."),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Serve the dictionary of `crossknn demo`; needs no corpus and no network.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes any that is free.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="CROSSKNN_API_KEY", help="What clients must send: Authorization: Bearer KEY."),
    ] = None,
    public_info: Annotated[bool, typer.Option("--public-info", help="/info and /metrics need no key.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that clients call it by, beside localhost. Matters on loopback without a key."),
    ] = None,
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: SearchEncoderOption = DEFAULT_ENCODER,
    vectors: VectorsOption = None,
    any_model: AnyModelOption = False,
    id_field: IdFieldOption = None,
    text_field: TextFieldOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    cache: CacheOption = None,
    max_k: Annotated[int, typer.Option(min=1, help="Most hits per query.")] = 1_000,
    max_budget: Annotated[int, typer.Option(min=1, help="Most calls per query.")] = 1_000,
    max_queries: Annotated[int, typer.Option(min=1, help="Most queries of a search.")] = 64,
    max_pairs: Annotated[int, typer.Option(min=1, help="Most pairs of a request for scores.")] = 1_000,
    max_filter_ids: Annotated[int, typer.Option(min=1, help="Most ids of a filter.")] = 100_000,
    max_text_bytes: Annotated[int, typer.Option(min=1, help="Of one text.")] = 65_536,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Of a whole request.")] = 4_194_304,
    max_deadline: Annotated[float, typer.Option(help="Seconds; also of searches that set none.")] = 60.0,
    workers: Annotated[int, typer.Option(min=1, help="Requests that are worked on at once.")] = 32,
    waiting: Annotated[int, typer.Option(min=0, help="Requests that may wait; more get status 429.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Most pairs that the scorer gets at once.")] = 512,
    scorer_timeout: Annotated[float, typer.Option(help="Seconds until a scorer counts as stalled.")] = 60.0,
    poll: Annotated[float, typer.Option(help="Seconds between two looks for a newer index.")] = 2.0,
    grace: Annotated[float, typer.Option(help="Seconds that requests have to end after SIGTERM.")] = 30.0,
    log_queries: Annotated[bool, typer.Option("--log-queries", help="Write queries into the log, too.")] = False,
) -> None:
    """Serve CORPUS over HTTP: searches, scores, the common /rerank, and a page to try them.

    Logs go to standard error, one JSON object per line. An index that is replaced is taken without a pause.
    """
    _check_extra()
    from crossknn.serve.server import bind, is_loopback
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
    # Threads that wait by spinning make each other many times slower where many of them work.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read when torch is first imported
    with bind(host, port) as bound:
        if is_loopback(bound) and api_key is None:
            settings = replace(settings, hosts=(*OWN_HOSTS, host, *(allow_host or ())))
        if example and corpus is not None:
            raise InputError("give a corpus or --example, one of the two.")
        with Steps(lines=True) as progress:
            if example:
                service = _open_example(settings, device=device, progress=progress)
            else:
                service = _open(
                    _check_corpus(
                        corpus,
                        {"--vectors": vectors, "--id-field": id_field, "--text-field": text_field},
                        {"--any-model": any_model},
                    ),
                    load_scorer(scorer, device=device, dtype=dtype, cache=cache),
                    load_search_encoder(encoder, device=device),
                    settings,
                    vectors=vectors,
                    any_model=any_model,
                    id_field=id_field,
                    text_fields=text_field,
                    device=device,
                    progress=progress,
                )
        _run(service, bound)


def _check_extra() -> None:
    from crossknn._imports import import_extra

    for module in NEEDED:
        import_extra(module, extra="serve")


def _check_corpus(corpus: Path | None, for_items: dict[str, Any], for_index: dict[str, Any]) -> Path:
    if corpus is None:
        raise InputError("give a corpus or an index to serve, or --example to try it.")
    check_corpus(corpus, for_items, for_index)
    return corpus


def _open(
    corpus: Path,
    scorer: Scorer,
    encoder: Encoder | None,
    settings: Settings,
    *,
    vectors: Path | None,
    any_model: bool,
    id_field: str | None,
    text_fields: Sequence[str] | None,
    device: str | None,
    progress: Progress,
) -> Service:
    from crossknn.serve.service import Service

    options: dict[str, Any] = {"scorer": scorer, "encoder": encoder, "settings": settings}
    options |= {"device": device, "progress": progress}
    if is_index(corpus):
        with naming_any_model():
            return Service(corpus, check_models=not any_model, **options)
    items = read_items(corpus, id_field=id_field, text_fields=text_fields, progress=progress)
    return Service(items, vectors=item_vectors(items, encoder, vectors, progress), **options)


def _open_example(settings: Settings, *, device: str | None, progress: Progress) -> Service:
    """The demo's dictionary: the one that is there, or a smaller one that is built in a minute."""
    from crossknn.example.demo import Demo, find_build
    from crossknn.serve.service import Service

    demo = Demo(EXAMPLE_FOLDER, senses=find_build(EXAMPLE_FOLDER) or EXAMPLE_SENSES, device=device, progress=progress)
    index = demo.build().index
    if index is None:
        raise InputError("the demo has no index.")
    return Service(index, scorer=demo.scorer, encoder=demo.encoder, settings=settings, device=device)


def _run(service: Service, bound: socket.socket) -> None:
    from crossknn.serve import server
    from crossknn.serve.logs import log_to

    url = server.url_of(bound)
    if not server.is_loopback(bound) and service.settings.api_key is None:
        say(f"warning: {url} can be reached from other machines and needs no key. Give one with --api-key.")

    def announce() -> None:
        say(f"serving {len(service.live_index.current.searcher.items):,} items at {url} (Ctrl-C ends it)")

    log_to()
    server.run(service, bound, on_start=announce)
