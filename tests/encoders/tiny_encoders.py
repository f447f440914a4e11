"""Small dual encoders with random weights, saved by sentence-transformers."""

from pathlib import Path
from typing import Any

from tests.scorers import tiny, tiny_rerankers

SIZE = tiny.SIZE["hidden_size"]


def qwen_tokenizer() -> Any:
    """As of Qwen3-Embedding: padded on the left, and <|endoftext|> ends every text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_rerankers.qwen_tokenizer(None)
    end = "<|endoftext|>"
    tokenizer.padding_side = "left"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.convert_tokens_to_ids(end))]
    )
    return tokenizer


FAMILIES = {
    "modernbert": (tiny.bert_tokenizer, {"num_key_value_heads": None, "global_attn_every_n_layers": 2}),
    "qwen3": (qwen_tokenizer, {"num_key_value_heads": 2, "head_dim": 8}),
}


def save(folder: Path, family: str, *, pooling: str = "mean", max_tokens: int | None = None, **own: Any) -> Path:
    """A transformer with a pooling, and if asked for further modules, in `folder`.

    Args:
        folder: Where to write it.
        family: The kind of transformer.
        pooling: Of its tokens.
        max_tokens: The limit of tokens that the folder names.
        own: `modules`, further ones, and arguments of `SentenceTransformer`.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import AutoConfig, AutoModel

    base = folder.with_name(f"{folder.name}-base")
    if family in FAMILIES:
        make, options = FAMILIES[family]
        tokenizer = make()
        size = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **tiny.SIZE}
        config = AutoConfig.for_model(family, max_position_embeddings=tiny.LENGTH, **size, **options)
    else:
        tokenizer = tiny.FAMILIES[family]()
        config = tiny._config(family, tokenizer)
    torch.manual_seed(4)
    AutoModel.from_config(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    transformer = Transformer(str(base), max_seq_length=max_tokens)
    modules = [transformer, Pooling(SIZE, pooling), *own.pop("modules", ())]
    SentenceTransformer(modules=modules, device="cpu", **own).save_pretrained(str(folder), create_model_card=False)
    return folder
