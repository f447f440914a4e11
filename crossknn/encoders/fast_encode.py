"""Fast path of sentence-transformers' `encode`: one tokenizer call for all texts, one transfer of all vectors.

The library makes Python lists of all token ids and synchronizes with the device after each batch, which on a fast
device takes longer than the model does.
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


class FastEncoding:
    """Encodes texts as the model's own `encode` does; created by `for_model`."""

    def __init__(self, model: Any, backend: Any, constants: dict[str, Any], pad_id: int, *, type_ids: bool) -> None:
        self._torch = import_extra("torch", extra="models")
        self._model = model
        self._backend = backend
        self._constants = constants  # features that are the same for all texts
        self._pad_id = pad_id
        self._type_ids = type_ids

    @classmethod
    def for_model(cls, model: Any) -> Self | None:
        """None where the model is unusual in any way, and the library's own `encode` must be used."""
        if any(model.prompts.values()) or model.truncate_dim is not None or not hasattr(model, "preprocess"):
            return None  # before sentence-transformers 6 there was no `preprocess`
        backend = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
        if type(model[0]).__name__ != "Transformer" or backend is None or not model.max_seq_length:
            return None
        expected = dict(model.preprocess(list(SAMPLES)))
        backend = type(backend).from_str(backend.to_str())  # a copy: the library changes its settings at every call
        backend.no_padding()
        backend.enable_truncation(model.max_seq_length)
        constants = {name: value for name, value in expected.items() if name not in TENSORS}
        fast = cls(model, backend, constants, model.tokenizer.pad_token_id or 0, type_ids="token_type_ids" in expected)
        return fast if fast._agrees(expected) else None

    def encode(self, texts: Sequence[str], *, batch_size: int, batch_tokens: int, normalize: bool) -> Vectors:
        """(texts, dim), in batches of at least `batch_size` texts, and more while they have at most `batch_tokens`."""
        tokens = self._tokenize(texts)
        batches = list(length_buckets(np.array([len(ids) for ids in tokens]), batch_tokens, min_rows=batch_size))
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
        ids = np.full(mask.shape, self._pad_id, np.int64)
        ids[mask] = np.fromiter(chain.from_iterable(tokens), np.int64, int(lengths.sum()))
        arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        if self._type_ids:
            arrays["token_type_ids"] = np.zeros_like(ids)
        return {name: self._torch.from_numpy(array) for name, array in arrays.items()}

    def _to_device(self, features: dict[str, torch.Tensor]) -> dict[str, Any]:
        device = self._model.device
        if device.type == "cuda":  # for copies that overlap with computation
            features = {name: tensor.pin_memory() for name, tensor in features.items()}
        return {name: tensor.to(device, non_blocking=True) for name, tensor in features.items()} | self._constants

    def _agrees(self, expected: dict[str, Any]) -> bool:
        """Whether the features of the samples equal the library's."""
        features = self._pad(self._tokenize(SAMPLES))
        return all(
            self._torch.is_tensor(expected.get(name)) and self._torch.equal(expected[name], tensor)
            for name, tensor in features.items()
        ) and not any(map(self._torch.is_tensor, self._constants.values()))
