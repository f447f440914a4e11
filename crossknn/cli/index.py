"""`crossknn info`, `add`, `remove` and `verify`: describe, change and check an index."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from crossknn.cli import options
from crossknn.cli.console import ProgressBars, out, print_json, resumable
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.indexing.index import Index

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of an index.")]


def info(folder: FolderArgument, as_json: options.JsonOption = False) -> None:
    """Describe an index and how it was built."""
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
    corpus: options.ItemsArgument,
    queries_per_item: Annotated[
        int, typer.Option("--per-item", min=1, help="Train queries to score with each new item, if it needs any.")
    ] = 8,
    scorer: options.ScorerOption = options.DEFAULT_SCORER,
    encoder: options.EncoderOption = options.DEFAULT_ENCODER,
    any_model: options.AnyModelOption = False,
    work_dir: Annotated[
        Path | None, typer.Option(help="Folder that keeps the scores. Default: FOLDER.work, next to the index.")
    ] = None,
    id_field: options.IdFieldOption = None,
    text_field: options.TextFieldOption = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = options.Dtype.auto,
    as_json: options.JsonOption = False,
) -> None:
    """Add the items of CORPUS to an index. A process that has it open keeps the old one."""
    from crossknn.indexing.index import Index

    index = Index.load(folder)
    with ProgressBars() as progress:
        items = options.read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
    with ProgressBars(keep=True, log=True) as bars, resumable():
        work = work_dir or options.default_work_dir(folder)
        changed = index.add(
            items,
            scorer=options.load_scorer(scorer, device=device, dtype=dtype, work_dir=work),
            encoder=options.load_index_encoder(encoder, device=device),
            queries_per_item=queries_per_item,
            work_dir=work,
            check_models=not any_model,
            progress=bars.from_zero,
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
    as_json: options.JsonOption = False,
) -> None:
    """Remove items from an index. A process that has it open keeps the old one."""
    from crossknn.indexing.index import Index

    if bool(ids) == (ids_file is not None):
        raise InputError("Give ids either as arguments or in a file with --ids.")
    index = Index.load(folder)
    changed = index.remove((ids or []) if ids_file is None else list(options.read_items(ids_file).texts))
    changed.save(folder)
    removed = len(index) - len(changed)
    if as_json:
        print_json([{**describe_index(changed, folder), "removed": removed}])
    else:
        out.print(f"removed {removed:,} item{'s' * (removed != 1)}: {len(changed):,} items now", highlight=False)


def verify(
    folder: FolderArgument,
    work_dir: Annotated[Path | None, typer.Option(help="Also verify the scores in this work folder.")] = None,
) -> None:
    """Check every byte of an index against its checksums."""
    from crossknn.indexing.index import Index
    from crossknn.storage.score_log import ScoreLog

    index = Index.load(folder)
    lines = [f"{folder}: intact, {index.verify():,} bytes read"]
    if work_dir is not None:
        if not (work_dir / "scores").is_dir():
            raise InputError(f"{work_dir}: no work folder, for it holds no scores. Give the work folder of a build.")
        size = ScoreLog.open(work_dir / "scores", scorer=index.scorer).verify()
        lines.append(f"{work_dir}: intact, {size.bytes:,} bytes read, {size.scores:,} scores in {size.chunks:,} chunks")
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def describe_index(index: Index, folder: Path) -> dict[str, Any]:
    """The facts about an index as plain values."""
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
    """The size of an index on disk."""
    from crossknn.storage.atomic_dir import read_folder

    return sum(path.stat().st_size for path in read_folder(folder).files.values())
