"""How good what was found is by human judgments, per query: nDCG, recall, MRR and entity-linking accuracy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.evaluate.splits import Split

MEASURES: Final = ("nDCG@10", "MRR@10", "recall@100", "accuracy")
_CUT = re.compile(r"(nDCG|MRR|recall)@([1-9][0-9]*)")
_THEIR_NAMES: Final = {"nDCG": "nDCG", "MRR": "RR", "recall": "R"}  # in ir_measures


def measure_quality(
    split: Split, found: Sequence[Sequence[str]], *, measures: Sequence[str] = MEASURES
) -> dict[str, NDArray[np.float64]]:
    """(queries,) for each measure by its name: one number between 0 and 1 per query of `split`, in its order.

    `found` holds the ids of each query's hits, best first, as in `hits.ids`; their order alone counts. A query
    without hits has 0. The measures are "nDCG@k", "MRR@k" and "recall@k" for any k, computed by `ir_measures`,
    and "accuracy": 1 where the first hit is relevant.
    """
    names = _check_measures(measures)
    _check_found(split, found)
    values = {name: accuracy(split, found) for name in names if name == "accuracy"}
    if cut := [name for name in names if name != "accuracy"]:
        values |= _from_ir_measures(split.judgments, found, cut)
    return {name: values[name] for name in names}


def accuracy(split: Split, found: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """(queries,) 1 where the first id found is relevant, else 0; for entity linking its mean is the accuracy."""
    _check_found(split, found)
    firsts = [
        judged.get(ids[0], 0) > 0 if len(ids) else False for judged, ids in zip(split.judgments, found, strict=True)
    ]
    return np.array(firsts, np.float64)


def _from_ir_measures(
    judgments: Sequence[Mapping[str, int]], found: Sequence[Sequence[str]], names: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    ir_measures = import_extra("ir_measures", extra="bench")
    theirs: dict[Any, str] = {_measure(ir_measures, name): name for name in names}
    qrels = {str(query): dict(judged) for query, judged in enumerate(judgments)}
    # Places as scores: ids of equal score would be put into an order of its own.
    run = {str(query): {id_: -float(place) for place, id_ in enumerate(ids)} for query, ids in enumerate(found)}
    values = {name: np.zeros(len(found)) for name in names}
    for metric in ir_measures.iter_calc(list(theirs), qrels, run):
        values[theirs[metric.measure]][int(metric.query_id)] = metric.value
    return values


def _measure(ir_measures: Any, name: str) -> Any:
    kind, k = name.split("@")
    return getattr(ir_measures, _THEIR_NAMES[kind]) @ int(k)


def _check_measures(measures: Sequence[str]) -> list[str]:
    names = [measures] if isinstance(measures, str) else list(measures)
    for name in names:
        if name != "accuracy" and not _CUT.fullmatch(name):
            raise InputError(
                f"a measure must be nDCG@k, MRR@k, recall@k or accuracy, such as nDCG@10. Got {name!r} instead."
            )
    if not names or isinstance(measures, str) or len(set(names)) != len(names):
        raise InputError(f"measures must be a list of different names, at least one. Got {measures!r} instead.")
    return names


def _check_found(split: Split, found: Sequence[Sequence[str]]) -> None:
    if len(found) != len(split):
        raise InputError(f"found must have one entry for each of the {len(split)} queries. Got {len(found)} instead.")
    for query, ids in zip(split.ids, found, strict=True):
        if isinstance(ids, str) or not all(isinstance(id_, str) for id_ in ids):
            raise InputError(f"found must hold ids, as in hits.ids. Query {query!r} has something else.")
        if len(set(ids)) != len(ids):
            raise InputError(f"found must hold every id once per query. Query {query!r} has one twice.")
