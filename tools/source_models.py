"""Dual encoder and [emb]-CE of `train_source`: forward passes, loading and saving."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from crossknn.errors import InputError
from crossknn.models.hub import no_progress_bars
from crossknn.scorers.emb_cross_encoder import POOLING_FILE, Pooling
from crossknn.scorers.inference.loading import Pretrained, load_pretrained

MODULES = {  # of a sentence-transformers folder
    "": "sentence_transformers.models.Transformer",
    "1_Pooling": "sentence_transformers.models.Pooling",
    "2_Normalize": "sentence_transformers.models.Normalize",
}


class DualEncoder(torch.nn.Module):
    """Mean pooling and L2 normalization, as `SentenceEncoder` computes them."""

    def __init__(self, base: Pretrained) -> None:
        super().__init__()
        self.bert = base.model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.float()
        real = attention_mask[:, :, None].float()
        return functional.normalize((states * real).sum(1) / real.sum(1))


class EmbModel(torch.nn.Module):
    """One logit: the inner product of [CLS] and the [SEP] before the item, as `EmbCrossEncoder` computes it."""

    def __init__(self, base: Pretrained) -> None:
        super().__init__()
        self.bert = base.model

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> SequenceClassifierOutput:
        inputs = {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": attention_mask}
        states = self.bert(**inputs).last_hidden_state.float()
        before_item = (attention_mask - token_type_ids).sum(1) - 1
        rows = torch.arange(len(states), device=states.device)
        return SequenceClassifierOutput(logits=(states[:, 0] * states[rows, before_item]).sum(1, keepdim=True))


def load_base(folder: Path, *, device: str) -> Pretrained:
    """The pretrained BERT in `folder`, ready for training."""
    base = load_pretrained(folder, kind="AutoModel", device=device, dtype="float32", as_transformers=True)
    if base.model.config.model_type != "bert":
        raise InputError(f"{folder}: expected a BERT such as all-MiniLM-L6-v2, got {base.model.config.model_type}.")
    base.model.requires_grad_(True)
    return base


def save_dual_encoder(base: Pretrained, folder: Path, *, max_tokens: int) -> None:
    """Save as a sentence-transformers folder; `max_tokens` includes the special tokens."""
    save_half(base, folder)
    modules = [{"idx": at, "name": str(at), "path": path, "type": MODULES[path]} for at, path in enumerate(MODULES)]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": base.model.config.hidden_size, "pooling_mode_mean_tokens": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)


def save_emb_model(base: Pretrained, folder: Path) -> None:
    """Save as a folder that `EmbCrossEncoder` opens."""
    save_half(base, folder)
    write_json(folder / POOLING_FILE, asdict(Pooling(query_pooling="cls", item_pooling="sep")))


def save_half(base: Pretrained, folder: Path) -> None:
    """Save the weights in half precision, and the tokenizer."""
    with no_progress_bars():
        copy.deepcopy(base.model).half().save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
