"""`crossknn bench matrix` and `crossknn bench set`: strategies compared with exact search."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
from typer import Argument, Context, Option, Typer

from crossknn.cli import options
from crossknn.cli.console import Command, ProgressBars, confirm, out, resumable, say
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.call_plan import CallPlan
    from crossknn.evaluate.comparison import Comparison
    from crossknn.evaluate.contenders import AvailableData, VectorSource
    from crossknn.evaluate.tasks import Task
    from crossknn.types import Progress

DEV_QUERIES = 50  # of a dataset, where each costs as many calls as there are items
ASK_ABOVE = 30.0  # minutes in the scorer
NOT_REPEATED = {
    "json_file",
    "report",
    "studies",
    "work_dir",
    "engine",
    "address",
    "workers",
    "device",
    "yes",
    "ask_above",
}


app = Typer(
    help="Compare strategies with exact search: recall for a budget of calls.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class ComparisonOptions:
    """What is compared: with --tune, all candidates for the settings that the names leave open."""

    strategies: Annotated[
        str | None,
        Option(
            help="Comma-separated names, with settings after colons: rerank:retriever=fused,axn:mix=0.8:first=bm25. "
            "Known: {strategies with budget}; or all. Default: the paper's, gar and posterior, as far as the data "
            "have what they need.",
        ),
    ] = None
    budgets: Annotated[str, Option(help="Calls per query, comma-separated.")] = "50,100,500"
    ks: Annotated[str, Option("--k", help="Recall is that of the true top k; comma-separated.")] = "1,10,100"
    rounds: Annotated[int, Option(min=1, help="Of strategies that set none; at most the budget.")] = 10
    seed: options.SeedOption = 0
    calls_per_item: Annotated[
        int, Option("--index-calls-per-item", min=0, help="Offline calls per item; axn also runs fitted to them.")
    ] = 0
    queries: Annotated[int | None, Option(min=1, help="Number of test queries. Default: all.")] = None
    tune: Annotated[
        bool,
        Option(
            "--tune",
            help="Choose the settings that a name leaves open on dev queries, one for all k and budgets, and also show "
            "the oracle: the best setting for each k and budget.",
        ),
    ] = False

    def __post_init__(self) -> None:
        """Check sizes, names and settings, before all the work: as if there were data for every strategy."""
        from crossknn.evaluate.contenders import AvailableData
        from crossknn.indexing.builder import RETRIEVERS

        sizes = self.sizes
        if self.strategies is not None:
            everything = AvailableData(("random", *RETRIEVERS), fitted=True, cur=True)
            self._resolve(everything, sizes["budgets"])

    @property
    def sizes(self) -> dict[str, list[int]]:
        """The `budgets` and `ks` as numbers."""
        return {"budgets": _parse_sizes("--budgets", self.budgets), "ks": _parse_sizes("--k", self.ks)}

    def resolve(self, bench: Bench) -> Sequence[Any]:
        """The contenders, as far as there are data for them."""
        return self._resolve(bench.available, self.sizes["budgets"])

    def _resolve(self, available: AvailableData, budgets: list[int]) -> Sequence[Any]:
        from crossknn.evaluate.contenders import named_strategies, resolve_strategies
        from crossknn.evaluate.tuning import make_candidates

        names = named_strategies(self.strategies, available, tuned=self.tune)
        resolve: Callable[..., Sequence[Any]] = make_candidates if self.tune else resolve_strategies
        return resolve(names, available, budgets=budgets, rounds=self.rounds, seed=self.seed)

    def vectors(self, bench: Bench) -> set[VectorSource]:
        """The item vectors that the strategies search with."""
        resolved = self.resolve(bench)
        return {one.vectors for group in resolved for one in (group.candidates if self.tune else [group])}

    def run(self, bench: Bench, context: Context, studies: list[str], progress: Progress) -> Comparison:
        """The comparison and its studies."""
        from crossknn.evaluate.studies import run_studies
        from crossknn.evaluate.tuning import run_tuned

        contenders, command = self.resolve(bench), _command(context)
        if self.tune:
            comparison = run_tuned(bench, contenders, **self.sizes, command=command, progress=progress)
        else:
            comparison = bench.run(contenders, **self.sizes, command=command)
        if not studies:
            return comparison
        made = run_studies(bench, comparison, studies, rounds=self.rounds, progress=progress)
        return replace(comparison, studies=made)


@dataclass(frozen=True)
class OutputOptions:
    """Where results go, and which studies are made for them."""

    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Also write the numbers here.")] = None
    report: Annotated[Path | None, Option(metavar="FOLDER", help="Also write a page with figures.")] = None
    studies: Annotated[
        str | None,
        Option(
            help="Further studies in the report and the file, comma-separated: rounds, mix, sampling, latency, "
            "distributions, quality; or none. Default: all in a report.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Check that the outputs can be written, before all the work."""
        from crossknn._imports import import_extra

        if self.json_file is not None and (self.json_file.is_dir() or not self.json_file.parent.is_dir()):
            raise InputError(f"--json must be a file in an existing folder, got {self.json_file}.")
        if self.report is not None:
            import_extra("matplotlib", extra="report")
            import_extra("jinja2", extra="report")
            if self.report.exists() and not self.report.is_dir():
                raise InputError(f"--report must be a folder, got the file {self.report}.")
        if self.study_names and self.json_file is None and self.report is None:
            raise InputError("--studies needs --report or --json, where the studies are shown.")

    @property
    def study_names(self) -> list[str]:
        from crossknn.evaluate.studies import STUDY_NAMES, parse_studies

        if self.studies is None:
            return [] if self.report is None else list(STUDY_NAMES)
        return parse_studies(self.studies)

    def check_judgments(self, task: Task) -> Task:
        """The task; without its judgments if ir_measures is missing and no study needs them."""
        from crossknn._imports import import_extra

        if "quality" not in self.study_names:
            return task if find_spec("ir_measures") else replace(task, judged=None)
        if task.judged is not None:
            import_extra("ir_measures", extra="bench")
        elif self.studies is not None:
            raise InputError(
                f"{task.name}: the study quality needs relevant items, from texts.json.xz or test_relevant_rows.json, "
                "and there is neither. Leave it out of --studies."
            )
        return task

    def write(self, comparison: Comparison, ks: list[int]) -> None:
        """Print the numbers, and write the files."""
        from crossknn.evaluate.report.page import write_report
        from crossknn.evaluate.report.table import quality_table, table
        from crossknn.storage.atomic import disk_errors, replace_file

        out.print(*(Text(sentence) for sentence in comparison.findings), sep="\n\n")
        out.print(table(comparison, ks))
        if comparison.quality:
            out.print(quality_table(comparison.quality))
        out.print(Text(str(comparison.advice)))
        for name, value in comparison.data.items():
            if name.startswith("offline calls"):
                out.print(Text(f"{name}: {value:,}"))
            elif name.endswith(", tuned"):
                out.print(Text(f"{name}: {value}"), soft_wrap=True)
        if self.json_file is not None:
            content = json.dumps(_with_provenance(comparison), indent=1, ensure_ascii=False).encode() + b"\n"
            with disk_errors(self.json_file, "the results cannot be written"):
                replace_file(self.json_file, lambda path: path.write_bytes(content))
        if self.report is not None:
            say(f"Report: {write_report(comparison, self.report)}")


