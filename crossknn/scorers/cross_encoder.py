"""Any Hugging Face sequence-classification model as a scorer."""

from __future__ import annotations

import os
from typing import Any

from crossknn.errors import InputError
from crossknn.scorers.inference.cls_only import shorten_last_layer
from crossknn.scorers.inference.engine import STORED_TOKENS, ModelScorer, PairSpans
from crossknn.scorers.inference.loading import load_pretrained
from crossknn.scorers.inference.pair_batches import LongItems
from crossknn.scorers.inference.varlen import PackedPairs, pack


class CrossEncoder(ModelScorer):
    """The raw logit of a sequence-classification model, whatever activation its config asks for.

    `name` is a folder, a hub name such as `cross-encoder/ms-marco-MiniLM-L6-v2`, or "embedded", the small one
    trained on WordNet that comes with crossknn (a folder of that name is "./embedded"). `dtype` "auto" is float32
    on a CPU and bfloat16 on a GPU; "int8", on a CPU, is faster than float32 and rounds scores. A pair longer than
    `max_length` (by default what the model can take) loses the end of its longer text; `long_items="max"` scores
    overlapping windows of the item instead, `stride` tokens apart (by default half a window), and takes the best.
    `label` says which logit to read where there are several.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        device: Any = None,
        dtype: str = "auto",
        max_length: int | None = None,
        max_query_tokens: int | None = None,
        max_item_tokens: int | None = None,
        long_items: LongItems = "cut",
        stride: int | None = None,
        label: int | str | None = None,
        batch_tokens: int | None = None,
        stored_tokens: int = STORED_TOKENS,
    ) -> None:
        pretrained = load_pretrained(name, kind="AutoModelForSequenceClassification", device=device, dtype=dtype)
        super().__init__(
            pretrained,
            max_length=max_length,
            max_query_tokens=max_query_tokens,
            max_item_tokens=max_item_tokens,
            long_items=long_items,
            stride=stride,
            batch_tokens=batch_tokens,
            stored_tokens=stored_tokens,
        )
        self.label = choose_label(pretrained.model.config, label)
        self._packed = pack(pretrained.model, self.template)
        self.shortened = self._packed is not None or shorten_last_layer(pretrained.model)
        self._round_weights()

    def _own_settings(self) -> dict[str, Any]:
        return {"label": self.label}

    def _score_settings(self) -> dict[str, Any]:
        return self._own_settings()

    def _read_scores(self, batch: PairSpans) -> Any:
        return self._pretrained.model(**batch.inputs).logits[:, self.label].float()

    def _read_packed(self, batch: PackedPairs) -> Any:
        assert self._packed is not None
        return self._packed.logits(batch)[:, self.label].float()


def choose_label(config: Any, label: int | str | None) -> int:
    """The column of the logits to read."""
    count = int(config.num_labels)
    names = {str(name): int(number) for number, name in (config.id2label or {}).items()}
    if label is None:
        if count > 1:
            raise InputError(
                f"the model gives {count} logits per pair: say which one with label=, one of {list(names)}."
            )
        return 0
    number = names.get(label, -1) if isinstance(label, str) else label
    if not 0 <= number < count:
        raise InputError(f"label must be one of {list(names)} or a number below {count}. Got {label!r} instead.")
    return number
