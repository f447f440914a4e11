"""Sentence vectors without what the library does for every text and after every batch.

The library makes Python lists of all token ids and waits for each batch's vectors, which takes a fast device longer
than the model does. Here the tokenizer reads all texts at once, and vectors are fetched once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from crossknn._imports import import_extra
from crossknn.models.batching import length_buckets
from crossknn.types import Vectors

if TYPE_CHECKING:
    import torch

TENSORS: Final = {"input_ids", "attention_mask", "token_type_ids"}
SAMPLES: Final = ("Ice", "", "  Two\tspaces  and\na LINE ", "naïve café ﬁ 水 Σ", "[SEP] <s> </s> [PAD]", "word " * 9000)


class QuickEncoding:
    """Encodes texts as the model's own `encode` does; made by `for_model`."""

    def __init__(self, model: Any, backend: Any, plain: dict[str, Any], padding: int, *, with_types: bool) -> None:
        self._torch = import_extra("torch", extra="models")
        self._model = model
        self._backend = backend
        self._plain = plain  # features that are the same for all texts
        self._padding = padding
        self._with_types = with_types

    @classmethod
    def for_model(cls, model: Any) -> Self | None:
        """None where anything about the model is unusual: then only the library knows what to do."""
        if any(model.prompts.values()) or model.truncate_dim is not None or not hasattr(model, "preprocess"):
            return None  # before sentence-transformers 6 there was no `preprocess`
        backend = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
        if type(model[0]).__name__ != "Transformer" or backend is None or not model.max_seq_length:
            return None
        wanted = dict(model.preprocess(list(SAMPLES)))
        backend = type(backend).from_str(backend.to_str())  # of its own: the library changes its settings at every call
        backend.no_padding()
        backend.enable_truncation(model.max_seq_length)
        plain = {name: value for name, value in wanted.items() if name not in TENSORS}
        quick = cls(model, backend, plain, model.tokenizer.pad_token_id or 0, with_types="token_type_ids" in wanted)
        return quick if quick._agrees(wanted) else None

    def encode(self, texts: Sequence[str], *, batch_size: int, batch_tokens: int, normalize: bool) -> Vectors:
        """(texts, dim), in batches of so many texts, or of as many more as have so many tokens together."""
        tokens = self._tokenize(texts)
        batches = list(length_buckets(np.array([len(some) for some in tokens]), batch_tokens, min_rows=batch_size))
        torch, parts = self._torch, []
        with torch.inference_mode():
            for batch in batches:
                features = self._pad([tokens[place] for place in batch])
                part = self._model(self._to_device(features))["sentence_embedding"]
                parts.append(torch.nn.functional.normalize(part, p=2, dim=1) if normalize else part)
            in_order: Vectors = torch.cat(parts).float().cpu().numpy()
        vectors = np.empty_like(in_order)
        vectors[np.concatenate(batches)] = in_order
        return vectors

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        encode = getattr(self._backend, "encode_batch_fast", self._backend.encode_batch)
        return [encoding.ids for encoding in encode(list(texts))]

    def _pad(self, tokens: list[list[int]]) -> dict[str, torch.Tensor]:
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(mask.shape, self._padding, np.int64)
        ids[mask] = np.fromiter(chain.from_iterable(tokens), np.int64, int(lengths.sum()))
        arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        if self._with_types:
            arrays["token_type_ids"] = np.zeros_like(ids)
        return {name: self._torch.from_numpy(array) for name, array in arrays.items()}

    def _to_device(self, features: dict[str, torch.Tensor]) -> dict[str, Any]:
        device = self._model.device
        if device.type == "cuda":  # copied while the device is at work
            features = {name: tensor.pin_memory() for name, tensor in features.items()}
        return {name: tensor.to(device, non_blocking=True) for name, tensor in features.items()} | self._plain

    def _agrees(self, wanted: dict[str, Any]) -> bool:
        """Whether it makes the same of the samples as the library."""
        features = self._pad(self._tokenize(SAMPLES))
        return all(
            self._torch.is_tensor(wanted.get(name)) and self._torch.equal(wanted[name], tensor)
            for name, tensor in features.items()
        ) and not any(map(self._torch.is_tensor, self._plain.values()))
