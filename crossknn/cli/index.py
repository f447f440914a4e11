"""`crossknn info`, `add`, `remove` and `verify`: what is in an index, and changing it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from crossknn.cli.options import (
    DEFAULT_ENCODER,
    DEFAULT_SCORER,
    AnyModelOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    EncoderOption,
    IdFieldOption,
    JsonOption,
    ScorerOption,
    Steps,
    TextFieldOption,
    check_models,
    from_nothing,
    going_on,
    load_builder_encoder,
    load_scorer,
    out,
    paid_scores_of,
    print_json,
    read_items,
    work_dir_of,
)
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.indexing.index import Index

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of an index.")]


def info(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Say what an index holds and how it was built."""
    from crossknn.indexing.index import Index

    index = Index.load(folder)
    facts = describe_index(index, folder)
    if as_json:
        print_json([facts])
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        shown = str(index.report) if name == "report" else f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(name, Text(shown))
    out.print(table)


def add(
    folder: FolderArgument,
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="The items to add, as for build.")],
    queries_per_item: Annotated[
        int, typer.Option("--per-item", min=1, help="Train queries that each new item is scored for, if it needs any.")
    ] = 8,
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: EncoderOption = DEFAULT_ENCODER,
    any_model: AnyModelOption = False,
    work_dir: Annotated[
        Path | None, typer.Option(help="Folder that keeps the scores. Default: FOLDER.work, beside the index.")
    ] = None,
    id_field: IdFieldOption = None,
    text_field: TextFieldOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    as_json: JsonOption = False,
) -> None:
    """Add the items of CORPUS to an index. Who has it open keeps the old one."""
    from crossknn.indexing.index import Index

    index = Index.load(folder)
    with Steps() as progress:
        items = read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
    with Steps(keep=True, lines=True) as steps, going_on():
        work = work_dir or work_dir_of(folder)
        model = load_scorer(scorer, device=device, dtype=dtype, cache=paid_scores_of(scorer, work))
        vectors_of = load_builder_encoder(encoder, device=device)
        if not any_model:
            check_models(index, scorer=model, encoder=vectors_of)
        changed = index.add(
            items,
            scorer=model,
            encoder=vectors_of,
            queries_per_item=queries_per_item,
            work_dir=work,
            check_models=False,
            progress=from_nothing(steps),
        )
        changed.save(folder)
    if as_json:
        print_json([{**describe_index(changed, folder), "added": len(items)}])
    else:
        calls = changed.report.calls_made
        out.print(
            f"added {len(items):,} item{'s' * (len(items) != 1)} with {calls:,} calls: {len(changed):,} items now",
            highlight=False,
        )


def remove(
    folder: FolderArgument,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of the items to remove.")] = None,
    ids_file: Annotated[Path | None, typer.Option("--ids", help="File of ids, one per line.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove items from an index. Who has it open keeps the old one."""
    from crossknn.indexing.index import Index

    if bool(ids) == (ids_file is not None):
        raise InputError("give ids as arguments or in a file with --ids, one of the two.")
    wanted = ids if ids_file is None else list(read_items(ids_file).texts)
    index = Index.load(folder)
    changed = index.remove(wanted or [])
    changed.save(folder)
    removed = len(index) - len(changed)
    if as_json:
        print_json([{**describe_index(changed, folder), "removed": removed}])
    else:
        out.print(f"removed {removed:,} item{'s' * (removed != 1)}: {len(changed):,} items now", highlight=False)


def verify(
    folder: FolderArgument,
    work_dir: Annotated[Path | None, typer.Option(help="Verify the scores in this work folder, too.")] = None,
) -> None:
    """Read every byte of an index and compare it with its checksums."""
    from crossknn.indexing.index import Index
    from crossknn.storage.score_log import ScoreLog

    index = Index.load(folder)
    lines = [f"{folder}: whole, {index.verify():,} bytes read"]
    if work_dir is not None:
        if not (work_dir / "scores").is_dir():
            raise InputError(f"{work_dir}: it holds no scores, so it is no work folder. Give the one of a build.")
        size = ScoreLog.open(work_dir / "scores", scorer=index.scorer).verify()
        lines.append(f"{work_dir}: whole, {size.bytes:,} bytes read, {size.scores:,} scores in {size.chunks:,} chunks")
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def describe_index(index: Index, folder: Path) -> dict[str, Any]:
    """What is in an index, as plain values."""
    return {
        "folder": str(folder),
        "items": len(index),
        "dimensions": int(index.vectors.shape[1]),
        "vectors": "encoder" if index.factors is None else index.factors.kind,
        "queries": len(index.queries),
        "scorer": index.scorer,
        "encoder": index.encoder,
        **asdict(index.normalization),
        "bytes": count_bytes(folder),
        "report": index.report.as_dict(),
    }


def count_bytes(folder: Path) -> int:
    """What an index takes on disk."""
    from crossknn.storage.atomic_dir import read_folder

    return sum(path.stat().st_size for path in read_folder(folder).files.values())
