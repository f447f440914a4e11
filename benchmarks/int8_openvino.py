"""int8 on a CPU: crossknn beside OpenVINO (calibrated by NNCF) and sentence-transformers, by speed and by ranking.

All sides score the same pairs in one run, one thread, in turns. OpenVINO gets its tokens ready, pairs sorted by length
and the best of several batch sizes; it is calibrated on pairs of the same texts. Rankings are compared with float32's.

    pip install openvino nncf
    python -m benchmarks.int8_openvino --model <folder> --texts <BEIR folder> --out benchmarks/results/int8_cpu.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.int8_recall import TOPS, draw_beir, overlap
from benchmarks.result_files import write_result
from benchmarks.scoring_speed import best_batch_size, draw_pairs, measure, open_theirs, theirs_side, timed
from crossknn.scorers.cross_encoder import CrossEncoder

try:
    import nncf
    import openvino
except ImportError as error:
    raise SystemExit("This benchmark compares with OpenVINO: pip install openvino nncf") from error

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CALIBRATION_PAIRS = 300


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    queries, items = draw_pairs(options)
    theirs = open_theirs(options, "float32")
    batch_size = best_batch_size(theirs, queries[:32], items[:32], options)["best"]
    vino = OpenVino.calibrated(options)
    ours = {dtype: CrossEncoder(options.model, device="cpu", dtype=dtype) for dtype in ("float32", "int8")}
    tokens = vino.tokenize(queries, items)
    vino_size = min((1, 2, 4, 8, 16), key=lambda size: min(timed(vino.side(tokens, size))[0] for _ in range(2)))
    sides: dict[str, Callable[[], np.ndarray]] = {
        "sentence-transformers float32": theirs_side(theirs, queries, items, batch_size),
        "OpenVINO int8": vino.side(tokens, vino_size),
        **{f"crossknn {dtype}": partial(scorer.score, queries, items) for dtype, scorer in ours.items()},
    }
    timings, scores = measure(sides, options.repeats)
    report = {
        "pairs": len(queries),
        "tokens_per_pair": round(ours["int8"].counts.tokens / ours["int8"].counts.passes, 1),
        "sides": summarize(timings, scores),
        "crossknn_int8_times_openvino_int8": ratios(timings["crossknn int8"], timings["OpenVINO int8"]),
        "batch_sizes": {"sentence-transformers": batch_size, "OpenVINO": vino_size},
        "batch_tokens": {dtype: scorer.batch_tokens for dtype, scorer in ours.items()},
        "openvino_precision_of_other_operations": vino.precision,
    }
    if options.ranking_queries:
        report["ranking"] = compare_rankings(options, vino, vino_size)
    report |= {"model": options.model.name, "texts": options.texts.name, "seed": options.seed}
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a BERT-like cross-encoder")
    parser.add_argument("--texts", type=Path, required=True, help="BEIR folder")
    parser.add_argument("--pairs", type=int, default=96)
    parser.add_argument("--items-per-query", type=int, default=32)
    parser.add_argument("--batch-sizes", default="4,8,16,32", help="tried for sentence-transformers")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--ranking-queries", type=int, default=12, help="0 skips the comparison of rankings")
    parser.add_argument("--ranking-items", type=int, default=1_000)
    parser.add_argument("--max-item-tokens", type=int, default=64, help="in the comparison of rankings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="where to write the result as JSON")
    parser.set_defaults(device="cpu", threads=1)
    return parser.parse_args()


@dataclass(frozen=True)
class OpenVino:
    """A cross-encoder quantized by NNCF and compiled for one thread."""

    tokenizer: Any
    compiled: Any

    @classmethod
    def calibrated(cls, options: argparse.Namespace) -> OpenVino:
        """The model of the options, calibrated on pairs of its texts."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(options.model))
        model = transformers.AutoModelForSequenceClassification.from_pretrained(str(options.model), dtype=torch.float32)
        drawn = argparse.Namespace(**{**vars(options), "pairs": CALIBRATION_PAIRS, "items_per_query": 4})
        drawn.seed = options.seed + 1
        examples = [pad([row]) for row in cls(tokenizer, None).tokenize(*draw_pairs(drawn))]
        example = {name: torch.from_numpy(array) for name, array in examples[0].items()}
        with torch.inference_mode():
            converted = openvino.convert_model(Logits(model.eval()), example_input=example)
        quantized = nncf.quantize(
            converted, nncf.Dataset(examples), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(examples)
        )
        threads = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
        return cls(tokenizer, openvino.Core().compile_model(quantized, "CPU", threads))

    @property
    def precision(self) -> str:
        """Of the operations that are not in int8."""
        return str(self.compiled.get_property("INFERENCE_PRECISION_HINT").to_string())

    def tokenize(self, queries: list[str], items: list[str], max_length: int = 512) -> list[dict[str, np.ndarray]]:
        """The inputs of each pair, (tokens,) each."""
        encoded = self.tokenizer(queries, items, truncation=True, max_length=max_length)
        return [{name: np.asarray(encoded[name][row]) for name in INPUTS} for row in range(len(queries))]

    def side(self, rows: list[dict[str, np.ndarray]], batch_size: int) -> Callable[[], np.ndarray]:
        """A function that scores these pairs, batches prepared."""
        order = np.argsort([-len(row["input_ids"]) for row in rows], kind="stable")
        starts = range(0, len(rows), batch_size)
        batches = [pad([rows[row] for row in order[start : start + batch_size]]) for start in starts]
        request = self.compiled.create_infer_request()

        def score() -> np.ndarray:
            scores = np.empty(len(rows), np.float32)
            scores[order] = np.concatenate([request.infer(batch)[0][:, 0] for batch in batches])
            return scores

        return score


