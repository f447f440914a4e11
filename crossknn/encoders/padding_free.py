"""Dual encoders without padding, by the engine of cross-encoders, and without importing sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from crossknn._imports import import_extra
from crossknn.encoders.text_tokens import TextTokens, to_device, truncating_tokenizer
from crossknn.errors import InputError, ModelNotFound
from crossknn.models.batching import batches_in_order
from crossknn.scorers.inference.cuda_graphs import CudaGraphs
from crossknn.scorers.inference.heads import Head
from crossknn.scorers.inference.loading import Pretrained, load_pretrained
from crossknn.scorers.inference.model_folder import ENCODER, EncoderFolder, make_head, read_encoder_folder
from crossknn.scorers.inference.onednn import use_onednn
from crossknn.scorers.inference.padding_free import make_varlen
from crossknn.scorers.inference.pairs import PairTemplate, TokenSpans
from crossknn.scorers.inference.prompt_tokens import added_special_tokens
from crossknn.scorers.inference.token_store import Ragged, Tokenize, Tokens
from crossknn.scorers.inference.varlen import DeviceTokens, JoinedPairs, VarlenBatch, VarlenModel
from crossknn.types import Rows, Vectors

if TYPE_CHECKING:
    from torch import Tensor

BATCH_TOKENS: Final = {"cpu": 2_048, "cuda": 65_536}  # a CPU's caches hold the states of few tokens
FEW_TEXTS: Final = 64  # that a GPU encodes as one launch
MAX_TOKENS: Final = 1_000_000  # tokenizers without a limit say more
WHOLE_TEXT: Final = PairTemplate((), (), (), pad=0, first_type=None, type_steps=(), cut_left=False, item_first=True)


class PaddingFreeEncoder:
    """A transformer, a pooling of its tokens, and layers behind it; created by `open`.

    Attributes:
        prompts: What the model's folder puts before texts, by side.
        max_tokens: Tokens of a text at most, by the model's folder.
        normalized: Whether vectors have length 1.
        backend: The tokenizer, which nobody else changes.
        weights: How many the model has.
    """

    def __init__(self, pretrained: Pretrained, folder: EncoderFolder, model: VarlenModel, max_tokens: int) -> None:
        self._model = model
        self._graphs = CudaGraphs(model, max_length=max_tokens) if model.capturable else None
        self.device = pretrained.device
        self.dtype = pretrained.dtype
        self.backend = pretrained.backend
        self.prompts = folder.prompts
        self.normalized = folder.normalize
        self.max_tokens = max_tokens
        self.weights = sum(weight.numel() for weight in pretrained.model.parameters())

    @classmethod
    def open(cls, folder: Path, *, device: str | None, dtype: str) -> Self | None:
        """The model of a folder; None if it is unusual or damaged, and sentence-transformers must open it."""
        try:
            found = read_encoder_folder(folder)
            if found is None:
                return None
            place = found.transformer.relative_to(folder).as_posix()
            dtype = _choose_dtype(found.transformer, device, dtype)
            pretrained = load_pretrained(folder, kind=ENCODER, device=device, dtype=dtype, subfolder=place)
        except (InputError, ModelNotFound):
            return None
        max_tokens = found.max_length or _model_limit(pretrained)
        if pretrained.tokenizer.truncation_side != "right" or not 0 < max_tokens < MAX_TOKENS:
            return None
        if not any(added_special_tokens(pretrained.backend)):  # an empty text would have no token
            return None
        torch = import_extra("torch", extra="models")
        head = Head(found.pooling, make_head(found.head, torch.float32).to(pretrained.device))
        model = make_varlen(pretrained.model, head, WHOLE_TEXT) if pretrained.runs else None
        if model is None:
            return None
        if pretrained.device.type == "cpu" and pretrained.dtype == "float32":
            use_onednn(model.linears)
        return cls(pretrained, found, model, max_tokens)

    def tokenizer(self, _: str, prompt: str, max_tokens: int) -> Tokenize:
        """A function from texts to their tokens, by the tokenizer itself."""
        return truncating_tokenizer(self.backend, prompt=prompt, max_tokens=max_tokens)

    def encode(self, rows: Sequence[Tokens], *, batch_size: int | None, normalize: bool) -> Vectors:
        """(texts, dim) float32 vectors of texts with these tokens."""
        torch = import_extra("torch", extra="models")
        with torch.inference_mode():
            order, found = self._encode_few(rows) or self._encode_many(rows, batch_size)
            if normalize or self.normalized:
                found = torch.nn.functional.normalize(found)
            in_order: Vectors = found.cpu().numpy()
        vectors = np.empty_like(in_order)
        vectors[order] = in_order
        return vectors

    def _encode_few(self, rows: Sequence[Tokens]) -> tuple[Rows, Tensor] | None:
        """The vectors of some queries, as one launch; None for more texts, or the first time."""
        if self._graphs is None or not 0 < len(rows) <= FEW_TEXTS:
            return None
        texts = Ragged.of(rows)
        nothing = np.zeros(len(rows), np.int64)
        spans = TokenSpans(Ragged(texts.flat[:0], nothing, nothing), texts)
        on_device = DeviceTokens(spans, partial(to_device, device=self.device))
        found = self._graphs.logits(VarlenBatch(spans, texts.lengths, on_device))
        return None if found is None else (np.arange(len(rows)), found.float())

    def _encode_many(self, rows: Sequence[Tokens], batch_size: int | None) -> tuple[Rows, Tensor]:
        """The vectors of these texts in batches, longest first, and the order they are in."""
        torch = import_extra("torch", extra="models")
        tokens = TextTokens.of(rows, self.device)
        order = np.argsort(-tokens.lengths, kind="stable")
        batches = self._batches(tokens.lengths[order], batch_size)
        return order, torch.cat([self._encode(tokens, order[batch]) for batch in batches])

    def _batches(self, lengths: Rows, batch_size: int | None) -> Iterator[slice]:
        if batch_size is None:
            return batches_in_order(lengths, BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"]))
        return (slice(start, start + batch_size) for start in range(0, len(lengths), batch_size))

    def _encode(self, tokens: TextTokens, numbers: Rows) -> Tensor:
        torch = import_extra("torch", extra="models")
        ids, positions, layout = tokens.pack(numbers)
        vectors: Tensor = self._model.run(JoinedPairs(ids, torch.zeros_like(ids), positions, layout)).float()
        return vectors[: len(numbers)]


def _choose_dtype(transformer: Path, device: str | None, dtype: str) -> str:
    """The precision to load; "auto" is float32 on a CPU, elsewhere that of the folder's weights."""
    torch = import_extra("torch", extra="models")
    on_cpu = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cpu"
    if dtype != "auto" or on_cpu:
        return "float32" if dtype == "auto" else dtype
    config = import_extra("transformers", extra="models").AutoConfig.from_pretrained(
        str(transformer), trust_remote_code=False
    )
    return str(config.dtype or "float32").removeprefix("torch.")


def _model_limit(pretrained: Pretrained) -> int:
    """Tokens of a text at most, as sentence-transformers finds it in a folder that does not say."""
    positions = getattr(pretrained.model.config, "max_position_embeddings", None)
    return min(int(pretrained.tokenizer.model_max_length), MAX_TOKENS if positions in (None, -1) else int(positions))
