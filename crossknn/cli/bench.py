"""`crossknn bench matrix` and `crossknn bench set`: strategies against exact search on your data."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from crossknn.cli.common import (
    DEFAULT_ENCODER,
    DEFAULT_SCORER,
    DeviceOption,
    Dtype,
    DtypeOption,
    EncoderOption,
    ScorerOption,
    SeedOption,
    Steps,
    from_nothing,
    going_on,
    load_builder_encoder,
    load_scorer,
    out,
    say,
    work_dir_of,
)
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.evaluate.bench import Bench, Outcome, Quality
    from crossknn.evaluate.contenders import Entry

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
        "Known: rerank, axn, anncur, adacur, tour, gar. Default: all that the data have scores for.",
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
JsonFileOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers into this file.")
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", metavar="FOLDER", help="Also write a page and a figure into this folder.")
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
    json_file: JsonFileOption = None,
    report: ReportOption = None,
) -> None:
    """Compare strategies on exact scores that were computed before.

    Without train scores the first half of the test queries is for learning, and the second half is asked. CUR
    (anncur, adacur) learns from all train scores.
    """
    from crossknn.evaluate.bench import Bench
    from crossknn.evaluate.tasks import read_matrix

    sizes = {"budgets": _read_sizes("--budgets", budgets), "ks": _read_sizes("--k", ks)}
    _check_outputs(json_file, report)
    with Steps() as progress:
        task = read_matrix(folder, queries=queries)
        bench = Bench(
            task, calls_per_item=calls_per_item, anchors=len(task.train), seed=seed, progress=from_nothing(progress)
        )
        entries = _read_entries(strategies, bench, sizes["budgets"], rounds)
        given = {"--strategies": strategies, "--budgets": budgets, "--k": ks, "--rounds": rounds, "--seed": seed}
        given |= {"--index-calls-per-item": calls_per_item, "--queries": queries}
        outcome = bench.run(entries, **sizes, command=_command("matrix", folder, given))
    _present(outcome, sizes["ks"], json_file, report)


@app.command(name="set")
def set_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A BEIR folder: corpus.jsonl, queries.jsonl, qrels/*.tsv.")
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
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: EncoderOption = DEFAULT_ENCODER,
    work_dir: Annotated[
        Path | None,
        typer.Option("--work-dir", help="Folder that keeps scores and vectors. Default: DIR.work, beside the set."),
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    json_file: JsonFileOption = None,
    report: ReportOption = None,
) -> None:
    """Compare strategies on a set of texts: every query is scored with every item first.

    Interrupt it any time: running it again goes on where it was. CUR (anncur, adacur) runs where
    --index-calls-per-item is given, with as many anchor queries.
    """
    from crossknn.evaluate.bench import Bench
    from crossknn.evaluate.tasks import read_set, score_task
    from crossknn.optional import import_extra

    sizes = {"budgets": _read_sizes("--budgets", budgets), "ks": _read_sizes("--k", ks)}
    _check_outputs(json_file, report)
    import_extra("ir_measures", extra="bench")
    work = work_dir or work_dir_of(folder)
    with Steps(keep=True, lines=True) as steps, going_on():
        progress = from_nothing(steps)
        task = read_set(
            folder,
            scorer=load_scorer(scorer, device=device, dtype=dtype, cache=None),
            encoder=load_builder_encoder(encoder, device=device),
            split=split,
            train_split=train_split,
            queries=queries,
            work_dir=work,
            progress=progress,
        )
        learning: dict[str, Any] = {"calls_per_item": calls_per_item, "anchors": calls_per_item, "seed": seed}
        entries = _read_entries(strategies, Bench(task, **learning), sizes["budgets"], rounds)
        bench = Bench(score_task(task, progress=steps), **learning, device=device, progress=progress)
        given = {"--strategies": strategies, "--budgets": budgets, "--k": ks, "--rounds": rounds, "--seed": seed}
        given |= {"--index-calls-per-item": calls_per_item, "--queries": queries, "--split": split}
        given |= {"--train-split": train_split, "--scorer": scorer, "--encoder": encoder}
        outcome = bench.run(entries, **sizes, command=_command("set", folder, given))
    _present(outcome, sizes["ks"], json_file, report)
    say(f"Scores and vectors stay in {work}: later runs reuse them. Delete it when you want none.")


def _read_sizes(option: str, text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or len(set(sizes)) != len(sizes):
        raise InputError(f"{option} must be different whole numbers between commas, such as 50,100. Got {text!r}.")
    return sizes


def _read_entries(strategies: str | None, bench: Bench, budgets: list[int], rounds: int) -> list[Entry]:
    from crossknn.evaluate.contenders import default_names, make_entries, split_names

    names = default_names(bench.offer) if strategies is None else split_names(strategies)
    return make_entries(names, bench.offer, budgets=budgets, rounds=rounds, seed=bench.seed)


def _check_outputs(json_file: Path | None, report: Path | None) -> None:
    """What would show only after all the work is said before."""
    from crossknn.optional import import_extra

    if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
        raise InputError(f"--json must be a file in a folder that exists. Got {json_file} instead.")
    if report is not None:
        import_extra("matplotlib", extra="report")
        if report.exists() and not report.is_dir():
            raise InputError(f"--report must be a folder. Got the file {report} instead.")


def _command(name: str, folder: Path, given: dict[str, Any]) -> str:
    options = [str(part) for option, value in given.items() if value is not None for part in (option, value)]
    return shlex.join(["crossknn", "bench", name, str(folder), *options])


def _present(outcome: Outcome, ks: list[int], json_file: Path | None, report: Path | None) -> None:
    """The numbers on the terminal, and in the files that were asked for."""
    from crossknn.evaluate.report import write_report
    from crossknn.evaluate.table import table
    from crossknn.files import write_whole

    out.print(table(outcome.comparison, ks))
    if outcome.quality:
        out.print(_quality_table(outcome.quality))
    for name, value in outcome.comparison.data.items():
        if name.startswith("offline calls"):
            out.print(Text(f"{name}: {value:,}"))
    if json_file is not None:
        write_whole(json_file, json.dumps(outcome.to_json(), indent=1, ensure_ascii=False).encode() + b"\n")
    if report is not None:
        say(f"Report: {write_report(outcome.comparison, report)}")


def _quality_table(quality: list[Quality]) -> Table:
    drawn = Table(box=SIMPLE_HEAD, title="By the judgments", title_justify="left", title_style="bold")
    drawn.add_column("strategy", overflow="fold")
    for header in ("budget", *quality[0].values):
        drawn.add_column(header, justify="right", no_wrap=True)
    for one in sorted(quality, key=lambda one: (one.budget is None, one.budget)):
        budget = "all" if one.budget is None else f"{one.budget:,}"
        drawn.add_row(Text(one.strategy), budget, *(f"{value:.3f}" for value in one.values.values()))
    return drawn
