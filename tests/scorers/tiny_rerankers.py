"""Small rerankers with random weights of every kind that people use, saved as their makers save them."""

from pathlib import Path
from typing import Any

from tests.scorers.tiny import SENTENCES, bert_tokenizer

LENGTH = 256
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRAINING = [
    *SENTENCES,
    "yes no Yes No 0 1 " * 20,
    *["yes", "no", "Yes", "No"] * 9,
    "why?\n" * 20,
    "so.\n\n" * 20,
    "<Query>: a\n<Document>: b",
]
CHAT_TEMPLATE = (
    "{%- set instruction = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first "
    "| default('Find what answers the query', true) -%}\n"
    "{%- set query = messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first -%}\n"
    "{%- set document = messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first -%}\n"
    "{{- '<|im_start|>user\n<Instruct>: ' + instruction + '\n<Query>: ' + query + '\n<Document>: ' + document }}"
    "{{- '<|im_end|>\n<|im_start|>assistant\n' }}"
)
STRIPPING_TEMPLATE = CHAT_TEMPLATE.replace("+ query +", "+ query | trim +").replace(
    "+ document }}", "+ document | trim }}"
)
ITEM_FIRST_TEMPLATE = (
    "{{- '<Document>: ' + (messages | selectattr('role', 'eq', 'document') | first).content }}"
    "{{- '\n<Query>: ' + (messages | selectattr('role', 'eq', 'query') | first).content + ' ??' }}"
)
PLAIN_CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.4,
    "max_position_embeddings": LENGTH,
}


def qwen_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Any:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TRAINING, trainers.BpeTrainer(vocab_size=500, special_tokens=specials, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=chat_template,
        model_max_length=LENGTH,
    )


def gemma_tokenizer(chat_template: str | None = None, *, pad: bool = True, prepend: bool = False) -> Any:
    """SentencePiece-like BPE with byte fallback, which puts <bos> before every text.

    With `prepend` a text begins with a space, and there is no pre-tokenizer, as of Mistral.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    if prepend:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), made.normalizer])
        made.pre_tokenizer = None
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(TRAINING, trainers.BpeTrainer(vocab_size=500, special_tokens=specials, max_token_length=8))
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    names = {"pad_token": "<pad>"} if pad else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=chat_template,
        model_max_length=LENGTH,
        **names,
    )


def save(folder: Path, config: Any, tokenizer: Any, *, auto: str) -> Path:
    """A model of this Auto class with random weights, and its tokenizer."""
    import torch
    import transformers

    torch.manual_seed(5)
    getattr(transformers, auto).from_config(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config_of(model_type: str, tokenizer: Any, **options: Any) -> Any:
    from transformers import AutoConfig

    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": 1}
    return AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **{**SIZE, **ids, **options})


def save_modular(folder: Path, *, pooling: str, activation: Any) -> Path:
    """Transformer → Pooling → Dense → LayerNorm → Dense, saved by sentence-transformers."""
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
    from transformers import BertConfig

    tokenizer = bert_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        initializer_range=0.4, max_position_embeddings=64,
    )  # fmt: skip
    base = save(folder / "base", config, tokenizer, auto="AutoModel")
    torch.manual_seed(7)
    modules = [
        Transformer(str(base)),
        Pooling(32, pooling_mode=pooling),
        Dense(32, 24, bias=False, activation_function=activation),
        LayerNorm(24),
        Dense(24, 1, activation_function=None, module_output_name="scores"),
    ]
    torch.nn.init.normal_(modules[3].norm.weight)
    CrossEncoder(modules=modules).save(str(folder / "model"))
    return folder / "model"
