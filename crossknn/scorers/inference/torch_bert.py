"""BERT without the model classes of transformers, whose import alone takes longer than a search with a small model.

Modules have the names that transformers gives them. So weights, fingerprints, and whatever takes a model apart or
compares it are the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from crossknn.scorers.inference.model_folder import CLASSIFIER, ENCODER

WEIGHTS: Final = "model.safetensors"
ARCHITECTURES: Final = {CLASSIFIER: "BertForSequenceClassification", ENCODER: "BertModel"}
NOT_WEIGHTS: Final = ("embeddings.position_ids",)  # older versions of transformers saved it
# Settings of a config that would change how the model computes, with the only value that is computed here.
PLAIN: Final[Mapping[str, Any]] = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "quantization_config": None,
    "auto_map": None,
}


class States(NamedTuple):
    """What an encoder returns."""

    last_hidden_state: Tensor  # (sequences, tokens, dim)


class Logits(NamedTuple):
    """What a classifier returns."""

    logits: Tensor  # (sequences, labels)


class BertModel(nn.Module):
    """The encoder with its pooler."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Layers(config)
        self.pooler = Pooler(config.hidden_size)

    @property
    def base_model(self) -> Self:
        return self

    @property
    def device(self) -> torch.device:
        return self.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.get_input_embeddings().weight.dtype

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> States:
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        return States(self.encoder(self.embeddings(input_ids, token_type_ids), mask))


class BertClassifier(nn.Module):
    """The encoder with a linear layer behind its pooler."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.classifier = linear(config.hidden_size, config.num_labels)

    @property
    def base_model(self) -> BertModel:
        return self.bert

    @property
    def device(self) -> torch.device:
        return self.bert.device

    @property
    def dtype(self) -> torch.dtype:
        return self.bert.dtype

    def get_input_embeddings(self) -> nn.Embedding:
        return self.bert.get_input_embeddings()

    def forward(self, **inputs: Tensor) -> Logits:
        return Logits(self.classifier(self.bert.pooler(self.bert(**inputs).last_hidden_state)))


class Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        dim = config.hidden_size
        self.word_embeddings = embedding(config.vocab_size, dim)
        self.position_embeddings = embedding(config.max_position_embeddings, dim)
        self.token_type_embeddings = embedding(config.type_vocab_size, dim)
        self.LayerNorm = norm(config)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        embedded: Tensor = self.word_embeddings(input_ids) + self.token_type_embeddings(types)
        normed: Tensor = self.LayerNorm(embedded + self.position_embeddings(position_ids))
        return normed


class Layers(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layer:
            states = layer(states, mask)
        return states


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config, config.intermediate_size)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        mixed = self.attention(states, mask)
        result: Tensor = self.output(self.intermediate(mixed), mixed)
        return result


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = SelfAttention(config.hidden_size, config.num_attention_heads)
        self.output = Output(config, config.hidden_size)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        mixed: Tensor = self.output(self.self(states, mask), states)
        return mixed


class Intermediate(nn.Module):
    """The first half of the feed-forward network."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = nn.GELU()

    def forward(self, states: Tensor) -> Tensor:
        hidden: Tensor = self.intermediate_act_fn(self.dense(states))
        return hidden


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_attention_heads = heads
        self.query, self.key, self.value = (linear(dim, dim) for _ in range(3))

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (
            project(states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


class Output(nn.Module):
    """A linear layer, and the norm of the residual sum."""

    def __init__(self, config: Any, inputs: int) -> None:
        super().__init__()
        self.dense = linear(inputs, config.hidden_size)
        self.LayerNorm = norm(config)

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dense(states) + residual)
        return normed


class Pooler(nn.Module):
    """A layer over the first token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = linear(dim, dim)

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.dense(states[:, 0]))


def embedding(rows: int, dim: int) -> nn.Embedding:
    """Without weights. To draw them at random, as torch does, takes its compiler's import."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim, device="meta"))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, device="meta")


def norm(config: Any) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, device="meta")


def load_bert(folder: Path, config: Any, *, kind: str, dtype: torch.dtype) -> nn.Module | None:
    """The model of a folder in evaluation mode; None where it is not exactly BERT, with every weight and no other.

    Args:
        folder: Has config and weights.
        config: The config as transformers reads it.
        kind: An Auto class of transformers.
        dtype: Of the weights.
    """
    if not is_plain_bert(config, kind=kind) or not (folder / WEIGHTS).is_file():
        return None
    if (folder / "adapter_config.json").exists():
        return None
    model = BertModel(config) if kind == ENCODER else BertClassifier(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        names = {name for name in file.keys() if not name.endswith(NOT_WEIGHTS)}  # noqa: SIM118
        found = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        if found != shapes:
            return None
        weights = {name: file.get_tensor(name).to(dtype) for name in names}
    model.load_state_dict(weights, assign=True)
    return model.eval()


def is_plain_bert(config: Any, *, kind: str) -> bool:
    """Whether a config describes what is computed here."""
    if (config.architectures or [None])[0] != ARCHITECTURES.get(kind):
        return False
    if config.hidden_size % config.num_attention_heads:
        return False
    absolute = getattr(config, "position_embedding_type", None) in (None, "absolute")
    return absolute and all(getattr(config, name, value) == value for name, value in PLAIN.items())
