"""`crossknn build`, `plan`, `info`, `add`, `remove` and `verify`: build, describe, change and check an index."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option

from crossknn.cli import options
from crossknn.cli.config import configurable
from crossknn.cli.console import ProgressBars, out, print_json, resumable, say
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.indexing.builder import Build
    from crossknn.indexing.factorization.factors import Method
    from crossknn.indexing.index import Index
    from crossknn.indexing.planner import BuildPlan
    from crossknn.indexing.sampling import Sampling
    from crossknn.items.items import Items
    from crossknn.models.specs import ModelSpec
    from crossknn.types import Encoder


FactorsName = StrEnum("FactorsName", ["transductive", "inductive", "cur", "none"])
StudentName = StrEnum("StudentName", {"encoder": "encoder", "adapter": "adapter", "query_adapter": "query-adapter"})
SamplingName = StrEnum("SamplingName", {"per_item": "per-item", "per_query": "per-query"})
RetrieverName = StrEnum("RetrieverName", ["dense", "bm25", "tfidf", "fused"])
FolderArgument = Annotated[Path, Argument(metavar="FOLDER", help="Folder of an index.")]


@dataclass(frozen=True)
class BuildOptions:
    """Which pairs a build scores, and what it fits to the scores."""

    queries: Annotated[
        Path | None, Option(help="File of train queries, one per line or jsonl. Default: generated from the items.")
    ] = None
    teach: Annotated[
        bool | None,
        Option(
            "--teach/--no-teach",
            help="Teach the encoder by the cross-encoder: more recall, for minutes of a GPU or hours of a CPU. "
            "Default: if both models run on a GPU, unless --factors or a sampling is given.",
        ),
    ] = None
    teach_student: Annotated[
        StudentName | None,
        Option(
            help="What to teach: the encoder; an adapter, small networks over its vectors, in minutes on a CPU; or a "
            "query-adapter, which leaves item vectors as they are. Default: encoder."
        ),
    ] = None
    teach_lists: Annotated[
        int | None,
        Option(min=1, help="Queries to teach with. Default: 12,000 of 192 calls each; on a CPU 2,000 of 96."),
    ] = None
    teach_seconds: Annotated[
        float | None, Option(min=1, help="End the training of the encoder after this time. Default: no limit.")
    ] = None
    factors: Annotated[
        FactorsName | None,
        Option(
            help="Factorization of the scores. none: the encoder's vectors, scaled by α and β. Default: none with a "
            "taught encoder, else transductive."
        ),
    ] = None
    sampling: Annotated[
        SamplingName | None, Option(help="Which pairs to score. Default: per-item for transductive, else per-query.")
    ] = None
    per_item: Annotated[int | None, Option(min=1, help="Train queries to score with each item. Default: 8.")] = None
    per_query: Annotated[int | None, Option(min=1, help="Items to score with each train query. Default: 100.")] = None
    retriever: Annotated[
        RetrieverName | None,
        Option("--from", help="per-query: take the best items of this retriever. Default: random items."),
    ] = None
    anchors: Annotated[int | None, Option(min=1, help="cur: train queries scored with all items. Default: 500.")] = None
    preset: Annotated[
        str | None, Option(help="Settings of the factorization, such as paper. Default: crossknn's own.")
    ] = None
    prior: Annotated[
        bool | None,
        Option(
            "--prior/--no-prior",
            help="Also fit a prior for the strategy posterior. Default: where it needs no more calls to fit, as with "
            "--factors transductive, and the encoder is not taught.",
        ),
    ] = None
    calibrate: Annotated[
        bool | None,
        Option(
            "--calibrate/--no-calibrate",
            help="Calibrate the recall that --stop-at stops by, with about 45,000 calls. Default: with a prior or a "
            "taught encoder.",
        ),
    ] = None
    vectors: Annotated[
        Path | None,
        Option(
            help="File (.npy or .safetensors) of the encoder's vectors of the items. Default: that of a `crossknn "
            "import` beside CORPUS; none encodes them again."
        ),
    ] = None
    work_dir: Annotated[
        Path | None, Option(help="Folder that keeps scores and vectors. Default: FOLDER.work, next to the index.")
    ] = None
    seed: options.SeedOption = 0

    def __post_init__(self) -> None:
        """Check what goes together, before models are loaded."""
        settings = (self.teach_student, self.teach_lists, self.teach_seconds)
        if self.teach is False and any(one is not None for one in settings):
            raise InputError(
                "--teach-student, --teach-lists and --teach-seconds need --teach. Leave them or --no-teach out."
            )
        if self.factors is FactorsName.cur and self.prior:
            raise InputError("--factors cur scores every item for every anchor query. Leave --prior out.")
        sampled = self.sampling or self.per_item or self.per_query or self.retriever
        if self.teach and (sampled or self.factors is FactorsName.cur):
            raise InputError(
                "--teach chooses the pairs to score: leave out --sampling and its options, and --factors cur."
            )

    def settings(self) -> dict[str, Any]:
        """The arguments of `Build` that these options name."""
        queries = None if self.queries is None else options.read_texts(self.queries)
        chosen = {"factors": self._choose_factorization(), "sampling": self._choose_sampling()}
        learned = {
            "prior": "default" if self.prior is None else self.prior,
            "teach": self.teach,
            "calibrate": self.calibrate,
        }
        return {"queries": queries, **chosen, **learned, "seed": self.seed}

    def teaching(self, items: Items, encoder: Encoder) -> dict[str, Any]:
        """The argument `teach` of `Build`, where options set more than yes or no."""
        from crossknn.encoders.sentence import SentenceEncoder
        from crossknn.indexing.teaching.settings import Teaching

        changes: dict[str, Any] = {"lists": self.teach_lists, "time_limit": self.teach_seconds}
        changes = {name: value for name, value in changes.items() if value is not None}
        if not changes and self.teach_student is None:
            return {}
        device = str(encoder.device) if isinstance(encoder, SentenceEncoder) else None
        student: Any = str(self.teach_student or StudentName.encoder)
        settings = Teaching.default(len(items), student=student, device=device, seed=self.seed)
        return {"teach": replace(settings, **changes)}

    def _choose_factorization(self) -> Method | Literal["default"] | None:
        from crossknn.indexing.builder import DEFAULT_FACTORS
        from crossknn.indexing.factorization.factors import Cur
        from crossknn.indexing.factorization.inductive import Inductive
        from crossknn.indexing.factorization.transductive import Transductive

        name, seed = self.factors, self.seed
        if name is None and self.anchors is None and self.preset is None:
            return "default"
        name = name or FactorsName.transductive
        if self.anchors is not None and name is not FactorsName.cur:
            raise InputError(f"--anchors applies to --factors cur only, got --factors {name}.")
        if name in (FactorsName.cur, FactorsName.none):
            if self.preset is not None:
                raise InputError(f"--preset applies to --factors transductive or inductive only, got --factors {name}.")
            return None if name is FactorsName.none else Cur(anchors=self.anchors or Cur.anchors, seed=seed)
        kind = Inductive if name is FactorsName.inductive else Transductive
        if self.preset is not None:
            return kind.preset(self.preset, seed=seed)
        return Inductive(seed=seed) if kind is Inductive else replace(DEFAULT_FACTORS, seed=seed)

    def _choose_sampling(self) -> list[Sampling] | None:
        """The samplings that the options name; None if they name none."""
        from crossknn.indexing.sampling import PerItem, PerQuery

        name, per_item, per_query, retriever = self.sampling, self.per_item, self.per_query, self.retriever
        values = {"--sampling": name, "--per-item": per_item, "--per-query": per_query, "--from": retriever}
        given = [option for option, value in values.items() if value is not None]
        if self.factors is FactorsName.cur and given:
            raise InputError(f"--factors cur scores every item for every anchor query. Leave {given[-1]} out.")
        for option in given:
            if name is not None and option != "--sampling" and (option == "--per-item") != (name == "per-item"):
                raise InputError(f"{option} does not apply to --sampling {name}. Leave one of them out.")
        samplings: list[Sampling] = []
        if name is SamplingName.per_item or per_item is not None:
            samplings.append(PerItem(queries=per_item or PerItem.queries, seed=self.seed))
        if name is SamplingName.per_query or per_query is not None or retriever is not None:
            best_of = None if retriever is None else str(retriever)
            samplings.append(PerQuery(items=per_query or PerQuery.items, retriever=best_of, seed=self.seed))
        return samplings or None


@configurable
@options.with_groups
def build(
    *,
    corpus: options.ItemsArgument,
    folder: Annotated[Path, Option("-o", "--output", metavar="FOLDER", help="Folder of the index: new, or replaced.")],
    chosen: BuildOptions,
    signals: Annotated[
        list[RetrieverName] | None,
        Option("--signal", help="A retriever the prior uses; repeat for several. Default: dense and bm25."),
    ] = None,
    chunk: options.ChunkOption = 8192,
    worker: Annotated[
        str | None, Option(metavar="I/N", help="Score only part I of N, from 1/N to N/N, then stop.")
    ] = None,
    engine: options.EngineOptions,
    item_fields: options.FieldOptions,
    index_field: Annotated[
        list[str] | None,
        Option(help="A field to index, so that filters find few of many items faster; repeat for several."),
    ] = None,
    models: options.ModelOptions,
    as_json: options.JsonOption = False,
) -> None:
    """Build an index of CORPUS: score pairs of train queries and items, and learn from the scores.

    On a GPU a copy of the encoder is taught by the cross-encoder; else item vectors are fitted to the scores.

    Run an interrupted build again to resume it. With --engine ray, the machines of a cluster encode and score.
    Without a cluster, several processes can score at once, each with its own --worker; when they are done, run the
    command once more without --worker.
    """
    from crossknn.indexing.builder import Build
    from crossknn.indexing.index import Index
    from crossknn.scorers.remote.http_scorer import is_url
    from crossknn.storage.atomic_dir import check_target

    check_target(folder)
    work = chosen.work_dir or options.default_work_dir(folder)
    if work.resolve() == folder.resolve():
        raise InputError(f"--work-dir must be another folder than the index, got {work} for both.")
    part = None if worker is None else _parse_worker(worker)
    if part is not None and engine.engine is options.EngineName.ray:
        raise InputError("--worker splits a build without a cluster. Leave it or --engine ray out.")
    if signals and chosen.prior is False:
        raise InputError(f"--signal applies to --prior only, got {signals[0]} with --no-prior.")
    settings = {**chosen.settings(), "work_dir": work, "chunk": chunk, "device": models.device}
    settings["engine"] = engine.make(models)
    if signals:
        settings["signals"] = [name.value for name in signals]
    with ProgressBars() as progress:
        items = item_fields.read(corpus, progress).index_fields(*(index_field or ()))
    with ProgressBars(keep=True, log=True) as bars, resumable():
        settings |= {"scorer": models.load_scorer(work_dir=work), "encoder": models.load_encoder()}
        settings["item_vectors"] = options.known_vectors(corpus, chosen.vectors, items, settings["encoder"])
        settings |= {"progress": bars.from_zero, **chosen.teaching(items, settings["encoder"])}
        if part is not None:
            _score_part(items, part, settings, as_json=as_json)
            return
        prepared = Build(items, **settings)
        _announce_calls(prepared)
        _mention_teaching(prepared, measure=not is_url(models.scorer_name))
        index = Index.from_build(prepared)
        index.save(folder)
    if as_json:
        print_json([{**_describe_index(index, folder), "work_dir": str(work)}])
    else:
        out.print(Text(str(index.report)), soft_wrap=True)
        out.print(Text(f"index: {folder}, {index.stored_bytes:,} bytes"), soft_wrap=True)
    say(f"Later builds reuse the scores and vectors in {work}. Delete it if you need no more.")


@configurable
@options.with_groups
def plan(
    *,
    corpus: options.ItemsArgument,
    folder: Annotated[
        Path | None, Option("-o", "--output", metavar="FOLDER", help="Folder of the index: count what FOLDER.work has.")
    ] = None,
    chosen: BuildOptions,
    item_fields: options.FieldOptions,
    models: options.ModelOptions,
    as_json: options.JsonOption = False,
) -> None:
    """Estimate the cost of an index of CORPUS, built with these options and in the usual ways.

    Scores 512 pairs and encodes 256 items and 64 queries to measure both models; writes nothing.
    """
    from crossknn.indexing.planner import plan_build

    settings = chosen.settings()
    with ProgressBars() as progress:
        items = item_fields.read(corpus, progress)
        scorer, encoder = models.load_scorer(), models.load_encoder()
        settings |= chosen.teaching(items, encoder)
        settings["item_vectors"] = options.known_vectors(corpus, chosen.vectors, items, encoder)
        planned = plan_build(
            items,
            scorer=scorer,
            encoder=encoder,
            work_dir=chosen.work_dir or options.default_work_dir(folder or corpus),
            device=models.device,
            progress=progress,
            **settings,
        )
    if as_json:
        speeds = {"calls_per_second": planned.calls_per_second, "items_per_second": planned.items_per_second}
        print_json([{**cost.as_dict(), **speeds} for cost in planned.costs])
    else:
        _print_plan(planned)


@configurable
def info(folder: FolderArgument, verify: options.VerifyOption = False, as_json: options.JsonOption = False) -> None:
    """Describe an index and how it was built."""
    from crossknn.indexing.index import Index

    index = Index.load(folder, verify=verify)
    facts = _describe_index(index, folder)
    if as_json:
        print_json([facts])
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _info_lines(index, folder).items():
        plain = "".join(
            one if one.isprintable() or one == "\n" else "�" for one in value
        )  # anybody may have written it
        table.add_row(name, Text(plain))
    out.print(table)


def _info_lines(index: Index, folder: Path) -> dict[str, str]:
    """The facts about an index as `info` prints them."""
    prior, vectors = index.prior, "the encoder’s" if index.factors is None else index.factors.kind
    sizes = ", ".join(f"{name} {size:,}" for name, size in index.file_bytes.items())
    return {
        "folder": str(folder),
        "items": f"{len(index):,}",
        "fields": ", ".join(map(partial(_name_field, index.items), index.items.fields)) or "none",
        "train queries": f"{len(index.queries):,}",
        "scorer": _name_model(index.scorer_spec, index.scorer),
        "encoder": _name_model(index.encoder_spec, index.encoder),
        "vectors": f"{vectors}, {index.vectors.shape[1]} dimensions",
        "taught": f"yes, the {index.taught}" if index.taught else "no",
        "prior": "none" if prior is None else f"from {', '.join(prior.signals)}",
        "α, β": f"{index.normalization.alpha:.4f}, {index.normalization.beta:.4f}",
        "bytes": f"{index.stored_bytes:,}: {sizes}",
        "report": str(index.report),
    }


def _name_field(items: Items, name: str) -> str:
    return f"{name} ({items.fields[name]}{', indexed' if name in items.indexed_fields else ''})"


def _name_model(spec: ModelSpec | None, fingerprint: str) -> str:
    """A model with its settings, and its fingerprint."""
    if spec is None:
        return f"no name, fingerprint {fingerprint}"
    settings = "".join(f", {name}={value!r}" for name, value in spec.settings.items())
    omitted = "".join(f", {name}=…" for name in spec.omitted)
    return f"{spec.kind}({spec.name!r}{settings}{omitted})\nfingerprint {fingerprint}"


@configurable
@options.with_groups
def add(
    *,
    folder: FolderArgument,
    corpus: options.ItemsArgument,
    queries_per_item: Annotated[
        int, Option("--per-item", min=1, help="Train queries to score with each new item, if it needs any.")
    ] = 8,
    work_dir: Annotated[
        Path | None, Option(help="Folder that keeps the scores. Default: FOLDER.work, next to the index.")
    ] = None,
    chunk: options.ChunkOption = 8192,
    item_fields: options.FieldOptions,
    models: options.ModelOptions,
    any_model: options.AnyModelOption = False,
    verify: options.VerifyOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Add the items of CORPUS to an index. A process that has it open keeps the old one."""
    from crossknn.indexing.index import Index

    index = Index.load(folder, verify=verify)
    with ProgressBars() as progress:
        items = item_fields.read(corpus, progress)
    index.check_new(items)
    with ProgressBars(keep=True, log=True) as bars, resumable():
        work, known = work_dir or options.default_work_dir(folder), options.models_of(index)
        changed = index.add(
            items,
            scorer=models.load_scorer(work_dir=work, models=known, same=not any_model),
            encoder=models.encoder_for(known, same=not any_model),
            queries_per_item=queries_per_item,
            work_dir=work,
            chunk=chunk,
            check_models=not any_model,
            progress=bars.from_zero,
        )
        changed.save(folder, replaces=index.identity)
    calls = f" with {changed.report.calls_made:,} calls"
    _print_change(changed, folder, "added", len(items), calls, as_json=as_json)


