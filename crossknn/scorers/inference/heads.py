"""Heads that read a score from a transformer's states, apart from it: of decoders, language models and modular models.

A language model's score is the logit of one token, or the difference of two. That is one row of its output matrix, or
two, so that the logits of the other tokens are never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.scorers.inference.loading import Pretrained
from crossknn.scorers.inference.model_folder import LANGUAGE_MODEL, ModelFolder, make_head
from crossknn.scorers.inference.varlen import JoinedPairs, VarlenHead, head_states, one_sequence_each

PROBE_TOKENS = (5, 3, 8, 2, 7, 4, 9, 6)


@dataclass(frozen=True, slots=True)
class Head:
    """Pooling and the layers behind it, in float32."""

    pooling: str
    layers: Any  # from (pairs, dim) to (pairs, labels)
    softcap: float | None = None  # logits are softcap · tanh(logit / softcap)
    difference: bool = False  # the score is the first logit less the second

    @property
    def labels(self) -> int:
        """Number of logits per pair."""
        sizes = [layer.out_features for layer in self.layers.modules() if hasattr(layer, "out_features")]
        return 1 if self.difference else int(sizes[-1])

    @property
    def token(self) -> str | None:
        """The only token of each pair that is read; None if all are."""
        return self.pooling if self.pooling in ("cls", "lasttoken") else None

    def logits(self, states: Any, pairs: JoinedPairs) -> Any:
        """(pairs, labels) from (tokens, dim) states, or (pairs, dim) of one token of each pair."""
        if self.token is not None:
            return self._logits(states)
        reduce, lengths = import_extra("torch", extra="models").segment_reduce, pairs.layout.cu_seqlens.diff().long()
        return self._logits(reduce(states.float(), self.pooling, lengths=lengths, unsafe=True))

    def _logits(self, pooled: Any) -> Any:
        logits = self.layers(pooled.float())
        if self.softcap:
            logits = self.softcap * (logits / self.softcap).tanh()
        return logits[:, :1] - logits[:, 1:] if self.difference else logits


class ClassifierHead:
    """The pooler and classifier of a BERT-like model, which read the first token, in the model's precision."""

    token = "cls"  # noqa: S105

    def __init__(self, model: Any) -> None:
        self._classifier = model.classifier
        self._pooler = getattr(model.base_model, "pooler", None) or getattr(model, "pooler", None)

    def logits(self, states: Any, _: JoinedPairs) -> Any:
        """(pairs, labels) from (pairs, dim)."""
        cls = states[:, None]
        return self._classifier(cls if self._pooler is None else self._pooler(cls))


def split_head(pretrained: Pretrained, folder: ModelFolder, tokens: Sequence[int]) -> tuple[Any, VarlenHead | None]:
    """The transformer without its head, and the head; no head where they can only run together.

    The head is verified with the model, where this machine can run it. `tokens` are the true token, and the false one
    if there is one, of a language model.
    """
    torch = import_extra("torch", extra="models")
    model = pretrained.model
    if folder.pooling is not None:
        head = Head(folder.pooling, make_head(folder.head, torch.float32).to(pretrained.device))
        return model, head
    if folder.kind != LANGUAGE_MODEL and not hasattr(model, "score") and not hasattr(model, "head"):
        return _split_classifier(torch, model) if pretrained.runs else (model, None)
    expected = _probe(torch, model).float() if pretrained.runs else None  # before heads change their precision
    if folder.kind == LANGUAGE_MODEL:
        head = _token_head(torch, model, tokens)
        if expected is not None:
            expected = expected[:, -1, list(tokens)]
            expected = expected[:, :1] - expected[:, 1:] if len(tokens) == 2 else expected
    elif isinstance(getattr(model, "score", None), torch.nn.Linear):  # a decoder
        head = Head("lasttoken", model.score.float())
    elif getattr(model.config, "classifier_pooling", None):  # ModernBERT
        layers = torch.nn.Sequential(model.head, model.classifier).float()
        head = Head(model.config.classifier_pooling, layers)
    else:
        return model, None
    if expected is not None and not torch.allclose(_split_logits(torch, model, head), expected, rtol=0.05, atol=0.05):
        raise InputError(
            f"{pretrained.source}: its logits are not a linear function of its last states, so they cannot be computed "
            "for some tokens alone. Score with crossknn.function_scorer instead."
        )
    return model.base_model, head


def _split_classifier(torch: Any, model: Any) -> tuple[Any, ClassifierHead | None]:
    """The encoder and the head of a BERT-like classifier; of any other, the whole model and no head."""
    try:
        head = ClassifierHead(model)
        equal = torch.allclose(_split_logits(torch, model, head), _probe(torch, model), rtol=1e-3, atol=1e-3)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):
        return model, None
    return (model.base_model, head) if equal else (model, None)


def _split_logits(torch: Any, model: Any, head: VarlenHead) -> Any:
    """The logits of the probe, by transformer and head apart."""
    with torch.inference_mode():
        ids = _probe_ids(torch, model)
        states = model.base_model(input_ids=ids).last_hidden_state[0]
        pairs = one_sequence_each([ids[0]])
        return head.logits(head_states(head, states, pairs.layout), pairs)


def _token_head(torch: Any, model: Any, tokens: Sequence[int]) -> Head:
    """The rows of a language model's output matrix for these tokens."""
    output = model.get_output_embeddings()
    softcap = getattr(model.config, "final_logit_softcapping", None)
    weight = output.weight[list(tokens)].float()
    bias = None if getattr(output, "bias", None) is None else output.bias[list(tokens)].float()
    if len(tokens) == 2 and softcap is None:  # one row for the difference
        weight, bias = weight[:1] - weight[1:], None if bias is None else bias[:1] - bias[1:]
    layer = torch.nn.Linear(weight.shape[1], len(weight), bias=bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return Head("lasttoken", layer, softcap, difference=len(weight) == 2)


def _probe_ids(torch: Any, model: Any) -> Any:
    high = int(model.get_input_embeddings().num_embeddings)
    return torch.tensor([[token % high for token in PROBE_TOKENS]], device=model.device)


def _probe(torch: Any, model: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=_probe_ids(torch, model)).logits