class Logits(torch.nn.Module):
    """The model with its inputs in order, for conversion."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(input_ids=input_ids, **inputs).logits


def pad(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One batch of these pairs; padding is 0 in every input."""
    longest = max(len(row["input_ids"]) for row in rows)
    return {name: np.stack([np.pad(row[name], (0, longest - len(row[name]))) for row in rows]) for name in INPUTS}


def summarize(timings: dict[str, list[tuple[float, float]]], scores: dict[str, np.ndarray]) -> dict[str, Any]:
    exact = scores["sentence-transformers float32"]
    return {
        name: {
            "pairs_per_processor_s": round(len(exact) / statistics.median(cpu for _, cpu in runs), 2),
            "times_sentence_transformers": ratios(runs, timings["sentence-transformers float32"]),
            "rms_difference": round(float(np.sqrt(np.square(scores[name] - exact).mean())), 4),
        }
        for name, runs in timings.items()
    }


def ratios(runs: list[tuple[float, float]], base: list[tuple[float, float]]) -> dict[str, float]:
    """Speed relative to another side, by processor time: the median over rounds, and the extremes."""
    each = [other / own for (_, own), (_, other) in zip(runs, base, strict=True)]
    figures = {"median": statistics.median(each), "lowest": min(each), "highest": max(each)}
    return {name: round(figure, 3) for name, figure in figures.items()}


def compare_rankings(options: argparse.Namespace, vino: OpenVino, batch_size: int) -> dict[str, Any]:
    """The shares of float32's top k that each int8 keeps."""
    drawn = argparse.Namespace(texts=options.texts, queries=options.ranking_queries, items=options.ranking_items)
    queries, items = draw_beir(drawn, random.Random(options.seed))
    cut = vino.tokenizer(items, truncation=True, max_length=options.max_item_tokens, add_special_tokens=False)
    asked = [query for query in queries for _ in items]
    shown = vino.tokenizer.batch_decode(cut["input_ids"]) * len(queries)  # the same short texts for all
    exact = CrossEncoder(options.model, device="cpu", dtype="float32").score(asked, shown)
    ours = CrossEncoder(options.model, device="cpu", dtype="int8").score(asked, shown)
    theirs = vino.side(vino.tokenize(asked, shown), max(8, batch_size))()
    rows = (len(queries), len(items))
    report: dict[str, Any] = {"queries": rows[0], "items": rows[1], "max_item_tokens": options.max_item_tokens}
    for name, found in (("crossknn int8", ours), ("OpenVINO int8", theirs)):
        scores = {"float32": exact.reshape(rows), "int8": found.reshape(rows)}
        report[name] = {
            "in_top_k": {k: overlap(scores, k, k) for k in TOPS},
            "in_top_2k": {k: overlap(scores, k, 2 * k) for k in TOPS},
            "rms_difference": round(float(np.sqrt(np.square(exact - found).mean())), 4),
        }
    return report


if __name__ == "__main__":
    main()
