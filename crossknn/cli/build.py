"""`crossknn build` and `crossknn plan`: build an index, and estimate beforehand what that costs."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from crossknn.cli import options
from crossknn.cli.console import ProgressBars, out, print_json, resumable, say
from crossknn.cli.index import count_bytes, describe_index
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.indexing.factorization.factors import Method
    from crossknn.indexing.planner import BuildPlan
    from crossknn.indexing.sampling import Sampling
    from crossknn.items.items import Items


class FactorsName(StrEnum):
    transductive = "transductive"
    inductive = "inductive"
    cur = "cur"
    none = "none"


class SamplingName(StrEnum):
    per_item = "per-item"
    per_query = "per-query"


class RetrieverName(StrEnum):
    dense = "dense"
    bm25 = "bm25"
    tfidf = "tfidf"
    fused = "fused"


QueriesOption = Annotated[
    Path | None,
    typer.Option("--queries", help="File of train queries, one per line or jsonl. Default: generated from the items."),
]
FactorsOption = Annotated[
    FactorsName,
    typer.Option("--factors", help="Factorization of the scores. none: the encoder's vectors, scaled by α and β."),
]
SamplingOption = Annotated[
    SamplingName | None,
    typer.Option("--sampling", help="Which pairs to score. Default: per-item for transductive, else per-query."),
]
PerItemOption = Annotated[
    int | None, typer.Option("--per-item", min=1, help="Train queries to score with each item. Default: 8.")
]
PerQueryOption = Annotated[
    int | None, typer.Option("--per-query", min=1, help="Items to score with each train query. Default: 100.")
]
FromOption = Annotated[
    RetrieverName | None,
    typer.Option("--from", help="per-query: take the best items of this retriever. Default: random items."),
]
AnchorsOption = Annotated[
    int | None, typer.Option("--anchors", min=1, help="cur: train queries to score with all items. Default: 500.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="Settings of the factorization, such as paper. Default: crossknn's own.")
]
PriorOption = Annotated[bool, typer.Option("--prior", help="Also fit a prior for the strategy posterior.")]
WorkDirOption = Annotated[
    Path | None,
    typer.Option("--work-dir", help="Folder that keeps scores and vectors. Default: FOLDER.work, next to the index."),
]


def build(
    corpus: options.ItemsArgument,
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Folder of the index: new, or replaced.")
    ],
    queries: QueriesOption = None,
    factors: FactorsOption = FactorsName.transductive,
    sampling: SamplingOption = None,
    per_item: PerItemOption = None,
    per_query: PerQueryOption = None,
    retriever: FromOption = None,
    anchors: AnchorsOption = None,
    preset: PresetOption = None,
    prior: PriorOption = False,
    signals: Annotated[
        list[RetrieverName] | None,
        typer.Option("--signal", help="A retriever the prior uses; repeat for several. Default: dense and bm25."),
    ] = None,
    scorer: options.ScorerOption = options.DEFAULT_SCORER,
    encoder: options.EncoderOption = options.DEFAULT_ENCODER,
    work_dir: WorkDirOption = None,
    chunk: Annotated[
        int, typer.Option(min=1, help="Calls per file of scores: an abrupt end loses at most these.")
    ] = 8192,
    worker: Annotated[
        str | None, typer.Option(metavar="I/N", help="Score only part I of N, from 1/N to N/N, then stop.")
    ] = None,
    engine: options.EngineOption = options.EngineName.local,
    address: options.AddressOption = None,
    workers: options.WorkersOption = None,
    seed: options.SeedOption = 0,
    id_field: options.IdFieldOption = None,
    text_field: options.TextFieldOption = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = options.Dtype.auto,
    as_json: options.JsonOption = False,
) -> None:
    """Build an index of CORPUS: score pairs of train queries and items, and fit item vectors to the scores.

    Run an interrupted build again to resume it. With --engine ray, the machines of a cluster encode and score.
    Without a cluster, several processes can score at once, each with its own --worker; when they are done, run the
    command once more without --worker.
    """
    from crossknn.indexing.index import Index
    from crossknn.storage.atomic_dir import check_target

    check_target(folder)
    work = work_dir or options.default_work_dir(folder)
    if work.resolve() == folder.resolve():
        raise InputError(f"--work-dir must be another folder than the index, got {work} for both.")
    part = None if worker is None else _parse_worker(worker)
    if part is not None and engine is options.EngineName.ray:
        raise InputError("--worker splits a build without a cluster. Leave it or --engine ray out.")
    if signals and not prior:
        raise InputError(f"--signal applies to --prior only, got {signals[0]} without it.")
    settings: dict[str, Any] = {
        "queries": _read_queries(queries),
        "factors": _choose_factorization(factors, preset=preset, anchors=anchors, seed=seed),
        "sampling": _choose_sampling(factors, sampling, per_item, per_query, retriever, seed=seed),
        "prior": prior,
        "engine": options.make_engine(engine, address=address, workers=workers, scorer=scorer, device=device),
        "work_dir": work,
        "chunk": chunk,
        "seed": seed,
        "device": device,
    }
    if signals:
        settings["signals"] = [name.value for name in signals]
    with ProgressBars() as progress:
        items = options.read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
    with ProgressBars(keep=True, log=True) as bars, resumable():
        settings["progress"] = bars.from_zero
        settings["scorer"] = options.load_scorer(scorer, device=device, dtype=dtype, work_dir=work)
        settings["encoder"] = options.load_index_encoder(encoder, device=device)
        if part is not None:
            _score_part(items, part, settings, as_json=as_json)
            return
        index = Index.build(items, **settings)
        index.save(folder)
    if as_json:
        print_json([{**describe_index(index, folder), "work_dir": str(work)}])
    else:
        out.print(Text(str(index.report)), soft_wrap=True)
        out.print(Text(f"index: {folder}, {count_bytes(folder):,} bytes"), soft_wrap=True)
    say(f"Later builds reuse the scores and vectors in {work}. Delete it if you need no more.")


def plan(
    corpus: options.ItemsArgument,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Folder of the index: count what FOLDER.work has."),
    ] = None,
    queries: QueriesOption = None,
    factors: FactorsOption = FactorsName.transductive,
    sampling: SamplingOption = None,
    per_item: PerItemOption = None,
    per_query: PerQueryOption = None,
    retriever: FromOption = None,
    anchors: AnchorsOption = None,
    preset: PresetOption = None,
    prior: PriorOption = False,
    scorer: options.ScorerOption = options.DEFAULT_SCORER,
    encoder: options.EncoderOption = options.DEFAULT_ENCODER,
    work_dir: WorkDirOption = None,
    seed: options.SeedOption = 0,
    id_field: options.IdFieldOption = None,
    text_field: options.TextFieldOption = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = options.Dtype.auto,
    as_json: options.JsonOption = False,
) -> None:
    """Estimate the cost of an index of CORPUS, built with these options and in the usual ways.

    Scores 512 pairs and encodes 256 items and 64 queries to measure both models; writes nothing.
    """
    from crossknn.indexing.planner import plan_build

    method = _choose_factorization(factors, preset=preset, anchors=anchors, seed=seed)
    chosen = _choose_sampling(factors, sampling, per_item, per_query, retriever, seed=seed)
    train = _read_queries(queries)
    with ProgressBars() as progress:
        items = options.read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
        planned = plan_build(
            items,
            scorer=options.load_scorer(scorer, device=device, dtype=dtype),
            encoder=options.load_index_encoder(encoder, device=device),
            queries=train,
            sampling=chosen,
            factors=method,
            prior=prior,
            work_dir=work_dir or options.default_work_dir(folder or corpus),
            seed=seed,
            device=device,
            progress=progress,
        )
    if as_json:
        speeds = {"calls_per_second": planned.calls_per_second, "items_per_second": planned.items_per_second}
        print_json([{**cost.as_dict(), **speeds} for cost in planned.costs])
    else:
        _print_plan(planned)


def _choose_factorization(name: FactorsName, *, preset: str | None, anchors: int | None, seed: int) -> Method | None:
    from crossknn.indexing.factorization.factors import Cur
    from crossknn.indexing.factorization.inductive import Inductive
    from crossknn.indexing.factorization.transductive import Transductive
    from crossknn.indexing.index import DEFAULT_FACTORS

    if anchors is not None and name is not FactorsName.cur:
        raise InputError(f"--anchors applies to --factors cur only, got --factors {name}.")
    if name in (FactorsName.cur, FactorsName.none):
        if preset is not None:
            raise InputError(f"--preset applies to --factors transductive or inductive only, got --factors {name}.")
        return None if name is FactorsName.none else Cur(anchors=anchors or Cur.anchors, seed=seed)
    kind = Inductive if name is FactorsName.inductive else Transductive
    if preset is not None:
        return kind.preset(preset, seed=seed)
    return Inductive(seed=seed) if kind is Inductive else replace(DEFAULT_FACTORS, seed=seed)


def _choose_sampling(
    factors: FactorsName,
    name: SamplingName | None,
    per_item: int | None,
    per_query: int | None,
    retriever: RetrieverName | None,
    *,
    seed: int,
) -> list[Sampling] | None:
    """The samplings that the options name; None if they name none."""
    from crossknn.indexing.sampling import PerItem, PerQuery

    values = {"--sampling": name, "--per-item": per_item, "--per-query": per_query, "--from": retriever}
    given = [option for option, value in values.items() if value is not None]
    if factors is FactorsName.cur and given:
        raise InputError(f"--factors cur scores every item for every anchor query. Leave {given[-1]} out.")
    for option in given:
        if name is not None and option != "--sampling" and (option == "--per-item") != (name == "per-item"):
            raise InputError(f"{option} does not apply to --sampling {name}. Leave one of them out.")
    samplings: list[Sampling] = []
    if name is SamplingName.per_item or per_item is not None:
        samplings.append(PerItem(queries=per_item or PerItem.queries, seed=seed))
    if name is SamplingName.per_query or per_query is not None or retriever is not None:
        best_of = None if retriever is None else str(retriever)
        samplings.append(PerQuery(items=per_query or PerQuery.items, retriever=best_of, seed=seed))
    return samplings or None


def _parse_worker(text: str) -> tuple[int, int]:
    """Which part, counted from 0, of how many."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--worker must be I/N with I between 1 and N, such as 2/4, got {text!r}.")
    return int(found[1]) - 1, int(found[2])


