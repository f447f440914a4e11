"""Any Hugging Face sequence-classification model as a scorer."""

from __future__ import annotations

import os
from typing import Any

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.scorers.inference.cls_only import patch_last_layer
from crossknn.scorers.inference.engine import STORED_TOKENS, ModelScorer, PaddedBatch
from crossknn.scorers.inference.pairs import LongItems
from crossknn.scorers.inference.varlen import VarlenBatch, make_varlen


class CrossEncoder(ModelScorer):
    """The raw logit of a sequence-classification model, whatever activation its config names.

    Args:
        name: A folder, a hub name such as `cross-encoder/ms-marco-MiniLM-L6-v2`, or "embedded", the small model
            trained on WordNet that comes with crossknn (a folder of that name is "./embedded").
        device: A device of torch; by default a GPU if there is one.
        dtype: "float32", "bfloat16", "float16", "int8" (on a CPU: faster, and scores are rounded), or "auto": float32
            on a CPU and bfloat16 on a GPU.
        max_length: Tokens of a pair at most, by default the model's limit; a longer pair loses the end of its longer
            text.
        max_query_tokens: Tokens of a query at most.
        max_item_tokens: Tokens of an item at most.
        long_items: "cut" truncates long items; "max" scores overlapping windows and takes the best.
        stride: Tokens between the starts of two windows; by default half a window.
        label: The logit to read, by name or number, where there are several.
        batch_tokens: Tokens of a batch at most; by default chosen for the device.
        stored_tokens: Token ids of texts to keep in memory at most.

    Attributes:
        device: The device of the model.
        dtype: The precision of its weights.
        threads: The best number of concurrent calls: on a GPU one is prepared while another waits for the device.
        counts: Running totals of pairs, forward passes, truncations and tokens.
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
        super().__init__(
            name,
            kind="AutoModelForSequenceClassification",
            device=device,
            dtype=dtype,
            max_length=max_length,
            max_query_tokens=max_query_tokens,
            max_item_tokens=max_item_tokens,
            long_items=long_items,
            stride=stride,
            batch_tokens=batch_tokens,
            stored_tokens=stored_tokens,
        )
        model = self._pretrained.model
        self.label = choose_label(model.config, label)
        self._varlen = make_varlen(model, self.template)
        self.cls_only = self._varlen is not None or patch_last_layer(model)
        self._quantize()

    def _own_settings(self) -> dict[str, Any]:
        return {"label": self.label}

    def _read_scores(self, batch: PaddedBatch | VarlenBatch) -> Any:
        if isinstance(batch, PaddedBatch):
            logits = self._pretrained.model(**batch.inputs).logits
        else:
            assert self._varlen is not None
            logits = self._varlen.logits(batch)
        return logits[:, self.label].float()


def choose_label(config: Any, label: int | str | None) -> int:
    """The column of the logits to read."""
    labels = int(config.num_labels)
    names = {str(name): int(number) for number, name in (config.id2label or {}).items()}
    if label is None:
        if labels > 1:
            raise InputError(f"The model returns {labels} logits per pair: set `label` to one of {list(names)}.")
        return 0
    number = names.get(label, -1) if isinstance(label, str) else label
    if not 0 <= number < labels:
        raise invalid("label", f"one of {list(names)} or a number below {labels}", label)
    return number
