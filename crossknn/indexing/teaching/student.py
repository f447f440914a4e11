"""A dual encoder in training: padding-free forward passes with gradients, float32 weights behind bfloat16 ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.encoders.library_model import save_model
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.encoders.text_tokens import SAMPLES, TextTokens, to_device
from crossknn.errors import EncoderError, InputError
from crossknn.models.batching import batches_in_order, without_cudnn_attention
from crossknn.scorers.inference.ops import TORCH_OPS, FlashOps, Layout, Ops
from crossknn.scorers.inference.packed import replace_attention, run_packed
from crossknn.scorers.inference.token_store import Counts, Tokens
from crossknn.types import Encoder, Rows

if TYPE_CHECKING:
    from torch import Tensor

QUERY, ITEM = "query", "document"  # sentence-transformers' names of the two sides
MAX_RELATIVE_ERROR: Final = 0.03  # of a vector computed in bfloat16
POOLINGS: Final = ("mean", "cls", "lasttoken")
ENCODE_TOKENS: Final = {"cpu": 8_192, "cuda": 131_072}  # of a batch without gradients
TOKENIZED_TEXTS: Final = 65_536  # together


class Student(Protocol):
    """What a teaching trains.

    `read` gives the inputs of texts: an object with `lengths`, what each text takes of a batch, and `join`.

    Attributes:
        parameters: The float32 weights.
    """

    device: Any
    parameters: list[Tensor]

    def read(self, side: str, texts: Sequence[str]) -> Any:
        """The inputs of queries or of items."""

    def encode(self, inputs: Any, numbers: Rows) -> Tensor:
        """(numbers, dim) float32 vectors of these texts, with gradients unless they are disabled."""

    def encode_all(self, inputs: Any, numbers: Rows | None = None) -> Tensor:
        """(texts, dim) vectors without gradients, in half precision on a GPU."""

    def take_gradients(self) -> None:
        """Move the gradients of the last backward passes to `parameters`, if they are elsewhere."""

    def update_working_copy(self) -> None:
        """Let the model compute with the present `parameters`."""

    def finish(self, folder: Path, /) -> Encoder:
        """The trained encoder, saved to `folder` if it is a model of its own."""


class EncoderStudent:
    """A copy of a sentence-transformers model in training.

    On a GPU the model computes in bfloat16, and the optimizer changes float32 weights behind it.

    Attributes:
        parameters: The float32 weights.
    """

    def __init__(self, encoder: SentenceEncoder, *, device: str | None = None) -> None:
        self._torch = torch = import_extra("torch", extra="models")
        self._encoder = encoder
        self._model = encoder.load_model(device=device)
        self._base, self._pooling = _check_modules(encoder, self._model)
        self.device = self._model.device
        trained = [value for value in self._model.parameters() if value.requires_grad]
        self.parameters: list[Tensor] = trained
        self._working: list[Tensor] = []  # bfloat16 copies that the model computes with
        if self.device.type == "cuda":
            self.parameters = [value.detach().clone() for value in trained]
            self._model.to(torch.bfloat16)
            self._working = trained
        self._ops: Ops = FlashOps() if self.device.type == "cuda" else TORCH_OPS
        self._first_position = self._choose_attention()

    def read(self, side: str, texts: Sequence[str]) -> TextTokens:
        """Tokens of texts, each of them once."""
        parts: list[Tokens] = []
        for start in range(0, len(texts), TOKENIZED_TEXTS):
            parts += self._encoder.tokenize(side, texts[start : start + TOKENIZED_TEXTS])
        return TextTokens.of(parts, self.device)

    def encode(self, tokens: TextTokens, numbers: Rows) -> Tensor:
        """(numbers, dim) float32 vectors of these texts, with gradients unless they are disabled."""
        with without_cudnn_attention(self.device):
            ids, positions, layout = tokens.pack(numbers)
            if self._first_position is None:
                states = self._padded_states(ids, positions, layout)
            else:
                states = run_packed(self._base, self._ops, ids, positions + self._first_position, layout)
        return self._finish(self._pool(states, layout)[: len(numbers)])

    def encode_all(self, tokens: TextTokens, numbers: Rows | None = None) -> Tensor:
        """(texts, dim) vectors without gradients, in half precision on a GPU."""
        torch = self._torch
        numbers = np.arange(len(tokens.lengths)) if numbers is None else numbers
        half = torch.float16 if self.device.type == "cuda" else torch.float32
        order = np.argsort(-tokens.lengths[numbers], kind="stable")  # equal lengths together, for a CPU
        vectors: Tensor | None = None
        with torch.no_grad():
            for batch in self._token_batches(tokens.lengths[numbers[order]]):
                found = self.encode(tokens, numbers[order[batch]]).to(half)
                if vectors is None:
                    vectors = torch.empty((len(numbers), found.shape[1]), dtype=half, device=self.device)
                vectors[to_device(order[batch], self.device)] = found
        if vectors is None:
            raise InputError("there must be texts to encode, got none.")
        return vectors

    def _token_batches(self, lengths: Counts) -> Iterator[slice]:
        return batches_in_order(lengths, ENCODE_TOKENS.get(self.device.type, ENCODE_TOKENS["cpu"]))

    def take_gradients(self) -> None:
        """Move the gradients of the last backward passes to the float32 weights."""
        if self._working:
            for value, working in zip(self.parameters, self._working, strict=True):
                value.grad = None if working.grad is None else working.grad.float()
                working.grad = None

    def update_working_copy(self) -> None:
        """Let the model compute with the present float32 weights."""
        if self._working:
            with self._torch.no_grad():
                self._torch._foreach_copy_(self._working, self.parameters)

    def finish(self, folder: Path) -> SentenceEncoder:
        """The trained encoder, from a folder that is written atomically, in float16 where the weights fit."""
        names = [name for name, value in self._model.named_parameters() if value.requires_grad]
        state = {**self._model.state_dict(), **dict(zip(names, self.parameters, strict=True))}
        whole = self._encoder.load_model(device="cpu")
        whole.load_state_dict({name: value.float().cpu() for name, value in state.items()})
        if all(bool(value.half().isfinite().all()) for value in self.parameters):
            whole.half()
        whole.prompts |= {side: self._encoder.prompt(side) for side in (QUERY, ITEM)}
        whole.max_seq_length = self._model.max_seq_length
        save_model(whole, folder)
        return SentenceEncoder(folder, device=str(self.device), normalize=self._encoder.normalize)

    def _choose_attention(self) -> int | None:
        """The position of a text's first token where padding-free passes give the encoder's vectors, None for padded.

        `EncoderError` if padded passes do not give them either.
        """
        expected = self._encoder.encode_items(list(SAMPLES))
        tokens, numbers = self.read(ITEM, SAMPLES), np.arange(len(SAMPLES))
        padding = getattr(self._base.config, "pad_token_id", None) or 0
        restore = replace_attention(self._base)
        for first in (0, padding + 1) if restore else ():  # RoBERTa's positions follow the padding id
            self._first_position = first
            if self._relative_error(tokens, numbers, expected) < MAX_RELATIVE_ERROR:
                return first
        if restore:
            restore()
        self._first_position = None
        error = self._relative_error(tokens, numbers, expected)
        if error < MAX_RELATIVE_ERROR:
            return None
        raise EncoderError(
            f"{self._encoder.name} cannot be taught: its vectors in training differ from those that "
            f"sentence-transformers computes by {error:.0%}."
        )

    def _relative_error(self, tokens: TextTokens, numbers: Rows, expected: NDArray[Any]) -> float:
        try:
            with self._torch.no_grad():
                found = self.encode(tokens, numbers).cpu().numpy()
        except (RuntimeError, IndexError, TypeError, NotImplementedError):  # of a model of another kind
            return float("inf")
        return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())

    def _padded_states(self, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """(tokens, dim) by a padded pass of the model, for one whose attention cannot be replaced."""
        torch = self._torch
        text = torch.repeat_interleave(to_device(layout.lengths, self.device), output_size=len(ids))
        shape = (len(layout.lengths), layout.max_length)
        padded, mask = (torch.zeros(shape, dtype=torch.long, device=self.device) for _ in range(2))
        padded[text, positions], mask[text, positions] = ids, 1
        states: Tensor = self._base(input_ids=padded, attention_mask=mask).last_hidden_state
        return states[text, positions]

    def _pool(self, states: Tensor, layout: Layout) -> Tensor:
        bounds = layout.cu_seqlens.long()
        if self._pooling == "cls":
            return states[bounds[:-1]]
        if self._pooling == "lasttoken":
            return states[bounds[1:] - 1]
        pooled: Tensor = self._torch.segment_reduce(states.float(), "mean", offsets=bounds, axis=0)
        return pooled.to(states.dtype)

    def _finish(self, pooled: Tensor) -> Tensor:
        """The modules behind the pooling, and the norm."""
        features = {"sentence_embedding": pooled}
        for module in list(self._model)[2:]:
            features = module(features)
        vectors = features["sentence_embedding"][:, : self._model.truncate_dim].float()
        return self._torch.nn.functional.normalize(vectors) if self._encoder.normalize else vectors


def _check_modules(encoder: SentenceEncoder, model: Any) -> tuple[Any, str]:
    """The transformer and the pooling of a model, or `EncoderError` if it is not made of them."""
    modules = list(model)
    base = getattr(modules[0], "auto_model", None)
    pooling = getattr(modules[1], "pooling_mode", None) if len(modules) > 1 else None
    if base is None or pooling not in POOLINGS:
        raise EncoderError(
            f"{encoder.name} cannot be taught: it is no transformer with one pooling of {', '.join(POOLINGS)}."
        )
    if not getattr(modules[1], "include_prompt", True) and any(encoder.prompt(side) for side in (QUERY, ITEM)):
        raise EncoderError(f"{encoder.name} cannot be taught: its pooling leaves out the tokens of a prompt.")
    return base, str(pooling)
