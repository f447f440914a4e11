"""Pruning of a BERT: vocabulary, layers, width of the feed-forward layers, and positions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

LAST_LATIN = "\u0250"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def prune_vocabulary(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> tuple[Tokenizer, Tensor]:
    """A tokenizer of the `size` tokens that these texts use most often, and their former ids.

    All single Latin characters are kept, so that every English word can still be spelled.
    """
    old: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    used = Counter(piece for one in tokenizer.encode_batch(list(texts)) for piece in one.tokens)
    letters = [piece for piece in old if len(piece.removeprefix("##")) == 1 and piece[-1] < LAST_LATIN]
    ranked = dict.fromkeys([*SPECIAL, *letters, *(piece for piece, _ in used.most_common())])
    kept = [piece for piece in ranked if piece in old][:size]
    new = {
        piece: number for number, piece in enumerate([*SPECIAL, *sorted(set(kept) - set(SPECIAL), key=old.__getitem__)])
    }
    settings = json.loads(tokenizer.to_str())
    settings["model"]["vocab"] = new
    for token in settings["added_tokens"]:
        token["id"] = new[token["content"]]
    for name, token in settings["post_processor"].get("special_tokens", {}).items():
        token["ids"] = [new[name]]
    return Tokenizer.from_str(json.dumps(settings)), torch.tensor([old[piece] for piece in new])


def keep_pieces(model: Any, numbers: Tensor) -> None:
    """Keep only these rows of the word embedding."""
    embedding = model.bert.embeddings.word_embeddings
    model.bert.embeddings.word_embeddings = nn.Embedding.from_pretrained(
        embedding.weight.data[numbers.to(embedding.weight.device)].clone(), freeze=False, padding_idx=0
    )
    model.config.vocab_size, model.config.pad_token_id = len(numbers), 0


def keep_positions(model: Any, count: int) -> None:
    embeddings = model.bert.embeddings
    weight = embeddings.position_embeddings.weight.data[:count].clone()
    embeddings.position_embeddings = nn.Embedding.from_pretrained(weight, freeze=False)
    embeddings.position_ids = embeddings.position_ids[:, :count]
    embeddings.token_type_ids = embeddings.token_type_ids[:, :count]
    model.config.max_position_embeddings = count


def keep_layers(model: Any, layers: Sequence[int]) -> None:
    model.bert.encoder.layer = nn.ModuleList(model.bert.encoder.layer[i] for i in layers)
    model.config.num_hidden_layers = len(layers)


@torch.no_grad()
def narrow_feed_forward(model: Any, width: int, inputs: dict[str, Tensor]) -> None:
    """Keep the `width` units of every layer that contribute most to its output on these inputs."""
    for layer in model.bert.encoder.layer:
        seen: list[Tensor] = []
        hook = layer.intermediate.register_forward_hook(lambda *call, seen=seen: seen.append(call[-1]))
        model(**inputs)
        hook.remove()
        real = inputs["attention_mask"].bool()
        adds = seen[0][real].float().pow(2).mean(0).sqrt() * layer.output.dense.weight.float().norm(dim=0)
        best = adds.topk(width).indices.sort().values
        layer.intermediate.dense = _linear(layer.intermediate.dense.weight[best], layer.intermediate.dense.bias[best])
        layer.output.dense = _linear(layer.output.dense.weight[:, best], layer.output.dense.bias)
    model.config.intermediate_size = width


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device)
    linear.weight = nn.Parameter(weight.detach().clone())
    linear.bias = nn.Parameter(bias.detach().clone())
    return linear
