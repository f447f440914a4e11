"""Small tokenizers trained on a few sentences, and small models with random weights to go with them."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

SENTENCES = (
    "Rivers freeze from the top down when the air above them is colder than the water.",
    "A cross-encoder reads the query and the item together and returns one number.",
    "The quick brown fox jumps over the lazy dog; the dog does not mind.",
    "Searching a million items with an expensive similarity needs a budget of calls.",
    "Ice, snow and water: three forms of one thing, each with its own weight (or not).",
    "How many calls does it take to find the ten best of 25,000 papers?",
)
LENGTH = 64  # positions of each tiny model
SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.4,
    "hidden_dropout_prob": 0.1,
}


def words(seed: int, count: int) -> str:
    """A text of `count` words."""
    known = " ".join(SENTENCES).split()
    return " ".join(random.Random(seed).choices(known, k=count))


def pairs(seed: int = 0, count: int = 40, max_words: int = 60) -> tuple[list[str], list[str]]:
    """Queries and items of mixed lengths, among them empty ones and pairs far too long for the model."""
    rng = random.Random(seed)
    lengths = [(0, 0), (0, 5), (5, 0), (max_words, max_words), (max_words, 1), (1, max_words), (1, 1)]
    lengths += [(rng.randrange(max_words), rng.randrange(max_words)) for _ in range(count - len(lengths))]
    return [words(rng.random(), q) for q, _ in lengths], [words(rng.random(), i) for _, i in lengths]


def bert_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import BertTokenizerFast

    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    lower = [sentence.lower() for sentence in SENTENCES]  # 600 are enough for each word to be one token
    trained.train_from_iterator(lower, trainers.WordPieceTrainer(vocab_size=600, special_tokens=specials))
    return BertTokenizerFast(vocab=trained.get_vocab(), model_max_length=LENGTH)


def roberta_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import RobertaTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=specials, initial_alphabet=alphabet)
    trained.train_from_iterator(SENTENCES, trainer)
    made = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in made["merges"]]
    return RobertaTokenizerFast(vocab=made["vocab"], merges=merges, model_max_length=LENGTH)


def _unigram(specials: list[str], unknown: str) -> list[tuple[str, float]]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=specials, unk_token=unknown)
    trained.train_from_iterator(SENTENCES, trainer)
    return [(piece, float(score)) for piece, score in json.loads(trained.to_str())["model"]["vocab"]]


def xlm_roberta_tokenizer() -> Any:
    from transformers import XLMRobertaTokenizerFast

    vocab = _unigram(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<unk>")
    return XLMRobertaTokenizerFast(vocab=vocab, model_max_length=LENGTH)


def deberta_tokenizer() -> Any:
    from transformers import DebertaV2TokenizerFast

    vocab = _unigram(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "[UNK]")
    return DebertaV2TokenizerFast(vocab=vocab, model_max_length=LENGTH)


def _config(family: str, tokenizer: Any, **options: Any) -> Any:
    import transformers as hf

    size: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **SIZE, **options}
    if family == "bert":
        return hf.BertConfig(max_position_embeddings=LENGTH, **size)
    if family == "roberta":  # its first text position comes after the padding position
        return hf.RobertaConfig(max_position_embeddings=LENGTH + 2, type_vocab_size=1, **size)
    if family == "xlm-roberta":
        return hf.XLMRobertaConfig(max_position_embeddings=LENGTH + 2, type_vocab_size=1, **size)
    relative = {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"]}
    return hf.DebertaV2Config(
        max_position_embeddings=LENGTH, position_biased_input=False, type_vocab_size=0, share_att_key=True, **relative,
        norm_rel_ebd="layer_norm", **size,
    )  # fmt: skip


FAMILIES = {
    "bert": bert_tokenizer,
    "roberta": roberta_tokenizer,
    "xlm-roberta": xlm_roberta_tokenizer,
    "deberta-v2": deberta_tokenizer,
}


def save_cross_encoder(folder: Path, family: str, *, labels: int = 1, dtype: str = "float32", **options: Any) -> Path:
    """A cross-encoder with random weights, in `folder`."""
    import torch
    from transformers import AutoModelForSequenceClassification

    tokenizer = FAMILIES[family]()
    torch.manual_seed(3)
    config = _config(family, tokenizer, num_labels=labels, **options)
    model = AutoModelForSequenceClassification.from_config(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_broken(model: Path, folder: Path) -> Path:
    """A copy of a cross-encoder that knows no vector of the first token of a pair, in `folder`: all scores are NaN."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    shutil.copytree(model, folder)
    broken = AutoModelForSequenceClassification.from_pretrained(model)
    with torch.no_grad():
        broken.get_input_embeddings().weight[AutoTokenizer.from_pretrained(model).cls_token_id] = float("nan")
    broken.save_pretrained(folder)
    return folder


def save_sentencepiece_model(path: Path) -> None:
    """A tokenizer in sentencepiece's own format, small enough for the tiny models."""
    import sentencepiece

    pieces = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    numbers = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5), model_writer=written, vocab_size=120, minloglevel=2, **pieces, **numbers
    )
    path.write_bytes(written.getvalue())


def save_encoder(folder: Path) -> Path:
    """A BERT encoder with random weights and three marks in its tokenizer, in `folder`."""
    import torch
    from transformers import AutoModel

    tokenizer = bert_tokenizer()
    tokenizer.add_tokens(["[M]", "[/M]", "[T]"], special_tokens=True)
    torch.manual_seed(4)
    AutoModel.from_config(_config("bert", tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def plain_logits(
    folder: Path, queries: list[str], items: list[str], *, max_length: int = LENGTH, device: str = "cpu"
) -> Any:
    """(pairs, labels) what transformers itself gives in float32, one unpadded pair at a time."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).float().eval().to(device)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    with torch.inference_mode():
        for query, item in zip(queries, items, strict=True):
            # As lists: with an empty second text alone, tokenizers fall back to the template of a single text.
            encoded = tokenizer([query], [item], truncation=True, max_length=max_length, return_tensors="pt")
            rows.append(model(**encoded.to(device)).logits[0])
    return torch.stack(rows).cpu().numpy()
