"""The last layer of a BERT-like encoder, computed only at the [CLS] position.

The classification head reads the [CLS] token alone. In the last layer every token still gives its key and value, but
the query, the attention output and the feed-forward network (five sixths of the layer's matrix products) are needed
for that one token only.
"""

from __future__ import annotations

import copy
from typing import Any

from crossknn._imports import import_extra

BERT_SUBMODULES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output",
    "intermediate",
)


def patch_last_layer(model: Any) -> bool:
    """Make the last layer compute the [CLS] position only; False if the architecture does not allow it.

    That is decided by the model's modules and then by its logits, on a padded batch in float32.
    """
    layer = last_layer(model)
    if layer is None:
        return False
    torch = import_extra("torch", extra="models")
    reference = copy.deepcopy(model).float()
    with torch.inference_mode():
        expected = _probe_logits(torch, reference)
        _patch(torch, last_layer(reference))
        try:
            actual = _probe_logits(torch, reference)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            return False
    if actual.shape != expected.shape or not torch.allclose(actual, expected, rtol=1e-4, atol=1e-5):
        return False
    _patch(torch, layer)
    return True


def last_layer(model: Any) -> Any:
    """The last layer of an encoder with BERT's architecture, or None."""
    encoder = getattr(getattr(model, model.base_model_prefix, None), "encoder", None)
    layers = getattr(encoder, "layer", None)
    config = model.config
    if not layers or getattr(config, "is_decoder", False) or getattr(config, "chunk_size_feed_forward", 0):
        return None
    try:
        for name in BERT_SUBMODULES:
            layers[-1].get_submodule(name)
    except AttributeError:
        return None
    return layers[-1]


def _patch(torch: Any, layer: Any) -> None:
    attention = layer.attention.self

    def split(states: Any) -> Any:
        return states.view(*states.shape[:2], attention.num_attention_heads, -1).transpose(1, 2)

    def forward(hidden_states: Any, attention_mask: Any = None, *_: Any, **__: Any) -> Any:
        cls = hidden_states[:, :1]
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        context = torch.nn.functional.scaled_dot_product_attention(
            split(attention.query(cls)),
            split(attention.key(hidden_states)),
            split(attention.value(hidden_states)),
            attn_mask=mask,
        )
        context = context.transpose(1, 2).reshape(cls.shape)
        attended = layer.attention.output(context, cls)
        return layer.output(layer.intermediate(attended), attended)

    layer.forward = forward


def _probe_logits(torch: Any, model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (3, 12), generator=generator).to(model.device)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    padded = model(input_ids=ids, attention_mask=mask).logits
    return torch.cat([padded, model(input_ids=ids).logits])
