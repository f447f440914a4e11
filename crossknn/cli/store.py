"""`crossknn import`: the items and vectors of a database or a search engine as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from crossknn.cli.console import ProgressBars, out, resumable, say


def import_(
    url: Annotated[
        str,
        Argument(
            metavar="URL",
            help="qdrant://host/collection, qdrant:///folder/collection, lancedb:///folder/table, "
            "elasticsearch://host/index or opensearch://host/index; ?tls=true for https.",
        ),
    ],
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Where items.parquet and vectors.npy are written.")],
    *,
    text: Annotated[list[str] | None, Option(help="Field with the text; several are joined by a space.")] = None,
    id: Annotated[str | None, Option(help="Field with the ids. Default: the store's own, in LanceDB id.")] = None,
    fields: Annotated[str | None, Option(help="Fields to keep, separated by commas. Default: all.")] = None,
    vector: Annotated[
        str | None,
        Option(
            help="Name of the vectors. Default: vector; in Qdrant the unnamed ones. none: of Elasticsearch or "
            "OpenSearch, take texts and fields only."
        ),
    ] = None,
) -> None:
    """Copy the items and vectors of a store into FOLDER. The same command resumes an interrupted import.

    Keys come from the environment: QDRANT_API_KEY, ELASTIC_API_KEY, OPENSEARCH_API_KEY.
    """
    from crossknn.stores.importing import ITEMS, import_store
    from crossknn.stores.urls import open_store, without_password

    kept = None if fields is None else [name for name in fields.split(",") if name]
    store = open_store(url, text=text or ["text"], id=id, fields=kept, vector=vector)
    with resumable(), ProgressBars() as progress:
        imported = import_store(store, folder, source=without_password(url), progress=progress)
    dim = None if imported.vectors is None else imported.vectors.shape[1]
    vectors = "no vectors" if dim is None else f"vectors of {dim} dimensions"
    out.print(f"{len(imported.items):,} items, {vectors}", highlight=False)
    encoder = "" if dim is None else " --encoder MODEL, the one that made the vectors"
    say(f"Build an index of them: crossknn build {folder / ITEMS} -o {folder.with_suffix('.ck')}{encoder}")
