"""Options that several commands share, and loading what they name: models, items, vectors, strategies, engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.items.items import Items
    from crossknn.strategies.base import Strategy
    from crossknn.types import Encoder, Engine, Progress, Scorer

DEFAULT_SCORER = "cross-encoder/ms-marco-MiniLM-L6-v2"
DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


class EngineName(StrEnum):
    local = "local"
    ray = "ray"


ItemsArgument = Annotated[
    Path, typer.Argument(metavar="CORPUS", help="Items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")
]
IdFieldOption = Annotated[str | None, typer.Option("--id-field", help="Field or column of the item's id.")]
TextFieldOption = Annotated[
    list[str] | None, typer.Option("--text-field", help="Field or column of the text; repeat to join several.")
]
VectorsOption = Annotated[
    Path | None,
    typer.Option("--vectors", help="File (.npy) of item vectors: read if it exists, else written for next time."),
]
ScorerOption = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="Cross-encoder: a hub name, a local folder, 'embedded' (needs no hub), or URL#MODEL of a rerank server.",
    ),
]
EncoderOption = Annotated[
    str, typer.Option("--encoder", help="Dual encoder: a hub name, a local folder, or 'embedded' (needs no hub).")
]
OptionalEncoderOption = Annotated[
    str,
    typer.Option("--encoder", help="Dual encoder: a hub name, a local folder, 'embedded' (needs no hub), or 'none'."),
]
AnyModelOption = Annotated[
    bool, typer.Option("--any-model", help="Accept other models than the index was built with: you know they match.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Device of the models: cpu or cuda. Default: cuda if available.")
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        "--dtype", help="Precision of the cross-encoder. auto: float32 on cpu, bfloat16 on cuda. int8: cpu only."
    ),
]
CacheOption = Annotated[Path | None, typer.Option("--cache", help="SQLite file that keeps the scores for later runs.")]
EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="Where the models run: in this process, or on a Ray cluster.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="ray: the cluster this machine belongs to. Default: one started on this machine, else a new one.",
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="ray: number of workers. Default: one per GPU, else per CPU.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")]


def load_scorer(
    name: str, *, device: str | None, dtype: Dtype, cache: Path | None = None, work_dir: Path | None = None
) -> Scorer:
    """The cross-encoder that --scorer names, with its scores kept in --cache.

    The scores of a rerank server, which may cost money, are also kept in the `work_dir` of a build.
    """
    from crossknn.scorers.cached import Cached
    from crossknn.scorers.cross_encoder import CrossEncoder
    from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder, is_emb_cross_encoder
    from crossknn.scorers.remote.scorer import RemoteScorer, is_url

    check_device(device)
    scorer: Scorer
    if not is_url(name):
        kind: Callable[..., Scorer] = EmbCrossEncoder if is_emb_cross_encoder(name) else CrossEncoder
        scorer = kind(name, device=device, dtype=str(dtype))
    elif dtype is Dtype.auto:
        scorer = RemoteScorer(name)
        cache = cache if work_dir is None else work_dir / "server-scores.db"
    else:
        raise InputError(f"--dtype {dtype} applies to local models only: a rerank server chooses its own precision.")
    return scorer if cache is None else Cached(scorer, cache)


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


def load_encoder(name: str, *, device: str | None) -> Encoder | None:
    """The dual encoder that --encoder names; None for "none"."""
    from crossknn.encoders.sentence import SentenceEncoder

    return None if name == "none" else SentenceEncoder(name, device=device)


def load_index_encoder(name: str, *, device: str | None) -> Encoder:
    """The dual encoder that --encoder names, for commands that cannot do without one."""
    encoder = load_encoder(name, device=device)
    if encoder is None:
        raise InputError("--encoder must be a hub name, a local folder or 'embedded' for an index, got 'none'.")
    return encoder


def default_work_dir(folder: Path) -> Path:
    """The folder next to an index that keeps the scores and vectors of its build."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.work")


def read_items(
    path: Path,
    *,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Items:
    """The items of a file or a BEIR folder."""
    from crossknn.items.items import Items

    options: dict[str, Any] = {"progress": progress}
    if id_field is not None:
        options["id"] = id_field
    if text_fields:
        options["text"] = text_fields[0] if len(text_fields) == 1 else tuple(text_fields)
    return Items.from_path(path, **options)


def is_index(corpus: Path) -> bool:
    return (corpus / "index.json").is_file()


def check_corpus_options(corpus: Path, *, for_items: Mapping[str, Any], for_index: Mapping[str, Any]) -> None:
    """Raise `InputError` where an option is set that does not apply to an index, or to items."""
    found, other, options = ("an index", "items", for_items) if is_index(corpus) else ("no index", "indexes", for_index)
    for option, value in options.items():
        if value:
            raise InputError(f"{option} applies to {other} only, and {corpus} is {found}. Leave it out.")


def load_vectors(source: object, encoder: Encoder | None, path: Path | None, progress: Progress) -> Any:
    """The item vectors that --vectors names, encoded first if the file is missing; None for an index."""
    from crossknn.encoders.item_encoding import encode_items
    from crossknn.items.items import Items

    if path is None or not isinstance(source, Items):
        return None
    if encoder is None:
        raise InputError("--vectors needs an --encoder: query and item vectors must come from the same model.")
    return encode_items(source, encoder, path=path, progress=progress)


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


def make_engine(
    name: EngineName, *, address: str | None, workers: int | None, scorer: str, device: str | None
) -> Engine:
    """The engine that --engine names, if the other options go with it."""
    from crossknn.engines.local import LOCAL
    from crossknn.engines.ray import RayEngine
    from crossknn.scorers.remote.scorer import is_url

    if name is EngineName.local:
        for option, value in (("--address", address), ("--workers", workers)):
            if value is not None:
                raise InputError(f"{option} applies to --engine ray only, got {value!r} without it.")
        return LOCAL
    if is_url(scorer):
        raise InputError("--engine ray runs local models, and a rerank server has its own machines. Leave one out.")
    if device is not None and ":" in device:
        raise InputError(f"--device must be cuda for --engine ray: each worker gets its own GPU. Got {device!r}.")
    return RayEngine(address=address, workers=workers)


def batches(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The values in lists of at most `size`."""
    iterator = iter(values)
    while batch := list(islice(iterator, size)):
        yield batch
