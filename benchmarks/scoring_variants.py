"""What each way to run a cross-encoder's layers on a GPU gives: device time alone, of the same pairs, in one run.

    python -m benchmarks.scoring_variants --model <folder> --texts <BEIR folder>

Pairs are real ones of mixed lengths. Beside the model's own shape the same is measured with that of BERT-base (12
layers of 768), whose weights are random. Each figure is the fastest of `--repeats`; `share` is that of the card's
matrix rate, and counts all products of the whole model, also those that a variant leaves out. How much scores differ
from float32 is shown beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertConfig

from benchmarks.matrix_rate import device_seconds, matrix_rate, matrix_work
from benchmarks.scoring_speed import draw_pairs, surroundings
from crossknn.models.batching import batches_in_order, length_buckets, without_cudnn_attention
from crossknn.scorers.inference.cls_only import patch_last_layer
from crossknn.scorers.inference.ops import FLASH_OPS, Layout, Ops, flash_attention, triton_ops
from crossknn.scorers.inference.pairs import find_template
from crossknn.scorers.inference.token_store import fast_tokenize
from crossknn.scorers.inference.varlen import VarlenModel

Variant = Callable[[], list[torch.Tensor]]


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"batch_tokens": options.batch_tokens, "pairs": options.pairs, **surroundings(options)}
    report["matrix_tflops"] = round(matrix_rate("cuda", torch.bfloat16) / 1e12)
    for shape in ("own", "BERT-base"):
        report[shape] = measure(options, shape, report["matrix_tflops"] * 1e12)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--items-per-query", type=int, default=32)
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="print the kernels of the fastest eager variant")
    parser.add_argument("--tiles", action="store_true", help="time attention with tiles of several sizes, too")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scoring_variants_h200.json"))
    options = parser.parse_args()
    options.device = "cuda"
    return options


def measure(options: argparse.Namespace, shape: str, rate: float) -> dict[str, Any]:
    work = Work(options, shape)
    flops = matrix_work(work.config, work.lengths.tolist())
    exact = np.concatenate([part.float().cpu().numpy() for part in work.padded(work.open(torch.float32))()])
    rows = {}
    for name, make in work.variants():
        try:
            run = make()
            scores = np.concatenate([part.float().cpu().numpy() for part in run()])  # also warms up
        except Exception as error:  # a compiler that is not there is a result, too
            rows[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            continue
        seconds = [device_seconds(run) for _ in range(options.repeats)]
        rows[name] = {
            "pairs_per_s": round(len(exact) / min(seconds)),
            "share": round(flops / min(seconds) / rate, 3),
            "spread": round(statistics.median(seconds) / min(seconds), 3),
            "mean_abs_difference_from_float32": float(np.abs(scores[: len(exact)] - exact).mean()),
        }
        print(shape, name, rows[name], flush=True)
    if options.profile:
        print_kernels(work.packed(triton_ops(work.config)))
    tokens = round(float(work.lengths.mean()), 1)
    report = {"tokens_per_pair": tokens, "spread_of_scores": float(exact.std()), "variants": rows}
    return {**report, "attention_ms_by_tile": work.tiles()} if options.tiles else report


class Work:
    """The pairs' tokens, and each way to get their scores."""

    def __init__(self, options: argparse.Namespace, shape: str) -> None:
        self.options = options
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        self.template = find_template(tokenizer, fast_tokenize(tokenizer.backend_tokenizer), tokenizer.pad_token_id)
        queries, items = draw_pairs(options)
        encoded = tokenizer(queries, items, truncation=True, max_length=512)
        self.ids = [np.array(ids) for ids in encoded["input_ids"]]
        self.types = [np.array(types) for types in encoded["token_type_ids"]]
        self.lengths = np.array([len(ids) for ids in self.ids])
        own = AutoConfig.from_pretrained(options.model)
        self.config = own if shape == "own" else BertConfig(vocab_size=own.vocab_size, num_labels=1)
        self.random = shape != "own"

    def open(self, dtype: torch.dtype = torch.bfloat16) -> Any:
        if self.random:
            torch.manual_seed(0)
            model = AutoModelForSequenceClassification.from_config(self.config)
        else:
            model = AutoModelForSequenceClassification.from_pretrained(self.options.model)
        return model.to("cuda", dtype).eval()

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        fused = triton_ops(self.config)
        assert fused is not None
        norms = replace(FLASH_OPS, add_norm=fused.add_norm, embed_norm=fused.embed_norm)
        yield "padded, of like length", lambda: self.padded(self.open())
        yield "and the last layer for the first token only", self.shortened
        yield "end to end", lambda: self.packed(FLASH_OPS)
        yield "and sum and norm in one kernel", lambda: self.packed(norms)
        yield (
            "and GELU within the product",
            lambda: self.packed(replace(norms, linear_activation=fused.linear_activation)),
        )
        yield "and attention of our own", lambda: self.packed(fused)
        yield "end to end, torch.compile", self.compiled
        yield "all of it, one CUDA graph for each batch", lambda: self.graphs(fused)

    def padded(self, model: Any) -> Variant:
        order = np.argsort(-self.lengths, kind="stable")
        batches = [self._pad(rows) for rows in length_buckets(self.lengths, self.options.batch_tokens)]

        @torch.inference_mode()
        def run() -> list[torch.Tensor]:
            with without_cudnn_attention(torch.device("cuda")):
                scores = torch.cat([model(**batch).logits[:, 0] for batch in batches])
            return [scores[torch.from_numpy(np.argsort(order)).cuda()]]

        return run

    def shortened(self) -> Variant:
        model = self.open()
        assert patch_last_layer(model)
        return self.padded(model)

    def packed(self, ops: Ops) -> Variant:
        model, batches = self.make_packed(ops), self.batches()

        @torch.inference_mode()
        def run() -> list[torch.Tensor]:
            return [model.run(*batch)[:, 0] for batch in batches]

        return run

    def compiled(self) -> Variant:
        whole, batches = torch.compile(self.make_packed(FLASH_OPS).run, dynamic=True), self.batches()

        @torch.inference_mode()
        def run() -> list[torch.Tensor]:
            return [whole(*batch)[:, 0] for batch in batches]

        return run

    @torch.inference_mode()
    def graphs(self, ops: Ops) -> Variant:
        model, captured = self.make_packed(ops), []
        for batch in self.batches():
            model.run(*batch)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                scores = model.run(*batch)[:, 0]
            captured.append((graph, scores))

        def run() -> list[torch.Tensor]:
            for graph, _ in captured:
                graph.replay()
            return [scores for _, scores in captured]

        return run

    def make_packed(self, ops: Ops) -> VarlenModel:
        return VarlenModel(self.open(), self.template, 0, ops)

    @torch.inference_mode()
    def tiles(self) -> dict[str, float]:
        """Milliseconds of attention in one batch and layer, by rows, columns, warps and stages; and torch's own."""
        kernels = import_module("crossknn.scorers.inference.triton_kernels")
        layout = self.batches()[0][3]
        heads = self.config.num_attention_heads
        dim = self.config.hidden_size // heads
        query, key, value = torch.randn(
            int(layout.lengths.sum()), 3, heads, dim, device="cuda", dtype=torch.bfloat16
        ).unbind(1)
        took = {"torch": _milliseconds(lambda: flash_attention(query, key, value, layout, layout))}
        chosen = kernels.TILES[dim]
        for tile in product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
            kernels.TILES[dim] = tile
            took[",".join(map(str, tile))] = _milliseconds(lambda: kernels.attention(query, key, value, layout, layout))
        kernels.TILES[dim] = chosen
        return dict(sorted(took.items(), key=lambda one: one[1]))

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Layout]]:
        return [self._join(rows) for rows in batches_in_order(self.lengths, self.options.batch_tokens)]

    def _join(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Layout]:
        lengths = self.lengths[rows]
        ids, types, positions = (
            torch.from_numpy(np.concatenate(parts)).long().cuda()
            for parts in (
                self.ids[rows],
                self.types[rows],
                [np.arange(length) for length in lengths],
            )
        )
        return ids, types, positions, Layout.of(lengths, "cuda")

    def _pad(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        width = int(self.lengths[rows].max())
        batch = {
            name: np.zeros((len(rows), width), np.int64) for name in ("input_ids", "token_type_ids", "attention_mask")
        }
        for at, row in enumerate(rows):
            length = self.lengths[row]
            batch["input_ids"][at, :length] = self.ids[row]
            batch["token_type_ids"][at, :length] = self.types[row]
            batch["attention_mask"][at, :length] = 1
        return {name: torch.from_numpy(array).cuda() for name, array in batch.items()}


def _milliseconds(run: Callable[[], object]) -> float:
    run()
    return round(1000 * min(device_seconds(run) for _ in range(5)), 4)


def print_kernels(run: Variant) -> None:
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=18, max_name_column_width=90))


if __name__ == "__main__":
    main()
