"""Options that several commands share, in groups, and loading what they name: models, items, strategies, engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from crossknn.cli.console import collector_paused, say
from crossknn.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crossknn.indexing.index import Index
    from crossknn.indexing.remembered_models import RememberedModels
    from crossknn.items.items import Items
    from crossknn.models.specs import ModelSpec
    from crossknn.strategies.base import Strategy
    from crossknn.types import Encoder, Engine, Progress, Scorer

DEFAULT_SCORER = "cross-encoder/ms-marco-MiniLM-L6-v2"
DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
NO_VECTORS = Path("none")
ENCODER_RETRIEVERS = ("dense", "fused", "fitted")

Dtype = StrEnum("Dtype", ["auto", "float32", "bfloat16", "float16", "int8"])
EngineName = StrEnum("EngineName", ["local", "ray"])
LongItemsName = StrEnum("LongItemsName", ["cut", "max"])
ItemsArgument = Annotated[
    Path, Argument(metavar="CORPUS", help="Items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")
]
DeviceOption = Annotated[str | None, Option(help="Device of the models: cpu or cuda. Default: cuda if available.")]
AnyModelOption = Annotated[
    bool, Option("--any-model", help="Accept other models than the index was built with: you know they match.")
]
ChunkOption = Annotated[int, Option(min=1, help="Calls per file of scores: an abrupt end loses at most these.")]
VerifyOption = Annotated[bool, Option("--verify", help="Read and verify the whole index first.")]
CacheOption = Annotated[Path | None, Option(help="SQLite file that keeps the scores for later runs.")]
SeedOption = Annotated[int, Option(min=0, help="Random seed.")]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON object per line instead of a table.")]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every parameter that is a dataclass replaced by its fields, which become options."""
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            options = signature(groups[name], eval_str=True).parameters.values()
            parameters += [option.replace(kind=Parameter.KEYWORD_ONLY) for option in options]
        else:
            parameters.append(parameter)

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class ScorerOptions:
    """The cross-encoder, and how the models run."""

    scorer: Annotated[
        str | None,
        Option(
            envvar="CROSSKNN_SCORER",
            help="Cross-encoder: a hub name, a local folder, 'embedded' (needs no hub), or URL#MODEL of a server: a "
            "rerank endpoint, or …/completions of a language model. Default: the one of the index, else "
            f"{DEFAULT_SCORER}.",
        ),
    ] = None
    device: DeviceOption = None
    dtype: Annotated[
        Dtype, Option(help="Precision of the cross-encoder. auto: float32 on cpu, bfloat16 on cuda. int8: cpu only.")
    ] = Dtype.auto
    template: Annotated[
        str | None,
        Option(
            help="Prompt of the cross-encoder, if not the model's own: a text with {query} and {item}, or the name of "
            "a family such as qwen3-reranker."
        ),
    ] = None
    instruction: Annotated[
        str | None, Option(help="What makes an item relevant, for a cross-encoder trained with instructions.")
    ] = None
    true_token: Annotated[
        str | None, Option(help="Token whose logit is the score of a language model. Default: the model's own, or yes.")
    ] = None
    false_token: Annotated[
        str | None, Option(help="Token whose logit is subtracted. Default: the model's own, or no.")
    ] = None
    price_per_1000: Annotated[
        float | None, Option(min=0, help="Price of 1,000 pairs of a server; of Cohere: of 1,000 searches.")
    ] = None
    price_per_million_tokens: Annotated[float | None, Option(min=0, help="Price of a million tokens of a server.")] = (
        None
    )
    spend_limit: Annotated[
        float | None, Option(min=0, help="Stop before a server costs more than this; needs a price.")
    ] = None

    long_items: Annotated[
        LongItemsName | None,
        Option(help="cut: score the beginning of long items, the default. max: score windows and take the best."),
    ] = None
    max_item_chars: Annotated[
        int | None,
        Option(min=1, help="Characters of an item, or of a window, to send to a server. Default: all."),
    ] = None
    fallback_score: Annotated[
        float | None, Option(help="Score of a pair that a server refuses. Default: an error that names the pair.")
    ] = None

    @property
    def scorer_name(self) -> str:
        """The scorer that is named, or the default for items without an index."""
        return self.scorer or DEFAULT_SCORER

    @collector_paused()
    def load_scorer(
        self,
        *,
        cache: Path | None = None,
        keep_queries: bool = False,
        work_dir: Path | None = None,
        models: RememberedModels | None = None,
        same: bool = True,
    ) -> Scorer:
        """The cross-encoder, with its scores kept in `cache`.

        The scores of a server, which may cost money, are also kept in the `work_dir` of a build.

        Args:
            models: Those of the index, whose scorer it is by default, with the settings that no option changes.
            same: Whether it must be the scorer of the index.
        """
        from crossknn.scorers.cached import Cached

        check_device(self.device)
        spec = self._choose_scorer(models, same=same)
        with nullcontext() if models is None else models.scorer.explaining(spec):
            scorer = self._open_server(spec) if spec.is_server else self._open_local(spec)
        if spec.is_server and work_dir is not None:
            cache = work_dir / "server-scores.db"
        return scorer if cache is None else Cached(scorer, cache, keep_queries=keep_queries)

    def _choose_scorer(self, models: RememberedModels | None, *, same: bool) -> ModelSpec:
        from crossknn.indexing.remembered_models import named_spec

        if models is not None:
            return models.scorer.choose(self.scorer, same=same)
        spec = named_spec("scorer", self.scorer_name)
        return replace(spec, kind="CrossEncoder") if self._prompt and spec.kind == "EmbCrossEncoder" else spec

    def _open_local(self, spec: ModelSpec) -> Scorer:
        from crossknn.indexing.remembered_models import open_scorer

        self._refuse(self._requests, f"applies to servers only, and {spec.name} runs here. Leave it out.")
        precision = {} if self.dtype is Dtype.auto else {"dtype": str(self.dtype)}
        return open_scorer(spec, device=self.device, **precision, **self._prompt, **self._windows())

    def _open_server(self, spec: ModelSpec) -> Scorer:
        from crossknn.indexing.remembered_models import open_scorer

        if self.dtype is not Dtype.auto:
            raise InputError(f"--dtype {self.dtype} applies to local models only: a server chooses its own precision.")
        if spec.kind == "RemoteScorer":
            reason = "applies to local models and completion servers only: a rerank server has its own prompt."
            self._refuse(self._prompt, reason)
        return open_scorer(spec, **self._prompt, **self._requests, **self._windows())

    @property
    def _prompt(self) -> dict[str, Any]:
        return self._given("template", "instruction", "true_token", "false_token")

    @property
    def _requests(self) -> dict[str, Any]:
        return self._given(
            "price_per_1000", "price_per_million_tokens", "spend_limit", "max_item_chars", "fallback_score"
        )

    def _windows(self) -> dict[str, str]:
        return {} if self.long_items is None else {"long_items": str(self.long_items)}

    def _refuse(self, options: dict[str, Any], reason: str) -> None:
        if options:
            raise InputError(f"--{next(iter(options)).replace('_', '-')} {reason}")

    def _given(self, *names: str) -> dict[str, Any]:
        """The values of those of these options that are set."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class ModelOptions(ScorerOptions):
    """The cross-encoder and the dual encoder."""

    encoder: Annotated[
        str | None,
        Option(
            help="Dual encoder: a hub name, a local folder, or 'embedded' (needs no hub). Default: the one of the "
            f"index, else {DEFAULT_ENCODER}."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Checks that need no model, as in all groups of options: commands make these before all work."""
        if self.encoder == "none":
            raise InputError("--encoder must be a hub name, a local folder or 'embedded' for an index, got 'none'.")

    @collector_paused()
    def load_encoder(self) -> Encoder:
        """The dual encoder."""
        from crossknn.encoders.sentence import SentenceEncoder

        return SentenceEncoder(self.encoder or DEFAULT_ENCODER, device=self.device)

    def encoder_for(self, models: RememberedModels | None, *, same: bool = True) -> Encoder | None:
        """The encoder that is named, or that of the index; None where the index has its own."""
        if models is None:
            return self.load_encoder()
        return models.open_encoder(self.encoder, same=same, device=self.device)


