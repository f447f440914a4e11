"""What the retrievers of all frameworks share: from a hit to the document that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from crossknn.errors import InputError
from crossknn.search.results import Hit

Document = TypeVar("Document")


def document_of(hit: Hit, documents: Mapping[str, Document]) -> Document:
    """The document of a hit, or an error that says that there is none."""
    if hit.id not in documents:
        raise InputError(f"documents must hold one for every item. There is none for {hit.id!r}.")
    return documents[hit.id]


def how_found(hit: Hit) -> dict[str, Any]:
    """What is kept as metadata, beside the score: the round in which an item was scored, and who proposed it."""
    return {"round": hit.round, "proposed_by": hit.proposed_by}
