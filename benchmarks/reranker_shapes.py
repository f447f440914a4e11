"""Pairs scored per second by rerankers of several shapes, beside sentence-transformers at its best batch size.

    python -m benchmarks.reranker_shapes --texts <BEIR folder> --out benchmarks/results/reranker_shapes_h200.json

The weights are random and the tokenizer is that of the embedded cross-encoder: speed depends on the shape and on the
number of tokens only. Shapes that the file has and `--shapes` does not name are kept.
Both sides score the same pairs in one run, raw logits, in turns; the first pass is that of a
scorer that has seen the other texts of the corpus, but none of these. The share of the card is that
of its matrix rate if the matrix products over whole pairs were all there is; what the pairs of a query share may be
computed once.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.matrix_rate import matrix_rate
from benchmarks.result_files import write_result
from benchmarks.scoring_speed import (
    best_batch_size,
    draw_pairs,
    measure,
    open_theirs,
    read_texts,
    theirs_side,
    timed,
)
from crossknn.evaluate.provenance import describe_commit
from crossknn.models.hub import EMBEDDED_CROSS_ENCODER
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.inference.pairs import TokenSpans, plan_passes
from crossknn.scorers.inference.prompts import FAMILIES

BERT = {"num_attention_heads": 12, "intermediate_size": 1536, "hidden_size": 384, "num_hidden_layers": 6}
LARGE = {"num_attention_heads": 16, "intermediate_size": 4096, "hidden_size": 1024, "num_hidden_layers": 24}
BASE = {"num_attention_heads": 12, "intermediate_size": 3072, "hidden_size": 768, "num_hidden_layers": 12}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniLM-L6": ("bert", BERT),
    "XLM-R large": ("xlm-roberta", {**LARGE, "type_vocab_size": 2, "max_position_embeddings": 514}),
    "ModernBERT base": ("modernbert", {**BASE, "num_hidden_layers": 22, "intermediate_size": 1152}),
    "DeBERTa-v3 base": (
        "deberta-v2",
        {
            **BASE, "relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0, "position_biased_input": False,
        },
    ),
    "Qwen3-0.6B": (
        "qwen3",
        {
            "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
        },
    ),
}  # fmt: skip
SHAPES["Qwen3-0.6B, prompt"] = SHAPES["Qwen3-0.6B"]  # with the prompt of Qwen3-Reranker, shared by the pairs of a query
PROMPT = "".join(FAMILIES["qwen3-reranker"].parts).replace(
    "{instruction}", FAMILIES["qwen3-reranker"].instruction or ""
)
SMALL_BATCH = 10  # pairs of one query, as in a round of a search


def main() -> None:
    options = read_options()
    rate = matrix_rate(options.device, torch.bfloat16) if options.device == "cuda" else None
    report: dict[str, Any] = {"shapes": {}}
    if options.out and options.out.exists():
        report = json.loads(options.out.read_text())
    report["matrix_tflops"] = rate and round(rate / 1e12)
    for name in options.shapes.split(";"):
        with tempfile.TemporaryDirectory() as folder:
            options.model = save_model(Path(folder), *SHAPES[name], prompt=PROMPT if "prompt" in name else None)
            report["shapes"][name] = measure_shape(options, rate) | describe_commit()
        gc.collect()
        torch.cuda.empty_cache()
        print(name, json.dumps(report["shapes"][name]), flush=True)
        report |= {"seed": options.seed}
        if options.out:
            write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="BEIR folder, or a .jsonl whose lines have a text")
    parser.add_argument("--shapes", default=";".join(SHAPES), help="separated by semicolons")
    parser.add_argument("--pairs", type=int, default=4096)
    parser.add_argument("--items-per-query", type=int, default=64)
    parser.add_argument("--batch-sizes", default="64,128,256")
    parser.add_argument("--trial-share", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def save_model(folder: Path, model_type: str, size: dict[str, Any], *, prompt: str | None) -> Path:
    """A classifier of this shape with random weights, and the embedded cross-encoder's tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED_CROSS_ENCODER)
    tokenizer.model_max_length = 512
    if prompt is not None:
        for role, name in (("query", "query"), ("document", "item")):
            text = f"' + (messages | selectattr('role', 'eq', '{role}') | first).content + '"
            prompt = prompt.replace(f"{{{name}}}", text)
        tokenizer.chat_template = "{{- '" + prompt.replace("\n", "\\n") + "' }}"
    ids = {"pad_token_id": tokenizer.pad_token_id, "cls_token_id": tokenizer.cls_token_id}
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        num_labels=1,
        initializer_range=0.05,
        **{"max_position_embeddings": 512, **ids, **size},
    )
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measure_shape(options: argparse.Namespace, rate: float | None) -> dict[str, Any]:
    queries, items = draw_pairs(options)
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    theirs = open_theirs(options, dtype)
    trial = slice(0, len(queries) // options.trial_share)
    best = best_batch_size(theirs, queries[trial], items[trial], options)
    scorer = CrossEncoder(options.model, device=options.device, dtype=dtype)
    sides = {
        "sentence-transformers": theirs_side(theirs, queries, items, best["best"]),
        "crossknn": partial(scorer.score, queries, items),
    }
    timings, scores = measure(sides, options.repeats)
    timings["crossknn, first pass"] = [first_pass(options, dtype, queries, items) for _ in range(options.repeats)]
    few = slice(0, SMALL_BATCH)
    small = {
        "sentence-transformers": theirs_side(theirs, queries[few], items[few], SMALL_BATCH),
        "crossknn": partial(scorer.score, queries[few], items[few]),
    }
    small_timings, _ = measure(small, 10 * options.repeats)
    seconds = {name: sorted(wall for wall, _ in runs)[len(runs) // 2] for name, runs in timings.items()}
    work = matrix_work(scorer, queries, items)
    return {
        "pairs": len(queries),
        "tokens_per_pair": round(scorer.counts.tokens / scorer.counts.passes, 1),
        "padding_free": type(scorer._varlen).__name__,
        "pairs_per_s": {name: round(len(queries) / wall, 1) for name, wall in seconds.items()},
        "ratio": {name: round(seconds["sentence-transformers"] / wall, 2) for name, wall in seconds.items()},
        "share_of_card": {name: rate and round(work / wall / rate, 3) for name, wall in seconds.items()},
        "ms_of_10_pairs": {
            name: round(1000 * sorted(wall for wall, _ in runs)[len(runs) // 2], 2)
            for name, runs in small_timings.items()
        },
        "batch_sizes_tried": best,
        "largest_difference": float(abs(scores["crossknn"] - scores["sentence-transformers"]).max()),
        "score_deviation": float(scores["sentence-transformers"].std()),
    }


def first_pass(options: argparse.Namespace, dtype: str, queries: list[str], items: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a scorer that has seen other texts only."""
    corpus = read_texts(options.texts / "corpus.jsonl" if options.texts.is_dir() else options.texts)
    others = sorted(set(corpus) - set(items))[: len(queries)]
    scorer = CrossEncoder(options.model, device=options.device, dtype=dtype)
    scorer.score(queries[: len(others)], others)
    wall, processor, _ = timed(partial(scorer.score, queries, items))
    return wall, processor


def matrix_work(scorer: CrossEncoder, queries: list[str], items: list[str]) -> float:
    """Floating-point operations in all matrix products over the pairs, unpadded: linear layers and attention."""
    config, linears = scorer._pretrained.model.config, torch.nn.Linear
    modules = scorer._pretrained.model.base_model.modules()
    per_token = 2 * sum(module.weight.numel() for module in modules if isinstance(module, linears))
    tokens = TokenSpans(scorer._queries.lookup(queries), scorer._items.lookup(items))
    lengths = scorer.template.lengths(plan_passes(scorer.template, scorer.truncation, tokens).spans).tolist()
    heads = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    wide = config.num_attention_heads * heads
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    reach = {"full_attention": 512, "sliding_attention": getattr(config, "local_attention", None) or 512}
    share = 0.5 if "qwen" in config.model_type else 1.0  # a causal model needs half of the products of attention
    attention = sum(4 * share * n * min(n, reach[kind]) * wide for n in lengths for kind in kinds)
    return float(sum(lengths) * per_token + attention)


if __name__ == "__main__":
    main()
