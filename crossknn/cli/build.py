"""`crossknn build` and `crossknn plan`: an index from a corpus, and what it will cost."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from crossknn.cli.engine import AddressOption, EngineName, EngineOption, WorkersOption, make_engine
from crossknn.cli.index import count_bytes, describe_index
from crossknn.cli.options import (
    DEFAULT_ENCODER,
    DEFAULT_SCORER,
    DeviceOption,
    Dtype,
    DtypeOption,
    EncoderOption,
    IdFieldOption,
    JsonOption,
    ScorerOption,
    SeedOption,
    Steps,
    TextFieldOption,
    from_nothing,
    going_on,
    load_builder_encoder,
    load_scorer,
    out,
    paid_scores_of,
    print_json,
    read_items,
    say,
    work_dir_of,
)
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


CorpusArgument = Annotated[
    Path, typer.Argument(metavar="CORPUS", help="Items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")
]
QueriesOption = Annotated[
    Path | None,
    typer.Option("--queries", help="File of train queries, one per line or jsonl. Default: cut from the items."),
]
FactorsOption = Annotated[
    FactorsName, typer.Option("--factors", help="What is fitted to the scores; none: the encoder's vectors, α and β.")
]
SamplingOption = Annotated[
    SamplingName | None,
    typer.Option("--sampling", help="Which pairs are scored. Default: per-item for transductive, else per-query."),
]
PerItemOption = Annotated[
    int | None, typer.Option("--per-item", min=1, help="Train queries for each item. Default: 8.")
]
PerQueryOption = Annotated[
    int | None, typer.Option("--per-query", min=1, help="Items for each train query. Default: 100.")
]
FromOption = Annotated[
    RetrieverName | None,
    typer.Option("--from", help="per-query: whose best items are taken. Default: items at random."),
]
AnchorsOption = Annotated[
    int | None, typer.Option("--anchors", min=1, help="cur: train queries that all items are scored for. Default: 500.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="Settings of the fit, such as paper. Default: crossknn's own.")
]
PriorOption = Annotated[bool, typer.Option("--prior", help="Also learn a prior for the strategy posterior.")]
WorkDirOption = Annotated[
    Path | None,
    typer.Option("--work-dir", help="Folder that keeps scores and vectors. Default: FOLDER.work, beside the index."),
]


def build(
    corpus: CorpusArgument,
    folder: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The index: new, or replaced.")],
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
        typer.Option(
            "--signal", help="A retriever that the prior learns from; repeat for several. Default: dense and bm25."
        ),
    ] = None,
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: EncoderOption = DEFAULT_ENCODER,
    work_dir: WorkDirOption = None,
    chunk: Annotated[int, typer.Option(min=1, help="Calls that are kept together: a kill loses as many.")] = 8192,
    worker: Annotated[
        str | None, typer.Option(metavar="I/N", help="Score only part I of N, from 1/N to N/N, and stop.")
    ] = None,
    engine: EngineOption = EngineName.local,
    address: AddressOption = None,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    id_field: IdFieldOption = None,
    text_field: TextFieldOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    as_json: JsonOption = False,
) -> None:
    """Build an index of CORPUS: score pairs of train queries and items, and fit item vectors to them.

    Interrupt it any time: running it again goes on where it was. With --engine ray the machines of a cluster encode
    and score. Without, several processes may score at once, each with its own --worker; when they are done, run it
    once more without.
    """
    from crossknn.indexing.index import Index
    from crossknn.storage.atomic_dir import check_target

    check_target(folder)
    work = work_dir or work_dir_of(folder)
    if work.resolve() == folder.resolve():
        raise InputError(f"--work-dir must be another folder than the index. Got {work} for both.")
    part = None if worker is None else _read_worker(worker)
    if part is not None and engine is EngineName.ray:
        raise InputError("--worker is for processes without a cluster: leave it or --engine ray out.")
    place = make_engine(engine, address=address, workers=workers, scorer=scorer, device=device)
    method = _make_method(factors, preset=preset, anchors=anchors, seed=seed)
    chosen = _make_sampling(factors, sampling, per_item=per_item, per_query=per_query, retriever=retriever, seed=seed)
    settings: dict[str, Any] = {"factors": method, "sampling": chosen, "seed": seed, "device": device, "chunk": chunk}
    settings |= {"queries": _read_queries(queries), "work_dir": work, "prior": prior, "engine": place}
    if signals:
        settings["signals"] = _read_signals(signals, prior=prior)
    with Steps() as progress:
        items = read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
    with Steps(keep=True, lines=True) as steps, going_on():
        settings["progress"] = from_nothing(steps)
        settings["scorer"] = load_scorer(scorer, device=device, dtype=dtype, cache=paid_scores_of(scorer, work))
        settings["encoder"] = load_builder_encoder(encoder, device=device)
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
    say(f"Scores and vectors stay in {work}: later builds reuse them. Delete it when you want none.")


def plan(
    corpus: CorpusArgument,
    folder: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="The index: what FOLDER.work holds is paid.")
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
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: EncoderOption = DEFAULT_ENCODER,
    work_dir: WorkDirOption = None,
    seed: SeedOption = 0,
    id_field: IdFieldOption = None,
    text_field: TextFieldOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    as_json: JsonOption = False,
) -> None:
    """Say what an index of CORPUS would cost, built this way and in the usual ways, before anything is paid.

    512 pairs are scored, 256 items and 64 queries encoded to measure both models; nothing is written.
    """
    from crossknn.indexing.planner import plan_build

    method = _make_method(factors, preset=preset, anchors=anchors, seed=seed)
    chosen = _make_sampling(factors, sampling, per_item=per_item, per_query=per_query, retriever=retriever, seed=seed)
    train = _read_queries(queries)
    with Steps() as progress:
        items = read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
        planned = plan_build(
            items,
            scorer=load_scorer(scorer, device=device, dtype=dtype, cache=None),
            encoder=load_builder_encoder(encoder, device=device),
            queries=train,
            sampling=chosen,
            factors=method,
            prior=prior,
            work_dir=work_dir or work_dir_of(folder or corpus),
            seed=seed,
            device=device,
            progress=progress,
        )
    if as_json:
        speeds = {"calls_per_second": planned.calls_per_second, "items_per_second": planned.items_per_second}
        print_json([{**cost.as_dict(), **speeds} for cost in planned.costs])
    else:
        _print_plan(planned)


def _make_method(name: FactorsName, *, preset: str | None, anchors: int | None, seed: int) -> Method | None:
    from crossknn.indexing.factorization.cur import Cur
    from crossknn.indexing.factorization.inductive import Inductive
    from crossknn.indexing.factorization.transductive import Transductive
    from crossknn.indexing.index import DEFAULT_FACTORS

    if anchors is not None and name is not FactorsName.cur:
        raise InputError(f"--anchors goes with --factors cur only. Got --factors {name} instead.")
    if name in (FactorsName.cur, FactorsName.none):
        if preset is not None:
            raise InputError(
                f"--preset goes with transductive or inductive factors only. Got --factors {name} instead."
            )
        return None if name is FactorsName.none else Cur(anchors=anchors or Cur.anchors, seed=seed)
    kind = Inductive if name is FactorsName.inductive else Transductive
    if preset is not None:
        return kind.preset(preset, seed=seed)
    return Inductive(seed=seed) if kind is Inductive else replace(DEFAULT_FACTORS, seed=seed)


def _make_sampling(
    factors: FactorsName,
    name: SamplingName | None,
    *,
    per_item: int | None,
    per_query: int | None,
    retriever: RetrieverName | None,
    seed: int,
) -> list[Sampling] | None:
    """The samplings that the options name; None where they name none."""
    from crossknn.indexing.sampling import PerItem, PerQuery

    options = {"--per-item": per_item, "--per-query": per_query, "--from": retriever}
    given = [option for option, value in options.items() if value is not None]
    if factors is FactorsName.cur and (given or name):
        raise InputError(f"cur scores every item for every anchor: leave {given[0] if given else '--sampling'} out.")
    others = [option for option in given if name is not None and (option == "--per-item") != (name == "per-item")]
    if others:
        raise InputError(f"{others[0]} does not go with --sampling {name}. Leave one of them out.")
    wanted: list[Sampling] = []
    if name is SamplingName.per_item or per_item is not None:
        wanted.append(PerItem(queries=per_item or PerItem.queries, seed=seed))
    if name is SamplingName.per_query or per_query is not None or retriever is not None:
        best = None if retriever is None else str(retriever)
        wanted.append(PerQuery(items=per_query or PerQuery.items, retriever=best, seed=seed))
    return wanted or None


def _read_signals(names: list[RetrieverName], *, prior: bool) -> list[str]:
    if not prior:
        raise InputError(f"--signal goes with --prior only. Got --signal {names[0]} without.")
    return [name.value for name in names]


def _read_worker(given: str) -> tuple[int, int]:
    """Which part, counted from 0, of how many."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", given)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--worker must be I/N with I between 1 and N, such as 2/4. Got {given!r} instead.")
    return int(found[1]) - 1, int(found[2])