@dataclass(frozen=True)
class FieldOptions:
    """The fields of a file of items."""

    id_field: Annotated[str | None, Option(help="Field or column of the item's id.")] = None
    text_field: Annotated[list[str] | None, Option(help="Field or column of the text; repeat to join several.")] = None
    field: Annotated[
        list[str] | None, Option(help="Another field or column to keep; repeat for several. Default: all.")
    ] = None
    no_fields: Annotated[bool, Option("--no-fields", help="Keep no other fields.")] = False
    max_unpacked_bytes: Annotated[
        int | None,
        Option(
            min=1, help="Limit of what a .gz or .parquet file unpacks to. Default: 100 times its size, at least 1 GiB."
        ),
    ] = None

    def read(self, path: Path, progress: Progress | None = None) -> Items:
        """The items of a file or a BEIR folder."""
        from crossknn.items.items import Items

        options: dict[str, Any] = {"progress": progress}
        if self.id_field is not None:
            options["id"] = self.id_field
        if self.text_field:
            options["text"] = self.text_field[0] if len(self.text_field) == 1 else tuple(self.text_field)
        if self.field and self.no_fields:
            raise InputError("--field and --no-fields exclude each other. Leave one of them out.")
        if self.field or self.no_fields:
            options["fields"] = self.field or []
        if self.max_unpacked_bytes is not None:
            options["max_unpacked_bytes"] = self.max_unpacked_bytes
        return Items.from_path(path, **options)


