"""`open`: a searcher of an index in a folder, with the models that the index remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crossknn.indexing.index import Index
from crossknn.indexing.remembered_models import RememberedModels
from crossknn.search.searcher import Searcher
from crossknn.types import Encoder, Scorer


def open(  # noqa: A001
    path: str | Path,
    *,
    scorer: Scorer | str | None = None,
    encoder: Encoder | str | None = None,
    device: str | None = None,
    check_models: bool = True,
    verify: bool = False,
    **options: Any,
) -> Searcher:
    """The searcher of an index, with the models that it was built with.

    Local folders and hub names are opened as the index remembers them: from safetensors, without code. A server is
    called only if `scorer` names it: it gets queries, items and the API key, and anybody may have written the index.

    Args:
        path: The folder of the index.
        scorer: In place of the remembered one: a scorer, a folder, a hub name, or the URL of a server. A name keeps the
            remembered settings, such as the prompt.
        encoder: The same. An index that has its own, taught encoder needs none.
        device: Of the models and of vectors: "cpu" or "cuda".
        check_models: Reject models that the index was not built with.
        verify: Read and check the whole index first.
        options: Further arguments of `Searcher`.
    """
    index = Index.load(path, verify=verify)
    models = RememberedModels.of(index)
    if scorer is None or isinstance(scorer, str):
        scorer = models.open_scorer(scorer, same=check_models, device=device)
    if encoder is None or isinstance(encoder, str):
        encoder = models.open_encoder(encoder, same=check_models, device=device)
    return Searcher(index, scorer=scorer, encoder=encoder, device=device, check_models=check_models, **options)
