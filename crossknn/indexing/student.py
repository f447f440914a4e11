"""Dual encoder in training: sentence-transformers with gradients, gradient checkpointing and a token cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossknn._imports import import_extra
from crossknn.encoders.library_model import save_model
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import EncoderError
from crossknn.indexing.factorization.trainer import Checkpointed, batches
from crossknn.models.batching import without_cudnn_attention

if TYPE_CHECKING:
    from torch import Tensor

QUERY, ITEM = "query", "document"  # sentence-transformers' names of the two sides
TEXTS_AT_ONCE = defaultdict(lambda: 32, cuda=512)  # by type of device
MAX_RELATIVE_ERROR = 0.03  # of a vector computed in bfloat16
MAX_TOKENIZED_TEXTS = 200_000  # kept in memory: about a gigabyte with 256 tokens each

Features = dict[str, Any]  # the input of a sentence-transformers model: token ids, attention mask


class TokenCache:
    """Tokenizes each text once, up to `max_texts` of them, and pads batches again.

    Features with padding other than on the right cannot be cached: then all texts are tokenized every time.
    """

    def __init__(self, tokenize: Callable[[list[str]], Features], *, max_texts: int = MAX_TOKENIZED_TEXTS) -> None:
        self._torch = import_extra("torch", extra="models")
        self._tokenize = tokenize
        self._max_texts = max_texts
        self._cached: dict[str, Features] = {}
        self._padding: dict[str, int] = {}
        self._constant: Features = {}  # the same for all texts

    def features(self, texts: Sequence[str]) -> Features:
        """The features of these texts, padded to the longest."""
        new = [text for text in dict.fromkeys(texts) if text not in self._cached]
        if len(self._cached) + len(new) > self._max_texts:
            return self._tokenize(list(texts))
        if new and not self._add(new, self._tokenize(new)):
            self._max_texts = 0
            return self._tokenize(list(texts))
        pad = self._torch.nn.utils.rnn.pad_sequence
        cached = [self._cached[text] for text in texts]
        padded = {
            name: pad([one[name] for one in cached], batch_first=True, padding_value=value).long()
            for name, value in self._padding.items()
        }
        return {**padded, **self._constant}

    def _add(self, texts: list[str], features: Features) -> bool:
        """Cache the features of each text; False if they cannot be separated."""
        tensors = {name: value for name, value in features.items() if self._torch.is_tensor(value)}
        mask = tensors.get("attention_mask")
        if mask is None or any(value.shape != mask.shape or value.is_floating_point() for value in tensors.values()):
            return False
        lengths = mask.sum(1)
        if not (mask.bool() == (self._torch.arange(mask.shape[1]) < lengths[:, None])).all():
            return False
        for name, value in tensors.items():
            padding = value[~mask.bool()]
            if len(padding) or name not in self._padding:
                self._padding[name] = int(padding[0]) if len(padding) else 0
        self._constant = {name: value for name, value in features.items() if name not in tensors}
        for row, (text, length) in enumerate(zip(texts, lengths.tolist(), strict=True)):
            self._cached[text] = {name: value[row, :length].int() for name, value in tensors.items()}
        return True


class Student(Checkpointed):
    """A float32 copy of a dual encoder in training."""

    def __init__(self, encoder: SentenceEncoder, *, device: str | None, texts_at_once: int | None) -> None:
        self._torch = import_extra("torch", extra="models")
        self._checkpointed = import_extra("torch.utils.checkpoint", extra="models").checkpoint
        self._encoder = encoder
        self._model = encoder.load_model(device=device)
        self._model.prompts |= {side: encoder.prompt(side) for side in (QUERY, ITEM)}
        self.device = self._model.device
        self._at_once = texts_at_once or TEXTS_AT_ONCE[self.device.type]
        super().__init__(value for value in self._model.parameters() if value.requires_grad)
        self._tokens = {side: TokenCache(partial(self._tokenize, side)) for side in (QUERY, ITEM)}

    def encode(self, side: str, texts: Sequence[str]) -> Tensor:
        """(texts, dim) float32 with gradients; of many texts activations are recomputed (gradient checkpointing)."""
        order = np.argsort([len(text) for text in texts], kind="stable")  # less padding
        parts = [
            self._features(side, [texts[at] for at in order[batch]]) for batch in batches(len(texts), self._at_once)
        ]
        if len(parts) == 1:
            vectors = self._forward(side, parts[0])
        else:
            options = {"use_reentrant": False, "preserve_rng_state": False}
            vectors = self._torch.cat([self._checkpointed(self._forward, side, part, **options) for part in parts])
        result: Tensor = vectors[self._torch.from_numpy(np.argsort(order)).to(self.device)]
        return result

    def check_vectors(self, query: str, item: str) -> None:
        """Raise `EncoderError` unless the vectors in training are those that the encoder returns."""
        with self._torch.no_grad():
            own = self._torch.cat([self.encode(QUERY, [query]), self.encode(ITEM, [item])]).cpu().numpy()
        expected = np.concatenate([self._encoder.encode_queries([query]), self._encoder.encode_items([item])])
        errors = np.linalg.norm(own - expected, axis=1) / np.linalg.norm(expected, axis=1)
        if not errors.max() < MAX_RELATIVE_ERROR:
            raise EncoderError(
                f"{self._encoder.name} cannot be fine-tuned: sentence-transformers encodes texts with it in a way that "
                f"distillation does not support (vectors differ by {errors.max():.0%}). Upgrade sentence-transformers."
            )

    def save(self, folder: Path) -> None:
        """Write the model to `folder` atomically."""
        save_model(self._model, folder)

    def _tokenize(self, side: str, texts: list[str]) -> Features:
        model = self._model
        prompt = model.prompts.get(side, model.prompts.get(model.default_prompt_name))
        if hasattr(model, "preprocess"):
            return dict(model.preprocess(texts, prompt=prompt, **self._task(side)))
        # sentence-transformers before 6
        return dict(model.tokenize([f"{prompt or ''}{text}" for text in texts], **self._task(side)))

    def _forward(self, side: str, features: Features) -> Tensor:
        """(texts, dim) float32: what the encoder returns, with gradients."""
        half = self._torch.autocast("cuda", self._torch.bfloat16, enabled=self.device.type == "cuda")
        with half, without_cudnn_attention(self.device):
            found = self._model(dict(features), **self._task(side))  # a copy: the model adds its outputs to it
        vectors: Tensor = found["sentence_embedding"][:, : self._model.truncate_dim].float()
        return self._torch.nn.functional.normalize(vectors) if self._encoder.normalize else vectors

    def _task(self, side: str) -> dict[str, str]:
        return {"task": side} if hasattr(self._model, "encode_query") else {}  # sentence-transformers 5 and later

    def _features(self, side: str, texts: list[str]) -> Features:
        features = self._tokens[side].features(texts)
        return {name: v.to(self.device) if self._torch.is_tensor(v) else v for name, v in features.items()}
