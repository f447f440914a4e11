"""What commands that search a corpus share: an index or items, with or without an encoder and a file of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossknn.cli.options import load_encoder
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.items.items import Items
    from crossknn.types import Encoder, Progress

SearchEncoderOption = Annotated[
    str,
    typer.Option("--encoder", help="Dual encoder: a hub name, a local folder, 'embedded' (needs no hub), or 'none'."),
]
VectorsOption = Annotated[
    Path | None,
    typer.Option("--vectors", help="File (.npy) of the items' vectors: used if it exists, else written for next time."),
]


def is_index(corpus: Path) -> bool:
    return (corpus / "index.json").is_file()


def check_corpus(corpus: Path, for_items: dict[str, Any], for_index: dict[str, Any]) -> bool:
    """Whether it is an index; an error where an option is given that does not go with what it is."""
    found = is_index(corpus)
    given = [option for option, value in (for_items if found else for_index).items() if value]
    if given:
        what, other = ("an index", "items") if found else ("no index", "an index")
        raise InputError(f"{corpus} is {what}, and {given[0]} goes with {other} only. Leave it out.")
    return found


def load_search_encoder(name: str, *, device: str | None) -> Encoder | None:
    """The encoder that --encoder names; there may be none."""
    return None if name == "none" else load_encoder(name, device=device)


def item_vectors(items: Items, encoder: Encoder | None, path: Path | None, progress: Progress) -> Any:
    """The vectors that --vectors names, made where they are not there yet; None without the option."""
    from crossknn.encoders.item_encoding import encode_items

    if path is None:
        return None
    if encoder is None:
        raise InputError("--vectors needs an --encoder: query vectors must come from the model of the item vectors.")
    return encode_items(items, encoder, path=path, progress=progress)