@configurable
@options.with_groups
def learn(
    *,
    folder: FolderArgument,
    scores: Annotated[
        list[Path],
        Option(
            metavar="SOURCE",
            help="A folder of `crossknn serve --learn`, the work folder of a build, or a file of --cache; repeat for "
            "several.",
        ),
    ],
    queries: Annotated[
        Path | None,
        Option(
            help="File of queries whose scores a work folder or a cache may have, beside the index's train queries."
        ),
    ] = None,
    output: Annotated[
        Path | None, Option("-o", "--output", metavar="NEW", help="Folder of the new index. Default: FOLDER.")
    ] = None,
    work_dir: Annotated[
        Path | None, Option(help="Folder that keeps scores and checkpoints. Default: FOLDER.work, next to the index.")
    ] = None,
    chunk: options.ChunkOption = 8192,
    any_model: options.AnyModelOption = False,
    models: options.ModelOptions,
    verify: options.VerifyOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Teach the encoder of an index further, by what searches and builds have scored.

    A service that has the index open swaps the new one in. If the learning does not help, FOLDER is left as it is. Run
    an interrupted learning again to resume it.
    """
    from crossknn.indexing.index import Index
    from crossknn.indexing.score_sources import open_scored_lists
    from crossknn.storage.atomic_dir import check_target

    index, target = Index.load(folder, verify=verify), output or folder
    check_target(target)
    for path in scores:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder of scores.")
    given = [] if queries is None else options.read_texts(queries)
    work, in_place = work_dir or options.default_work_dir(folder), target.resolve() == folder.resolve()
    with ProgressBars(keep=True, log=True) as bars, resumable():
        known = options.models_of(index)
        scorer = models.load_scorer(work_dir=work, models=known, same=not any_model)
        texts = [*index.queries, *given]
        key = f"{index.identity} {queries}"
        with open_scored_lists(scores, texts, index.items, scorer=scorer.fingerprint, work_dir=work, key=key) as lists:
            say(f"{len(lists):,} lists to learn from")
            learned = index.learn(
                lists,
                scorer=scorer,
                encoder=models.encoder_for(known, same=not any_model),
                work_dir=work,
                chunk=chunk,
                device=models.device,
                check_models=not any_model,
                progress=bars.from_zero,
            )
            helped = learned.report.teaching is not None and learned.report.teaching.helped
            if helped or not in_place:
                learned.save(target, replaces=index.identity if in_place else None)
    if as_json:
        print_json([{**_describe_index(learned, target), "lists": len(lists), "helped": helped}])
    else:
        out.print(Text(str(learned.report)), soft_wrap=True)
        stays = f"{folder} stays as it is" if in_place else f"{target} is a copy of {folder}"
        out.print(Text(f"index: {target}" if helped else f"The learning did not help: {stays}."), soft_wrap=True)


def remove(
    folder: FolderArgument,
    ids: Annotated[list[str] | None, Argument(metavar="[ID]...", help="Ids of the items to remove.")] = None,
    ids_file: Annotated[Path | None, Option("--ids", help="File of ids, one per line.")] = None,
    verify: options.VerifyOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Remove items from an index. A process that has it open keeps the old one."""
    from crossknn.indexing.index import Index

    given = options.given_texts("ids", ids, ids_file)
    index = Index.load(folder, verify=verify)
    changed = index.remove(given)
    changed.save(folder, replaces=index.identity)
    _print_change(changed, folder, "removed", len(index) - len(changed), as_json=as_json)


def verify(
    folder: Annotated[Path | None, Argument(metavar="[FOLDER]", help="Folder of an index.")] = None,
    work_dir: Annotated[
        Path | None, Option(help="Verify what later runs would reuse of this work folder, too, or it alone.")
    ] = None,
) -> None:
    """Check every byte of an index, or of a work folder, against its checksums."""
    from crossknn.indexing.index import Index
    from crossknn.indexing.work_dir import verify_work_dir
    from crossknn.storage.score_log import ScoreLog

    if folder is None and work_dir is None:
        raise InputError("Give the folder of an index, a work folder with --work-dir, or both.")
    if folder is not None:
        index = Index.load(folder, verify=True)
        out.print(Text(f"{folder}: intact, {index.stored_bytes:,} bytes read"), soft_wrap=True)
        if work_dir is not None and (work_dir / "scores").is_dir():
            ScoreLog.open(work_dir / "scores", scorer=index.scorer)  # an error for that of another scorer
    if work_dir is not None:
        report = verify_work_dir(work_dir)
        if report.damaged:
            raise InputError("\n".join(report.damaged))
        out.print(Text(f"{work_dir}: intact, {report}"), soft_wrap=True)


def _parse_worker(text: str) -> tuple[int, int]:
    """Which part, counted from 0, of how many."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--worker must be I/N with I between 1 and N, such as 2/4, got {text!r}.")
    return int(found[1]) - 1, int(found[2])


def _announce_calls(build: Build) -> None:
    """Say what a build costs before it begins."""
    from crossknn.indexing.planner import count_calls

    _, to_make, at_most = count_calls(build)
    prior = " and a prior" * build.with_prior
    calibration = (
        f", up to {build.calibration_calls:,} of them to calibrate expected recall (--no-calibrate makes none)"
        if build.calibration_calls
        else ""
    )
    say(f"Makes {'up to ' * at_most}{to_make:,} calls of the cross-encoder for vectors{prior}{calibration}.")


def _mention_teaching(build: Build, *, measure: bool) -> None:
    """Say what a teaching takes on a CPU, where there will be one or could be; a server is not called to measure it."""
    from crossknn.encoders.sentence import SentenceEncoder
    from crossknn.indexing.planner import estimate_teaching
    from crossknn.indexing.teaching.settings import Teaching

    encoder, settings = build.encoder, build.teaching
    if not isinstance(encoder, SentenceEncoder) or encoder.device.type != "cpu":
        return
    if settings is None:
        if build.teach is False or build.sampling is not None or build.factors != "default":
            return
        settings = Teaching.default(len(build.items))
    cost = f"{settings.calls:,} calls and hours"
    if measure:
        minutes = estimate_teaching(build.items, settings, scorer=build.scorer, encoder=encoder) / 60
        cost = f"{minutes:.1f} minutes" if minutes < 60 else f"{minutes / 60:.1f} hours"
    if build.teaching is not None:
        say(f"Teaching the encoder takes about {cost} on this CPU.")
    else:
        say(
            "The encoder stays as it came. --teach would train it on cross-encoder scores, so that searches find as "
            f"much with a fraction of the calls: in about {cost} on this CPU, or in minutes on a GPU. "
            "--teach-student adapter takes less and brings less."
        )


def _score_part(items: Items, part: tuple[int, int], settings: dict[str, Any], *, as_json: bool) -> None:
    from crossknn.indexing.builder import Build

    build = Build(items, **settings)
    if build.teaching is not None:
        raise InputError("--worker splits builds without teaching. Leave it out, or give --no-teach.")
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
    if calibration := plan.costs[0].calibration:
        out.print(
            f"Of the first line's calls, up to {calibration:,} calibrate expected recall: --no-calibrate makes none.",
            highlight=False,
        )
    speed = plan.calls_per_second
    calls_made = f"{plan.calls_made} calls ({speed:,.0f} a second)" if speed else "no calls"
    out.print(
        f"Measured with {calls_made} and a few items ({plan.items_per_second:,.0f} a second). The time to fit is "
        "rough, and shorter if the fit stops early. Memory is what the build needs besides the models.",
        highlight=False,
        style="dim",
    )


def _print_change(index: Index, folder: Path, change: str, number: int, note: str = "", *, as_json: bool) -> None:
    if as_json:
        print_json([{**_describe_index(index, folder), change: number}])
    else:
        changed = f"{change} {number:,} item{'s' * (number != 1)}{note}"
        out.print(f"{changed}: {len(index):,} items now", highlight=False)


def _describe_index(index: Index, folder: Path) -> dict[str, Any]:
    """The facts about an index as plain values."""
    return {
        "folder": str(folder),
        "items": len(index),
        "fields": index.items.fields,
        "indexed_fields": list(index.items.indexed_fields),
        "dimensions": int(index.vectors.shape[1]),
        "vectors": "encoder" if index.factors is None else index.factors.kind,
        "queries": len(index.queries),
        "scorer": index.scorer,
        "encoder": index.encoder,
        "models": {
            "scorer": None if index.scorer_spec is None else index.scorer_spec.as_dict(),
            "encoder": None if index.encoder_spec is None else index.encoder_spec.as_dict(),
        },
        "taught": index.is_taught,
        "teaching": index.taught,
        "prior": None if index.prior is None else list(index.prior.signals),
        **asdict(index.normalization),
        "bytes": index.stored_bytes,
        "files": index.file_bytes,
        "report": index.report.as_dict(),
    }