@dataclass(frozen=True)
class SourceOptions(ModelOptions, FieldOptions):
    """How items or an index are opened for search."""

    encoder: Annotated[
        str | None,
        Option(
            help="Dual encoder: a hub name, a local folder, 'embedded' (needs no hub), or 'none'. Default: the one "
            f"of the index, else {DEFAULT_ENCODER}."
        ),
    ] = None
    vectors: Annotated[
        Path | None,
        Option(
            help="File (.npy) of item vectors: read if it exists, else written for next time. Default: those of a "
            "`crossknn import` beside the items; none encodes them again."
        ),
    ] = None
    any_model: AnyModelOption = False
    calibration: Annotated[
        Path | None, Option(help="File of `calibration.save`, which gives hits a probability of being relevant.")
    ] = None
    cache: CacheOption = None
    cache_queries: Annotated[
        bool, Option("--cache-queries", help="Also keep the texts of queries in --cache, for `crossknn learn`.")
    ] = False

    def __post_init__(self) -> None:
        if self.cache_queries and self.cache is None:
            raise InputError("--cache-queries needs a --cache to keep them in.")
        if self.vectors not in (None, NO_VECTORS) and self.encoder == "none":
            raise InputError("--vectors needs an --encoder: query and item vectors must come from the same model.")

    def check(self, corpus: Path, *, train_queries: Path | None = None, verify: bool = False) -> None:
        """Raise `InputError` where an option is set that does not apply to an index, or to items."""
        found, other = "no index", "indexes"
        refused: dict[str, Any] = {"--any-model": self.any_model, "--verify": verify}
        if is_index(corpus):
            found, other = "an index", "items"
            refused = {"--vectors": self.vectors, "--train-queries": train_queries, "--id-field": self.id_field}
            refused |= {"--text-field": self.text_field, "--max-unpacked-bytes": self.max_unpacked_bytes}
            refused |= {"--field": self.field, "--no-fields": self.no_fields}
        for option, value in refused.items():
            if value:
                raise InputError(f"{option} applies to {other} only, and {corpus} is {found}. Leave it out.")
        models = models_of(corpus) if is_index(corpus) else None
        if models is not None and models.has_encoder and self.encoder == "none":
            raise InputError("--encoder none does not apply to an index with an encoder of its own. Leave it out.")

    def check_strategy(self, strategy: Strategy, source: Index | Items) -> None:
        """Raise `InputError` where the strategy needs what a search of `source` will not have."""
        from crossknn.retrievers.registry import BUILT_IN
        from crossknn.strategies.posterior.strategy import Posterior
        from crossknn.strategies.registry import first_stage_setting
        from crossknn.strategies.tour import Tour

        first = getattr(strategy, first_stage_setting(type(strategy)) or "", None)
        known = [*BUILT_IN, *(["fitted"] if getattr(source, "factors", None) is not None else [])]
        if first is not None and first not in known:
            raise InputError(f"there is no retriever named {first!r}; known: {', '.join(sorted(known))}.")
        if self.encoder == "none" and (first in ENCODER_RETRIEVERS or isinstance(strategy, Posterior | Tour)):
            raise InputError(f"{strategy!r} needs an encoder. Leave --encoder none out, or choose rerank with bm25.")

    def arguments(self, source: Any, corpus: Path, progress: Progress) -> dict[str, Any]:
        """The arguments of a `Searcher` or `Service` of `source`: models and vectors, and where to search them."""
        models, same = models_of(source), not self.any_model
        scorer = self.load_scorer(cache=self.cache, keep_queries=self.cache_queries, models=models, same=same)
        without = self.encoder == "none" and not (models and models.has_encoder)
        encoder = None if without else self.encoder_for(models, same=same)
        vectors = None if encoder is None or is_index(corpus) else self._item_vectors(source, corpus, encoder, progress)
        given = {"scorer": scorer, "encoder": encoder, "vectors": vectors, "check_models": same}
        return {**given, "calibration": self.calibration, "device": self.device, "progress": progress}

    def _item_vectors(self, items: Items, corpus: Path, encoder: Encoder, progress: Progress) -> NDArray[Any] | None:
        """Those of the import that the items are from, or of the file that is named, which is written if it is new."""
        from crossknn.encoders.item_encoding import encode_items
        from crossknn.stores.importing import imported_vectors

        if self.vectors is None or self.vectors in (NO_VECTORS, imported_vectors(corpus)):
            return known_vectors(corpus, self.vectors, items, encoder)
        return encode_items(items, encoder, path=self.vectors, progress=progress)


