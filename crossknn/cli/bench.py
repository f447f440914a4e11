"""`crossknn bench matrix` and `crossknn bench set`: strategies compared with exact search."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

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
    from crossknn.evaluate.comparison import Comparison, Quality
    from crossknn.evaluate.tasks import Task
    from crossknn.types import Progress

DEV_QUERIES = 50  # of a dataset, where each costs as many calls as there are items
NOT_REPEATED = {"json_file", "report", "studies", "work_dir", "engine", "address", "workers", "device", "dtype"}

app = typer.Typer(
    help="Compare strategies with exact search: recall for a budget of calls.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StrategiesOption = Annotated[
    str | None,
    typer.Option(
        "--strategies",
        help="Comma-separated names, with settings after colons: rerank:retriever=fused,axn:mix=0.8:first=bm25. "
        "Known: rerank, axn, anncur, adacur, tour, gar, posterior. Default: all that the data have scores for.",
    ),
]
BudgetsOption = Annotated[str, typer.Option("--budgets", help="Calls per query, comma-separated.")]
KsOption = Annotated[str, typer.Option("--k", help="Recall is that of the true top k; comma-separated.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Of strategies that set none; at most the budget.")]
CallsOption = Annotated[
    int, typer.Option("--index-calls-per-item", min=0, help="Offline calls per item; axn also runs fitted to them.")
]
QueriesOption = Annotated[int | None, typer.Option("--queries", min=1, help="Number of test queries. Default: all.")]
TuneOption = Annotated[
    bool,
    typer.Option(
        "--tune",
        help="Choose the settings that a name leaves open on dev queries, one for all k and budgets, and also show "
        "the oracle: the best setting for each k and budget.",
    ),
]
JsonFileOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers here.")]
ReportOption = Annotated[
    Path | None, typer.Option("--report", metavar="FOLDER", help="Also write a page with figures.")
]
StudiesOption = Annotated[
    str | None,
    typer.Option(
        "--studies",
        help="Further studies in the report and the file, comma-separated: rounds, mix, sampling, latency, "
        "distributions, quality; or none. Default: all in a report.",
    ),
]


@app.command()
def matrix(
    context: typer.Context,
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
    """Compare strategies on precomputed exact scores.

    Without train scores the first half of the test queries is for learning, and only the second half is tested. CUR
    (anncur, adacur) learns from all train scores. If the folder says which items are relevant, nDCG@10, MRR@10 and
    accuracy are measured, too. With --tune the last fifth of the train queries, at most 100, are dev
    queries: nothing is learned from them.
    """
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.tasks import read_matrix

    outputs = _Outputs.check(json_file, report, studies)
    plan = _Plan(strategies, _parse_sizes("--budgets", budgets), _parse_sizes("--k", ks), rounds, tune)
    with ProgressBars() as progress:
        task = read_matrix(folder, queries=queries, tune=tune)
        task = _check_judgments(task, outputs.studies, requested=studies is not None)
        bench = Bench(
            task, calls_per_item=calls_per_item, anchors=len(task.train), seed=seed, progress=progress.from_zero
        )
        comparison = plan.run(bench, _command(context), progress)
        comparison = _add_studies(comparison, bench, outputs.studies, rounds, progress.from_zero)
    outputs.write(comparison, plan.ks)


@app.command(name="set")
def set_(
    context: typer.Context,
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
    split: Annotated[str, typer.Option(help="The test queries.")] = "test",
    train_split: Annotated[
        str | None, typer.Option(help="The train queries. Default: train if it exists, else cut from items.")
    ] = None,
    train_queries: Annotated[int | None, typer.Option(min=1, help="Number of train queries. Default: all.")] = None,
    tune: TuneOption = False,
    dev_split: Annotated[
        str | None, typer.Option(help="The dev queries of --tune. Default: dev if it exists, else train queries.")
    ] = None,
    dev_queries: Annotated[
        int | None, typer.Option(min=1, help=f"Maximum number of dev queries, all scored. Default: {DEV_QUERIES}.")
    ] = None,
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: EncoderOption = DEFAULT_ENCODER,
    work_dir: Annotated[Path | None, typer.Option(help="Keeps scores and vectors. Default: SET.work.")] = None,
    engine: EngineOption = EngineName.local,
    address: AddressOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    json_file: JsonFileOption = None,
    report: ReportOption = None,
    studies: StudiesOption = None,
) -> None:
    """Compare strategies on a dataset: every test query is scored with every item first.

    An interrupted run is resumed by the same command. CUR (anncur, adacur) runs if --index-calls-per-item is given,
    with as many anchor queries. With --engine ray the machines of a cluster make the calls of exact search.
    """
    from crossknn._imports import import_extra
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.tasks import read_set, score_task

    outputs = _Outputs.check(json_file, report, studies)
    plan = _Plan(strategies, _parse_sizes("--budgets", budgets), _parse_sizes("--k", ks), rounds, tune)
    import_extra("ir_measures", extra="bench")
    for option, value in (("--dev-split", dev_split), ("--dev-queries", dev_queries)):
        if value is not None and not tune:
            raise InputError(f"{option} needs --tune, got {value!r} without it.")
    work = work_dir or _default_work_dir(source)
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
        plan.resolve(Bench(task, **learning))  # names are checked before anything is scored
        if task.dev is not None:
            count, items = len(task.dev.queries), len(task.items)
            say(f"Tuning scores {count:,} dev queries with all {items:,} items: {count * items:,} calls, once.")
        bench = Bench(score_task(task, engine=place, progress=steps), **learning, device=device, progress=progress)
        comparison = plan.run(bench, _command(context), progress)
        comparison = _add_studies(comparison, bench, outputs.studies, rounds, progress)
    outputs.write(comparison, plan.ks)
    say(f"Scores and vectors stay in {work}: later runs reuse them. Delete it when you want none.")


def _parse_sizes(option: str, text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or len(set(sizes)) != len(sizes):
        raise InputError(f"{option} must be distinct positive integers, comma-separated, such as 50,100, got {text!r}.")
    return sizes


def _default_work_dir(source: str) -> Path:
    """Next to a folder, else in the current one."""
    if source.partition(":")[0] in ("zeshel", "ir_datasets"):
        return Path(re.sub(r"[^\w.-]+", "-", source) + ".work")
    return default_work_dir(Path(source))


def _command(context: typer.Context) -> str:
    """The command that repeats the run, without where its results go and where it computes."""
    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in NOT_REPEATED or value is None or value is False:
            continue
        if parameter.param_type_name == "argument":
            arguments.insert(0, str(value))
        else:
            arguments += parameter.opts[:1] if value is True else [parameter.opts[0], str(value)]
    return shlex.join(["crossknn", "bench", str(context.command.name), *arguments])


@dataclass(frozen=True)
class _Plan:
    """What is compared: with --tune, all candidates for the settings that the names leave open."""

    strategies: str | None
    budgets: list[int]
    ks: list[int]
    rounds: int
    tune: bool

    def resolve(self, bench: Bench) -> Sequence[Any]:
        from crossknn.evaluate.contenders import default_names, resolve_strategies, split_names
        from crossknn.evaluate.tuning import default_tuned_names, make_candidates

        usual = default_tuned_names if self.tune else default_names
        names = usual(bench.available) if self.strategies is None else split_names(self.strategies)
        options: dict[str, Any] = {"budgets": self.budgets, "rounds": self.rounds, "seed": bench.seed}
        if self.tune:
            return make_candidates(names, bench.available, **options)
        return resolve_strategies(names, bench.available, **options)

    def run(self, bench: Bench, command: str, progress: Progress) -> Comparison:
        from crossknn.evaluate.tuning import run_tuned

        options: dict[str, Any] = {"budgets": self.budgets, "ks": self.ks, "command": command}
        if self.tune:
            return run_tuned(bench, self.resolve(bench), **options, progress=progress)
        return bench.run(self.resolve(bench), **options)


@dataclass(frozen=True)
class _Outputs:
    """Where results go, and which studies are made for them."""

    json_file: Path | None
    report: Path | None
    studies: list[str]

    @classmethod
    def check(cls, json_file: Path | None, report: Path | None, studies: str | None) -> Self:
        """The outputs, if they can be written: checked before all the work."""
        from crossknn._imports import import_extra
        from crossknn.evaluate.studies import STUDY_NAMES, parse_studies

        if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
            raise InputError(f"--json must be a file in an existing folder, got {json_file}.")
        if report is not None:
            import_extra("matplotlib", extra="report")
            import_extra("jinja2", extra="report")
            if report.exists() and not report.is_dir():
                raise InputError(f"--report must be a folder, got the file {report}.")
        if studies is None:
            return cls(json_file, report, [] if report is None else list(STUDY_NAMES))
        chosen = parse_studies(studies)
        if chosen and json_file is None and report is None:
            raise InputError("--studies needs --report or --json, where the studies are shown.")
        return cls(json_file, report, chosen)

    def write(self, comparison: Comparison, ks: list[int]) -> None:
        """Print the numbers, and write the files."""
        from crossknn.evaluate.report.page import write_report
        from crossknn.evaluate.report.table import table
        from crossknn.storage.atomic import write_atomic

        out.print(table(comparison, ks))
        if comparison.quality:
            out.print(_quality_table(comparison.quality))
        for name, value in comparison.data.items():
            if name.startswith("offline calls"):
                out.print(Text(f"{name}: {value:,}"))
            elif name.endswith(", tuned"):
                out.print(Text(f"{name}: {value}"), soft_wrap=True)
        if self.json_file is not None:
            content = json.dumps(comparison.to_json(), indent=1, ensure_ascii=False).encode() + b"\n"
            write_atomic(self.json_file, content)
        if self.report is not None:
            say(f"Report: {write_report(comparison, self.report)}")


def _check_judgments(task: Task, studies: list[str], *, requested: bool) -> Task:
    """The task; without its judgments if ir_measures is missing and no study needs them."""
    from crossknn._imports import import_extra

    if "quality" not in studies:
        return task if find_spec("ir_measures") else replace(task, judged=None)
    if task.judged is not None:
        import_extra("ir_measures", extra="bench")
    elif requested:
        raise InputError(
            f"{task.name}: the study quality needs relevant items, from texts.json.xz or test_relevant_rows.json, and "
            "there is neither. Leave it out of --studies."
        )
    return task


def _add_studies(comparison: Comparison, bench: Bench, names: list[str], rounds: int, progress: Progress) -> Comparison:
    from crossknn.evaluate.studies import run_studies

    if not names:
        return comparison
    return replace(comparison, studies=run_studies(bench, comparison, names, rounds=rounds, progress=progress))


def _quality_table(quality: Sequence[Quality]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="By the judgments", title_justify="left", title_style="bold")
    table.add_column("strategy", overflow="fold")
    for header in ("budget", *quality[0].values):
        table.add_column(header, justify="right", no_wrap=True)
    for one in sorted(quality, key=lambda one: (one.budget is None, one.budget)):
        budget = "all" if one.budget is None else f"{one.budget:,}"
        table.add_row(Text(one.strategy), budget, *(f"{value:.3f}" for value in one.values.values()))
    return table
