"""`crossknn bench matrix` and `crossknn bench set`: strategies against exact search on your data."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from crossknn.cli.console import ProgressBars, out, resumable, say
from crossknn.cli.options import (
    DEFAULT_ENCODER,
    DEFAULT_SCORER,
    AddressOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    EncoderOption,
    EngineName,
    EngineOption,
    ScorerOption,
    SeedOption,
    WorkersOption,
    default_work_dir,
    load_index_encoder,
    load_scorer,
    make_engine,
)
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.compare import Quality
    from crossknn.evaluate.comparison import Comparison
    from crossknn.evaluate.tasks import Task
    from crossknn.types import Progress

DEV_QUERIES = 50  # of a set of texts, where each costs as many calls as there are items

app = typer.Typer(
    help="Compare strategies with exact search: how much they find, for how many calls.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StrategiesOption = Annotated[
    str | None,
    typer.Option(
        "--strategies",
        help="Names between commas, with settings after colons: rerank:retriever=fused,axn:mix=0.8:first=bm25. "
        "Known: rerank, axn, anncur, adacur, tour, gar, posterior. Default: all that the data have scores for.",
    ),
]
BudgetsOption = Annotated[str, typer.Option("--budgets", help="Calls per query, between commas.")]
KsOption = Annotated[str, typer.Option("--k", help="Of which top k the found share is measured, between commas.")]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, help="Of strategies that set none; a smaller budget has fewer.")
]
CallsOption = Annotated[
    int,
    typer.Option(
        "--index-calls-per-item", min=0, help="Offline calls per item: axn also runs with vectors fitted to them."
    ),
]
QueriesOption = Annotated[
    int | None, typer.Option("--queries", min=1, help="Ask only the first of the test queries. Default: all.")
]
TuneOption = Annotated[
    bool,
    typer.Option(
        "--tune",
        help="Choose the settings that a name leaves open on dev queries, one for all k and budgets, and show beside "
        "them what the best setting of each k and budget would have found.",
    ),
]
JsonFileOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers into this file.")
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", metavar="FOLDER", help="Also write a page and its figures into this folder.")
]
StudiesOption = Annotated[
    str | None,
    typer.Option(
        "--studies",
        help="What the report and the file study beside budgets, between commas: rounds, mix, sampling, latency, "
        "distributions, quality; or none. Default: all in a report.",
    ),
]


@app.command()
def matrix(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of exact scores; no model is needed.")],
    strategies: StrategiesOption = None,
    budgets: BudgetsOption = "50,100,500",
    ks: KsOption = "1,10,100",
    rounds: RoundsOption = 10,
    seed: SeedOption = 0,
    calls_per_item: CallsOption = 0,
    queries: QueriesOption = None,
    tune: TuneOption = False,
    json_file: JsonFileOption = None,
    report: ReportOption = None,
    studies: StudiesOption = None,
) -> None:
    """Compare strategies on exact scores that were computed before.

    Without train scores the first half of the test queries is for learning, and the second half is asked. CUR
    (anncur, adacur) learns from all train scores. Where the folder says which items are relevant, nDCG@10, MRR@10 and
    accuracy are measured, too. With --tune the last fifth of the train queries, at most 100, are dev
    queries: nothing is learned from them.
    """
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.tasks import read_matrix

    sizes = {"budgets": _read_sizes("--budgets", budgets), "ks": _read_sizes("--k", ks)}
    _check_outputs(json_file, report)
    chosen = _choose_studies(studies, json_file, report)
    with ProgressBars() as progress:
        task = _choose_judged(read_matrix(folder, queries=queries, tune=tune), chosen, named=studies is not None)
        bench = Bench(
            task, calls_per_item=calls_per_item, anchors=len(task.train), seed=seed, progress=progress.from_zero
        )
        run = _plan(strategies, bench, **sizes, rounds=rounds, tune=tune, progress=progress)
        given = {"--strategies": strategies, "--budgets": budgets, "--k": ks, "--rounds": rounds, "--seed": seed}
        given |= {"--index-calls-per-item": calls_per_item, "--queries": queries, "--tune": tune}
        comparison = run(bench, _command("matrix", str(folder), given))
        comparison = _add_studies(comparison, bench, chosen, rounds, progress.from_zero)
    _present(comparison, sizes["ks"], json_file, report)


@app.command(name="set")
def set_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SET",
            help="A BEIR folder (corpus.jsonl, queries.jsonl, qrels/*.tsv), zeshel:FOLDER:DOMAIN (with :100 at its end "
            "for 100 train queries instead of 500), or ir_datasets:NAME.",
        ),
    ],
    strategies: StrategiesOption = None,
    budgets: BudgetsOption = "50,100,500",
    ks: KsOption = "1,10,100",
    rounds: RoundsOption = 10,
    seed: SeedOption = 0,
    calls_per_item: CallsOption = 0,
    queries: QueriesOption = None,
    split: Annotated[str, typer.Option(help="The queries that are asked.")] = "test",
    train_split: Annotated[
        str | None,
        typer.Option(help="The queries to learn from. Default: train, or where there is none queries cut from items."),
    ] = None,
    train_queries: Annotated[
        int | None, typer.Option(min=1, help="Learn only from the first of the train queries. Default: from all.")
    ] = None,
    tune: TuneOption = False,
    dev_split: Annotated[
        str | None,
        typer.Option(help="The dev queries of --tune. Default: dev, or where there is none the last train queries."),
    ] = None,
    dev_queries: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many of them are scored with every item, at most. Default: {DEV_QUERIES}."),
    ] = None,
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: EncoderOption = DEFAULT_ENCODER,
    work_dir: Annotated[
        Path | None,
        typer.Option("--work-dir", help="Folder that keeps scores and vectors. Default: SET.work, beside a folder."),
    ] = None,
    engine: EngineOption = EngineName.local,
    address: AddressOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    json_file: JsonFileOption = None,
    report: ReportOption = None,
    studies: StudiesOption = None,
) -> None:
    """Compare strategies on a set of texts: every query is scored with every item first.

    Interrupt it any time: running it again goes on where it was. CUR (anncur, adacur) runs where
    --index-calls-per-item is given, with as many anchor queries. With --engine ray the machines of a cluster make the
    calls of exact search.
    """
    from crossknn._imports import import_extra
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.tasks import read_set, score_task

    sizes = {"budgets": _read_sizes("--budgets", budgets), "ks": _read_sizes("--k", ks)}
    _check_outputs(json_file, report)
    chosen = _choose_studies(studies, json_file, report)
    import_extra("ir_measures", extra="bench")
    for option, value in (("--dev-split", dev_split), ("--dev-queries", dev_queries)):
        if value is not None and not tune:
            raise InputError(f"{option} goes with --tune only. Got {value!r} without it.")
    work = work_dir or _work_dir_of(source)
    place = make_engine(engine, address=address, workers=workers, scorer=scorer, device=device)
    with ProgressBars(keep=True, log=True) as steps, resumable():
        progress = steps.from_zero
        task = read_set(
            source,
            scorer=load_scorer(scorer, device=device, dtype=dtype, work_dir=work),
            encoder=load_index_encoder(encoder, device=device),
            split=split,
            train_split=train_split,
            train_queries=train_queries,
            queries=queries,
            dev_split=dev_split,
            dev_queries=(dev_queries or DEV_QUERIES) if tune else None,
            seed=seed,
            work_dir=work,
            progress=progress,
        )
        learning: dict[str, Any] = {"calls_per_item": calls_per_item, "anchors": calls_per_item, "seed": seed}
        run = _plan(strategies, Bench(task, **learning), **sizes, rounds=rounds, tune=tune, progress=progress)
        if task.dev is not None:
            count, items = len(task.dev.queries), len(task.items)
            say(f"Tuning scores {count:,} dev queries with all {items:,} items: {count * items:,} calls, once.")
        bench = Bench(score_task(task, engine=place, progress=steps), **learning, device=device, progress=progress)
        given = {"--strategies": strategies, "--budgets": budgets, "--k": ks, "--rounds": rounds, "--seed": seed}
        given |= {"--index-calls-per-item": calls_per_item, "--queries": queries, "--split": split}
        given |= {"--train-split": train_split, "--train-queries": train_queries}
        given |= {"--scorer": scorer, "--encoder": encoder, "--tune": tune}
        given |= {"--dev-split": dev_split, "--dev-queries": dev_queries}
        comparison = run(bench, _command("set", source, given))
        comparison = _add_studies(comparison, bench, chosen, rounds, progress)
    _present(comparison, sizes["ks"], json_file, report)
    say(f"Scores and vectors stay in {work}: later runs reuse them. Delete it when you want none.")


def _read_sizes(option: str, text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or len(set(sizes)) != len(sizes):
        raise InputError(f"{option} must be different whole numbers between commas, such as 50,100. Got {text!r}.")
    return sizes


def _work_dir_of(source: str) -> Path:
    """Beside a folder, else in the current one."""
    if source.partition(":")[0] in ("zeshel", "ir_datasets"):
        return Path(re.sub(r"[^\w.-]+", "-", source) + ".work")
    return default_work_dir(Path(source))


def _plan(
    strategies: str | None,
    bench: Bench,
    *,
    budgets: list[int],
    ks: list[int],
    rounds: int,
    tune: bool,
    progress: Progress,
) -> Callable[[Bench, str], Comparison]:
    """What to do with a bench and the command that is shown: what the names say is checked before anything is paid."""
    from crossknn.evaluate.contenders import default_names, make_entries, split_names
    from crossknn.evaluate.tuning import default_families, make_families, run_tuned

    usual = default_families if tune else default_names
    names = usual(bench.offer) if strategies is None else split_names(strategies)
    if tune:
        families = make_families(names, bench.offer, budgets=budgets, rounds=rounds, seed=bench.seed)
        return lambda scored, command: run_tuned(
            scored, families, budgets=budgets, ks=ks, command=command, progress=progress
        )
    entries = make_entries(names, bench.offer, budgets=budgets, rounds=rounds, seed=bench.seed)
    return lambda scored, command: scored.run(entries, budgets=budgets, ks=ks, command=command)


def _check_outputs(json_file: Path | None, report: Path | None) -> None:
    """What would show only after all the work is said before."""
    from crossknn._imports import import_extra

    if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
        raise InputError(f"--json must be a file in a folder that exists. Got {json_file} instead.")
    if report is not None:
        import_extra("matplotlib", extra="report")
        if report.exists() and not report.is_dir():
            raise InputError(f"--report must be a folder. Got the file {report} instead.")


def _choose_studies(studies: str | None, json_file: Path | None, report: Path | None) -> list[str]:
    """All for a report, unless some are named."""
    from crossknn.evaluate.studies import NAMES, read_studies

    if studies is None:
        return [] if report is None else list(NAMES)
    chosen = read_studies(studies)
    if chosen and json_file is None and report is None:
        raise InputError("--studies are shown in a --report or a --json file. Give one of them.")
    return chosen


def _choose_judged(task: Task, studies: list[str], *, named: bool) -> Task:
    """The task; without its judgments where ir_measures is not there and no study needs it."""
    from crossknn._imports import import_extra

    if "quality" not in studies:
        return task if find_spec("ir_measures") else replace(task, judged=None)
    if task.judged is not None:
        import_extra("ir_measures", extra="bench")
    elif named:
        raise InputError(
            f"{task.name}: the study quality needs to know which items are relevant, from texts.json.xz or "
            "test_relevant_rows.json. Got neither. Leave it out of --studies."
        )
    return task


def _add_studies(comparison: Comparison, bench: Bench, names: list[str], rounds: int, progress: Progress) -> Comparison:
    from crossknn.evaluate.studies import run_studies

    if not names:
        return comparison
    return replace(comparison, studies=run_studies(bench, comparison, names, rounds=rounds, progress=progress))


def _command(name: str, source: str, given: dict[str, Any]) -> str:
    options: list[str] = []
    for option, value in given.items():
        if value is not None and value is not False:
            options += [option] if value is True else [option, str(value)]
    return shlex.join(["crossknn", "bench", name, source, *options])


def _present(comparison: Comparison, ks: list[int], json_file: Path | None, report: Path | None) -> None:
    """The numbers on the terminal, and in the files that were asked for."""
    from crossknn.evaluate.report.table import table
    from crossknn.evaluate.report.write import write_report
    from crossknn.storage.atomic import write_whole

    out.print(table(comparison, ks))
    if comparison.quality:
        out.print(_quality_table(comparison.quality))
    for name, value in comparison.data.items():
        if name.startswith("offline calls"):
            out.print(Text(f"{name}: {value:,}"))
        elif name.endswith(", tuned"):
            out.print(Text(f"{name}: {value}"), soft_wrap=True)
    if json_file is not None:
        write_whole(json_file, json.dumps(comparison.to_json(), indent=1, ensure_ascii=False).encode() + b"\n")
    if report is not None:
        say(f"Report: {write_report(comparison, report)}")


def _quality_table(quality: Sequence[Quality]) -> Table:
    drawn = Table(box=SIMPLE_HEAD, title="By the judgments", title_justify="left", title_style="bold")
    drawn.add_column("strategy", overflow="fold")
    for header in ("budget", *quality[0].values):
        drawn.add_column(header, justify="right", no_wrap=True)
    for one in sorted(quality, key=lambda one: (one.budget is None, one.budget)):
        budget = "all" if one.budget is None else f"{one.budget:,}"
        drawn.add_row(Text(one.strategy), budget, *(f"{value:.3f}" for value in one.values.values()))
    return drawn
