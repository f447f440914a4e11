"""Tokens of whole texts, with prompt and special tokens, truncated, for padding-free encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import Layout
from crossknn.scorers.inference.prompt_tokens import added_special_tokens
from crossknn.scorers.inference.token_store import Counts, Ragged, Tokenize, Tokens, fast_tokenize
from crossknn.scorers.inference.varlen import JoinedPairs, fill_up
from crossknn.scorers.inference.word_tokens import tokenize_by_words
from crossknn.types import Rows

if TYPE_CHECKING:
    from torch import Tensor

# What tokenizers treat differently: empty texts, white space, accents, special tokens, more tokens than a model takes.
SAMPLES: Final = ("Ice", "", "  Two\tspaces  and\na LINE ", "naïve café ﬁ 水 Σ", "[SEP] <s> </s> [PAD]", "word " * 9000)


@dataclass(frozen=True)
class TextTokens:
    """The tokens of many texts on the device."""

    flat: Tensor  # int32
    starts: Tensor  # (texts,) int64
    lengths: Counts  # (texts,) on the host

    @classmethod
    def of(cls, rows: Sequence[Tokens], device: Any) -> Self:
        """The tokens of texts, copied to the device."""
        tokens = Ragged.of(rows)
        return cls(to_device(tokens.flat, device), to_device(tokens.starts, device), tokens.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def join(self, other: Self) -> Self:
        """The texts of both; the other's are numbered behind these."""
        torch = import_extra("torch", extra="models")
        flat, starts = torch.cat([self.flat, other.flat]), torch.cat([self.starts, other.starts + len(self.flat)])
        return type(self)(flat, starts, np.concatenate([self.lengths, other.lengths]))

    def pack(self, numbers: Rows) -> tuple[Tensor, Tensor, Layout]:
        """The ids and positions of these texts, end to end, and where each begins.

        On a GPU other texts follow, so that batches have few shapes: see `fill_up`.
        """
        torch = import_extra("torch", extra="models")
        lengths, device = self.lengths[numbers], self.flat.device
        moved = to_device(np.stack([numbers, lengths]), device)
        starts, sizes = self.starts[moved[0]], moved[1]
        ends = torch.cumsum(sizes, 0)
        text = torch.repeat_interleave(sizes, output_size=int(lengths.sum()))  # a known size avoids a synchronization
        positions = torch.arange(len(text), device=device) - (ends - sizes)[text]
        ids = self.flat[starts[text] + positions].long()
        bounds = torch.nn.functional.pad(ends, (1, 0)).int()
        layout = Layout(bounds, lengths, int(lengths.max()))
        if not ids.is_cuda:
            return ids, positions, layout
        pairs = fill_up(JoinedPairs(ids, ids, positions, layout), sequences=False)
        return pairs.ids, pairs.positions, pairs.layout


def text_tokenizer(backend: Any, *, prompt: str, max_tokens: int, reference: Tokenize) -> Tokenize:
    """A function from texts to their tokens: by words where that gives the tokens of `reference`, which is slower."""
    private = type(backend).from_str(backend.to_str())
    private.no_padding()
    private.no_truncation()
    by_words = tokenize_by_words(private, fast_tokenize(private))
    leading, trailing = (np.array(part, np.int32) for part in added_special_tokens(private))
    room = max_tokens - len(leading) - len(trailing)

    def fast(texts: list[str]) -> list[Tokens]:
        rows = by_words([prompt + text for text in texts] if prompt else texts)
        return [np.concatenate([leading, row[:room], trailing]) for row in rows]

    samples = list(SAMPLES)
    if room <= 0:
        return reference
    equal = all(map(np.array_equal, fast(samples), reference(samples)))
    return fast if equal else reference


def truncating_tokenizer(backend: Any, *, prompt: str, max_tokens: int) -> Tokenize:
    """A function from texts to their tokens, by the tokenizer itself."""
    private = type(backend).from_str(backend.to_str())
    private.no_padding()
    private.enable_truncation(max_tokens)
    tokenize = fast_tokenize(private, special_tokens=True)
    return lambda texts: tokenize([prompt + text for text in texts])


def to_device(array: NDArray[Any], device: Any) -> Tensor:
    """A tensor on the device, copied while it computes."""
    tensor: Tensor = import_extra("torch", extra="models").from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