@app.command(cls=Command)
@options.with_groups
def matrix(
    *,
    context: Context,
    folder: Annotated[Path, Argument(metavar="DIR", help="A folder of exact scores; no model is needed.")],
    compared: ComparisonOptions,
    outputs: OutputOptions,
) -> None:
    """Compare strategies on precomputed exact scores.

    Without train scores the first half of the test queries is for learning, and only the second half is tested. CUR,
    as in adacur, learns from all train scores. If the folder says which items are relevant, nDCG@10, MRR@10 and
    accuracy are measured, too. With --tune the last fifth of the train queries, at most 100, are dev queries: nothing
    is learned from them.
    """
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.tasks import read_matrix

    with ProgressBars() as bars:
        task = outputs.check_judgments(read_matrix(folder, queries=compared.queries, tune=compared.tune))
        bench = Bench(
            task,
            calls_per_item=compared.calls_per_item,
            anchors=len(task.train),
            seed=compared.seed,
            progress=bars.from_zero,
        )
        comparison = compared.run(bench, context, outputs.study_names, bars.from_zero)
    outputs.write(comparison, compared.sizes["ks"])


@app.command(name="set", cls=Command)
@options.with_groups
def set_(
    *,
    context: Context,
    source: Annotated[
        str,
        Argument(
            metavar="SET",
            help="A BEIR folder (corpus.jsonl, queries.jsonl, qrels/*.tsv), zeshel:FOLDER:DOMAIN (with :100 at its end "
            "for 100 train queries instead of 500), or ir_datasets:NAME.",
        ),
    ],
    compared: ComparisonOptions,
    split: Annotated[str, Option(help="The test queries.")] = "test",
    train_split: Annotated[
        str | None, Option(help="The train queries. Default: train if it exists, else cut from items.")
    ] = None,
    train_queries: Annotated[int | None, Option(min=1, help="Number of train queries. Default: all.")] = None,
    dev_split: Annotated[
        str | None, Option(help="The dev queries of --tune. Default: dev if it exists, else train queries.")
    ] = None,
    dev_queries: Annotated[
        int | None, Option(min=1, help=f"Maximum number of dev queries, all scored. Default: {DEV_QUERIES}.")
    ] = None,
    models: options.ModelOptions,
    work_dir: Annotated[Path | None, Option(help="Keeps scores and vectors. Default: SET.work.")] = None,
    yes: Annotated[bool, Option("--yes", help="Make all calls without asking.")] = False,
    ask_above: Annotated[
        float, Option(min=0, metavar="MINUTES", help="Ask before calls that take longer; without a terminal, refuse.")
    ] = ASK_ABOVE,
    engine: options.EngineOptions,
    outputs: OutputOptions,
) -> None:
    """Compare strategies on a dataset: every test query is scored with every item first.

    All calls and the minutes they take are printed before they are made, and asked for if they are many. An interrupted
    run is resumed by the same command. CUR, as in adacur, runs if --index-calls-per-item is given, with
    as many anchor queries. With --engine ray the machines of a cluster make the calls of exact search.
    """
    from crossknn._imports import import_extra
    from crossknn.evaluate.benchmark import Bench
    from crossknn.evaluate.call_plan import plan_benchmark
    from crossknn.evaluate.datasets import check_source
    from crossknn.evaluate.tasks import measure_scorer, read_set, score_task

    import_extra("ir_measures", extra="bench")
    for option, value in (("--dev-split", dev_split), ("--dev-queries", dev_queries)):
        if value is not None and not compared.tune:
            raise InputError(f"{option} needs --tune, got {value!r} without it.")
    check_source(source, [name for name in (split, train_split, dev_split) if name is not None])
    work = work_dir or _default_work_dir(source)
    place = engine.make(models)
    with ProgressBars(keep=True, log=True) as bars, resumable():
        task = read_set(
            source,
            scorer=models.load_scorer(work_dir=work),
            encoder=models.load_encoder(),
            split=split,
            train_split=train_split,
            train_queries=train_queries,
            queries=compared.queries,
            dev_split=dev_split,
            dev_queries=(dev_queries or DEV_QUERIES) if compared.tune else None,
            seed=compared.seed,
            work_dir=work,
            progress=bars.from_zero,
        )
        calls = compared.calls_per_item
        learning: dict[str, Any] = {"calls_per_item": calls, "anchors": calls, "seed": compared.seed}
        vectors = compared.vectors(Bench(task, **learning))  # names are checked before anything is scored
    with resumable():
        task = replace(task, speed=measure_scorer(task))
        _agree(plan_benchmark(Bench(task, **learning), vectors, outputs.study_names), yes=yes, ask_above=ask_above)
    with ProgressBars(keep=True, log=True) as bars, resumable():
        progress = bars.from_zero
        scored = score_task(task, engine=place, progress=bars)
        bench = Bench(scored, **learning, device=models.device, progress=progress)
        comparison = compared.run(bench, context, outputs.study_names, progress)
    outputs.write(comparison, compared.sizes["ks"])
    say(f"Scores and vectors stay in {work}: later runs reuse them. Delete it when you want none.")


def _with_provenance(comparison: Comparison) -> dict[str, Any]:
    """The content of the file: the results and where they come from, without paths of this machine."""
    from crossknn.evaluate.provenance import describe_run

    content, seed = comparison.to_json(), comparison.data["seed"]
    provenance = describe_run(comparison.command or "", seed=int(seed))
    return {**content, "header": {**content["header"], "command": provenance["command"]}, "provenance": provenance}


def _agree(plan: CallPlan, *, yes: bool, ask_above: float) -> None:
    """Say all calls and minutes; go on if they are few, agreed to, or were in an earlier run."""
    from crossknn.evaluate.call_plan import describe_plan, minutes

    say(*describe_plan(plan))
    if plan.agreed or plan.seconds is None or plan.seconds <= 60 * ask_above:
        return
    work = f"{plan.to_make:,} calls, about {minutes(plan.seconds)}"
    refusal = (
        f"this takes {work}, and there is no terminal to ask on. Pass --yes to make them, or take fewer --queries."
    )
    if not yes:
        confirm(f"Make {work}?", refusal)
    plan.agree()


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
    return options.default_work_dir(Path(source))


def _command(context: Context) -> str:
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