def _read_queries(path: Path | None) -> list[str] | None:
    return None if path is None else list(options.read_items(path).texts)


def _score_part(items: Items, part: tuple[int, int], settings: dict[str, Any], *, as_json: bool) -> None:
    from crossknn.indexing.builder import Build

    build = Build(items, **settings)
    build.score(part)
    calls, work, worker = build.calls_made, settings["work_dir"], f"{part[0] + 1} of {part[1]}"
    if as_json:
        print_json([{"worker": worker, "calls_made": calls, "work_dir": str(work)}])
    else:
        out.print(Text(f"part {worker}: {calls:,} calls made, scores in {work}"), soft_wrap=True)
    say("When all parts are scored, run the same command without --worker.")


def _print_plan(plan: BuildPlan) -> None:
    reuses = any(cost.to_make != cost.calls for cost in plan.costs)
    names = ["calls", *(["left to\nmake"] * reuses), "score\nmin", "encode\nmin", "fit\nmin", "all\nmin"]
    numbers = [Column(name, justify="right", no_wrap=True) for name in [*names, "index\nMB", "memory\nMB"]]
    table = Table(Column("way", overflow="fold"), *numbers, box=None, pad_edge=False, header_style="dim")
    for cost in plan.costs:
        calls = [cost.calls, cost.to_make] if reuses else [cost.calls]
        seconds = (cost.scoring, cost.encoding, cost.factorizing, cost.seconds)
        table.add_row(
            cost.way,
            *("≤ " * cost.at_most + f"{count:,}" for count in calls),
            *(f"{value / 60:,.1f}" for value in seconds),
            *(f"{size / 1e6:,.0f}" for size in (cost.disk, cost.memory)),
        )
    out.print(table)
    calls_made = (
        f"{plan.calls_made} calls ({plan.calls_per_second:,.0f} a second)" if plan.calls_per_second else "no calls"
    )
    out.print(
        f"Measured with {calls_made} and a few items ({plan.items_per_second:,.0f} a second). The time to fit is "
        "rough, and shorter if the fit stops early. Memory is what the build needs besides the models.",
        highlight=False,
        style="dim",
    )