@dataclass(frozen=True)
class EngineOptions:
    """Where the models of a build or a benchmark run."""

    engine: Annotated[EngineName, Option(help="Where the models run: in this process, or on a Ray cluster.")] = (
        EngineName.local
    )
    address: Annotated[
        str | None,
        Option(
            metavar="HOST:PORT",
            help="ray: the cluster this machine belongs to. Default: one started on this machine, else a new one.",
        ),
    ] = None
    workers: Annotated[
        int | None, Option(min=1, help="ray: number of workers. Default: one per GPU, else per CPU.")
    ] = None

    def make(self, models: ScorerOptions) -> Engine:
        """The engine, if the other options go with it."""
        from crossknn.engines.local import LOCAL
        from crossknn.engines.ray import RayEngine
        from crossknn.scorers.remote.http_scorer import is_url

        if self.engine is EngineName.local:
            for option, value in (("--address", self.address), ("--workers", self.workers)):
                if value is not None:
                    raise InputError(f"{option} applies to --engine ray only, got {value!r} without it.")
            return LOCAL
        if is_url(models.scorer_name):
            raise InputError("--engine ray runs local models, and a server has its own machines. Leave one out.")
        if models.device is not None and ":" in models.device:
            raise InputError(
                f"--device must be cuda for --engine ray: each worker gets its own GPU. Got {models.device!r}."
            )
        return RayEngine(address=self.address, workers=self.workers)


def check_device(device: str | None) -> None:
    """Raise `InputError` unless models can run on the device that --device names."""
    from crossknn._imports import import_extra

    if device is None:
        return
    torch = import_extra("torch", extra="models")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"--device must be one that torch can use here, got {device!r}: {reason}") from error


def is_index(corpus: Path) -> bool:
    """Whether the folder holds an index, or what should be one."""
    return os.path.lexists(corpus / "index.json")


def read_source(path: Path, opened: SourceOptions, progress: Progress) -> Index | Items:
    """The index in a folder, or the items of a file."""
    from crossknn.indexing.index import Index

    return Index.load(path) if is_index(path) else opened.read(path, progress)


def models_of(source: Path | Index | Items) -> RememberedModels | None:
    """The models of an index, or of one in a folder; None for items."""
    from crossknn.indexing.remembered_models import RememberedModels
    from crossknn.items.items import Items

    return None if isinstance(source, Items) else RememberedModels.of(source)


def known_vectors(corpus: Path, path: Path | None, items: Items, encoder: Encoder) -> NDArray[Any] | None:
    """The encoder's vectors of the items, in a file or by default in the import that the items are from; or None."""
    from crossknn.encoders.known_vectors import check_known_vectors
    from crossknn.encoders.precomputed import load_vectors
    from crossknn.stores.importing import imported_vectors

    found = imported_vectors(corpus) if path is None else path
    if found is None or found == NO_VECTORS:
        return None
    hint = "Name the encoder that made them with --encoder, or encode the items again with --vectors none."
    vectors = load_vectors(found, check_finite=True)
    check_known_vectors(vectors, items, encoder, name=f"{found}: the vectors", hint=hint)
    say(f"The vectors of {found} are used: items are not encoded.")
    return vectors


def default_work_dir(folder: Path) -> Path:
    """The folder next to an index that keeps the scores and vectors of its build."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.work")


def read_texts(path: Path) -> list[str]:
    """The queries or ids of a file: its lines, or the texts of a file of items."""
    return list(FieldOptions().read(path).texts)


def given_texts(name: str, given: list[str] | None, path: Path | None) -> list[str]:
    """The texts given as arguments, or those of the file that the option --`name` names."""
    if bool(given) == (path is not None):
        raise InputError(f"Give {name} either as arguments or in a file with --{name}.")
    return given or [] if path is None else read_texts(path)


def choose_strategy(spec: str, options: Mapping[str, Any]) -> Strategy:
    """The strategy that --strategy names, such as `axn:mix=0.8`, with the settings of other options.

    Args:
        spec: A strategy's name, with settings after colons.
        options: Values of settings by name; None for an option that is not given. `retriever` sets the strategy's
            first stage, whatever that setting is called.
    """
    from crossknn.strategies import registry

    name, settings = registry.parse_strategy(spec)
    kind = registry.strategy_class(name)
    for option, value in options.items():
        if value is None:
            continue
        setting = registry.first_stage_setting(kind) if option == "retriever" else option
        if setting not in registry.settings_of(kind):
            raise InputError(f"the strategy {name!r} has no setting for `{option}`. Leave it out.")
        if setting in settings:
            raise InputError(f"{spec} and `{option}` both set {setting!r}. Leave one of them out.")
        settings[setting] = value
    return registry.make_strategy(name, settings)
