"""Attention, feed-forward and RMSNorm modules of decoders and ModernBERT with fused operations, on a GPU.

transformers computes rotary embeddings, norms and gated activations by many small operations, each of which reads and
writes all states. Here they are one kernel each, and the products that share an input are one. Weights stay the
model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import load_kernels
from crossknn.scorers.inference.varlen import fuse_linears

Attend = Callable[[Any, Any, Any, float | None, int | None, bool], Any]
ACTIVATIONS = {"SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "GELU": "gelu"}


def fuse_modules(model: Any, attend: Attend) -> Callable[[], None] | None:
    """Give the modules fused operations; the returned function takes them back. None where that is not possible.

    `attend(query, key, value, scale, window, causal)` is attention over (tokens, heads, head dim).
    """
    kernels = load_kernels()
    if kernels is None:
        return None
    torch = import_extra("torch", extra="models")
    makers = (_attention, _gated, _rms_norm)
    changed = []
    for module in list(model.modules()):
        for make in makers:
            forward = make(torch, kernels, module, attend)
            if forward is not None:
                module.forward = forward
                changed.append(module)
                break

    def undo() -> None:
        for module in changed:
            del module.forward

    return undo if changed else None


def _attention(torch: Any, kernels: Any, module: Any, attend: Attend) -> Callable[..., Any] | None:
    """Self-attention with rotary positions, and norms of query and key where the model has them."""
    if hasattr(module, "Wqkv") and hasattr(module, "Wo") and hasattr(module, "head_dim"):
        project, output = module.Wqkv, module.Wo
        width = project.out_features // 3
        widths = [width] * 3
    elif all(hasattr(module, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim")):
        parts = (module.q_proj, module.k_proj, module.v_proj)
        project, output = fuse_linears(torch, *parts), module.o_proj
        widths = [part.out_features for part in parts]
    else:
        return None
    dim = int(module.head_dim)
    norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
    scale, window = getattr(module, "scaling", None), getattr(module, "sliding_window", None)
    window = None if window is None else window - 1

    def forward(hidden_states: Any, position_embeddings: Any = None, **_: Any) -> tuple[Any, None]:
        states = project(hidden_states[0]).split(widths, 1)
        query, key, value = (part.unflatten(1, (-1, dim)) for part in states)
        cos, sin = (part[0] for part in position_embeddings)
        for part, norm in zip((query, key), norms, strict=True):
            kernels.rotate(part, cos, sin, norm)
        attended = attend(query, key, value, scale, window, bool(module.is_causal))
        return output(attended.flatten(1))[None], None

    return forward


def _gated(torch: Any, kernels: Any, module: Any, _: Attend) -> Callable[..., Any] | None:
    """A feed-forward network with a gate: SwiGLU or GeGLU."""
    activation = ACTIVATIONS.get(type(getattr(module, "act_fn", getattr(module, "act", None))).__name__)
    if activation is None:
        return None
    if all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj")):
        wide, down = fuse_linears(torch, module.gate_proj, module.up_proj), module.down_proj
    elif hasattr(module, "Wi") and hasattr(module, "Wo") and module.Wi.out_features == 2 * module.Wo.in_features:
        wide, down = module.Wi, module.Wo
    else:
        return None
    return lambda states: down(kernels.gated_activation(wide(states[0]), activation))[None]


def _rms_norm(torch: Any, _: Any, module: Any, __: Attend) -> Callable[..., Any] | None:
    if not type(module).__name__.endswith("RMSNorm") or not hasattr(module, "variance_epsilon"):
        return None
    norm, weight, eps = torch.nn.functional.rms_norm, module.weight, module.variance_epsilon
    return lambda states: norm(states, (states.shape[-1],), weight, eps)