def _read_queries(path: Path | None) -> list[str] | None:
    return None if path is None else list(read_items(path).texts)


def _score_part(items: Items, part: tuple[int, int], settings: dict[str, Any], *, as_json: bool) -> None:
    from crossknn.indexing.builder import Build

    build = Build(items, **settings)
    build.score(part)
    calls, work, worker = build.calls_made, settings["work_dir"], f"{part[0] + 1} of {part[1]}"
    if as_json:
        print_json([{"worker": worker, "calls_made": calls, "work_dir": str(work)}])
    else:
        out.print(Text(f"part {worker}: {calls:,} calls made, their scores are in {work}"), soft_wrap=True)
    say("When all parts are scored, run the same command without --worker.")


def _print_plan(plan: BuildPlan) -> None:
    spared = any(cost.to_make != cost.calls for cost in plan.costs)
    names = ["calls", *(["left to\nmake"] * spared), "score\nmin", "encode\nmin", "fit\nmin", "all\nmin"]
    numbers = [Column(name, justify="right", no_wrap=True) for name in [*names, "index\nMB", "memory\nMB"]]
    table = Table(Column("way", overflow="fold"), *numbers, box=None, pad_edge=False, header_style="dim")
    for cost in plan.costs:
        calls = [cost.calls, cost.to_make] if spared else [cost.calls]
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
        f"Measured with {calls_made} and a few items ({plan.items_per_second:,.0f} a second). Minutes to fit are "
        "rough, and fewer where the fit stops early. Memory is what the build needs besides its models.",
        highlight=False,
        style="dim",
    )
