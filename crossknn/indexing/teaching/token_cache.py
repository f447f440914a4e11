"""Texts tokenised once, however often a fit reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from crossknn._imports import import_extra

Features = dict[str, Any]
"""What a sentence-transformers model takes: token ids, attention mask."""

MASK: Final = "attention_mask"
KEPT: Final = 200_000  # texts; of 256 tokens about a gigabyte


class KeptTokens:
    """What `tokenize` gives for lists of texts, of which it sees each text once, up to `most` of them.

    Features that are not padded on the right alone cannot be put together anew: then it sees all texts every time.
    """

    def __init__(self, tokenize: Callable[[list[str]], Features], *, most: int = KEPT) -> None:
        self._torch = import_extra("torch", extra="models")
        self._tokenize = tokenize
        self._most = most
        self._kept: dict[str, Features] = {}
        self._paddings: dict[str, int] = {}
        self._plain: Features = {}  # what is the same for all texts

    def features(self, texts: Sequence[str]) -> Features:
        """The features of these texts, padded to the longest."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        if len(self._kept) + len(new) > self._most:
            return self._tokenize(list(texts))
        if new and not self._keep(new, self._tokenize(new)):
            self._most = 0
            return self._tokenize(list(texts))
        pad = self._torch.nn.utils.rnn.pad_sequence
        kept = [self._kept[text] for text in texts]
        padded = {
            name: pad([one[name] for one in kept], batch_first=True, padding_value=value).long()
            for name, value in self._paddings.items()
        }
        return {**padded, **self._plain}

    def _keep(self, texts: list[str], features: Features) -> bool:
        """Whether these features can be kept one by one, and if so keep them."""
        tensors = {name: value for name, value in features.items() if self._torch.is_tensor(value)}
        mask = tensors.get(MASK)
        if mask is None or any(value.shape != mask.shape or value.is_floating_point() for value in tensors.values()):
            return False
        lengths = mask.sum(1)
        if not (mask.bool() == (self._torch.arange(mask.shape[1]) < lengths[:, None])).all():
            return False
        for name, value in tensors.items():
            padding = value[~mask.bool()]
            if len(padding) or name not in self._paddings:
                self._paddings[name] = int(padding[0]) if len(padding) else 0
        self._plain = {name: value for name, value in features.items() if name not in tensors}
        for row, (text, length) in enumerate(zip(texts, lengths.tolist(), strict=True)):
            self._kept[text] = {name: value[row, :length].int() for name, value in tensors.items()}
        return True
