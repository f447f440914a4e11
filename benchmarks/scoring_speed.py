"""Pairs scored per second from raw text: crossknn.CrossEncoder beside sentence-transformers' CrossEncoder.predict.

Both sides score the same pairs in one run, raw logits, in turns; medians are reported and the scores compared.
On a machine that does other work too, give --threads 1 (threads that wait for each other blur the clock) and trust
the ratios of processor time.
sentence-transformers runs with the best of several batch sizes, found first. Ours runs twice: tokenising every
text anew, as in a first pass, and with the texts' tokens already stored, as in every later round of a search; on a CPU
in int8, too (what that costs is in int8_recall.py).

    python -m benchmarks.scoring_speed --model <folder> --texts <BEIR folder or .jsonl> --pairs 128 --device cpu
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers

from benchmarks.matrix_rate import matrix_rate, matrix_work
from benchmarks.result_files import write_result
from crossknn.scorers.cross_encoder import CrossEncoder

Side = Callable[[], np.ndarray]


def main() -> None:
    options = read_options()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    torch.set_num_threads(options.threads or torch.get_num_threads())
    queries, items = draw_pairs(options)
    dtype = options.dtype if options.dtype != "auto" else ("bfloat16" if options.device == "cuda" else "float32")
    theirs = {name: open_theirs(options, name) for name in dict.fromkeys((dtype, "float32"))}
    trial = slice(0, max(32, len(queries) // options.trial_share))
    chosen = {name: best_batch_size(model, queries[trial], items[trial], options) for name, model in theirs.items()}
    ours = {name: open_ours(options, name) for name in (dtype, *(("int8",) if options.device == "cpu" else ()))}
    sides: dict[str, Side] = {
        f"sentence-transformers {name}": theirs_side(model, queries, items, chosen[name]["best"])
        for name, model in theirs.items()
    }
    for name, (forgetful, storing) in ours.items():
        sides[f"crossknn {name}, first pass"] = partial(forgetful.score, queries, items)
        sides[f"crossknn {name}, tokens stored"] = partial(storing.score, queries, items)
    load = [round(os.getloadavg()[0], 1)]
    timings, scores = measure(sides, options.repeats)
    load.append(round(os.getloadavg()[0], 1))
    report = summarise(timings, scores, ours[dtype][1], dtype, len(queries))
    batch_tokens = {name: storing.batch_tokens for name, (_, storing) in ours.items()}
    report |= {"batch_sizes_tried": chosen, "batch_tokens": batch_tokens, "seed": options.seed}
    if options.device.startswith("cuda"):
        report["floor"] = floor(options, ours[dtype][1], dtype, queries, items, report["sides"])
    if options.sweep:
        report["pairs_per_s_by_batch_tokens"] = sweep(options, dtype, queries, items)
    report["load_before_and_after"] = load  # above the number of threads: other programs ran beside this one
    report |= {"texts": options.texts.stem, "model": options.model.name}
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a sequence-classification model")
    parser.add_argument("--texts", type=Path, required=True, help="BEIR folder, or a .jsonl whose lines have a text")
    parser.add_argument("--pairs", type=int, default=96)
    parser.add_argument("--items-per-query", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--batch-sizes", default="4,8,16,32,64", help="tried for sentence-transformers")
    parser.add_argument("--batch-tokens", type=int, default=None, help="for crossknn; its own choice if not given")
    parser.add_argument("--sweep", default="", help="also time crossknn with these batch_tokens, separated by commas")
    parser.add_argument("--trial-share", type=int, default=2, help="batch sizes are tried on one n-th of the pairs")
    parser.add_argument("--threads", type=int, default=None, help="of torch; one is the fairest on a busy machine")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="where to write the result as JSON")
    return parser.parse_args()


def draw_pairs(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Real texts as they are, so of mixed lengths: each query with items drawn at random."""
    rng = random.Random(options.seed)
    corpus = read_texts(options.texts / "corpus.jsonl" if options.texts.is_dir() else options.texts)
    asked = read_texts(options.texts / "queries.jsonl") if options.texts.is_dir() else None
    if asked is None:
        asked = [" ".join(text.split()[:12]) for text in corpus]
    queries, items = [], []
    while len(queries) < options.pairs:
        count = min(options.items_per_query, options.pairs - len(queries))
        queries += [rng.choice(asked)] * count
        items += rng.choices(corpus, k=count)
    return queries, items


def read_texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [f"{record.get('title') or ''} {record['text']}".strip() for record in records]


def open_theirs(options: argparse.Namespace, dtype: str) -> Any:
    return sentence_transformers.CrossEncoder(
        str(options.model), device=options.device, model_kwargs={"dtype": getattr(torch, dtype)}
    )


def open_ours(options: argparse.Namespace, dtype: str) -> tuple[CrossEncoder, CrossEncoder]:
    """One that forgets every text's tokens at once, and one that stores them."""
    given = {"device": options.device, "dtype": dtype, "batch_tokens": options.batch_tokens}
    return CrossEncoder(options.model, stored_tokens=1, **given), CrossEncoder(options.model, **given)


def theirs_side(model: Any, queries: list[str], items: list[str], batch_size: int) -> Side:
    pairs = list(zip(queries, items, strict=True))
    raw = torch.nn.Identity()
    return lambda: model.predict(pairs, batch_size=batch_size, activation_fn=raw, show_progress_bar=False)


def best_batch_size(model: Any, queries: list[str], items: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Wall seconds per batch size, the better of two tries each."""
    seconds = {}
    for size in [int(size) for size in options.batch_sizes.split(",")]:
        side = theirs_side(model, queries, items, size)
        seconds[size] = round(min(timed(side)[0] for _ in range(2)), 4)
    return {"best": min(seconds, key=seconds.__getitem__), "pairs": len(queries), "wall_s": seconds}


def sweep(options: argparse.Namespace, dtype: str, queries: list[str], items: list[str]) -> dict[int, float]:
    """Pairs per second of crossknn, tokens stored, the better of two tries for each size of batch."""
    speeds = {}
    for size in [int(size) for size in options.sweep.split(",")]:
        scorer = CrossEncoder(options.model, device=options.device, dtype=dtype, batch_tokens=size)
        scorer.score(queries, items)
        seconds = min(timed(lambda scorer=scorer: scorer.score(queries, items))[0] for _ in range(2))
        speeds[size] = round(len(queries) / seconds, 1)
    return speeds


def timed(side: Side) -> tuple[float, float, np.ndarray]:
    """(wall seconds, processor seconds, scores); processor time says what wall time cannot on a busy machine."""
    wall, processor = time.perf_counter(), time.process_time()
    scores = np.asarray(side(), np.float32)
    return time.perf_counter() - wall, time.process_time() - processor, scores


def measure(sides: dict[str, Side], repeats: int) -> tuple[dict[str, list[tuple[float, float]]], dict[str, np.ndarray]]:
    """Every side once to warm up (this also fills the token store), then all in turns."""
    scores = {name: side() for name, side in sides.items()}
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for repeat in range(repeats):
        names = list(sides)
        for name in names if repeat % 2 == 0 else names[::-1]:
            wall, processor, _ = timed(sides[name])
            timings[name].append((wall, processor))
    return timings, scores


def summarise(
    timings: dict[str, list[tuple[float, float]]],
    scores: dict[str, np.ndarray],
    scorer: CrossEncoder,
    dtype: str,
    pairs: int,
) -> dict[str, Any]:
    base, reference = f"sentence-transformers {dtype}", f"crossknn {dtype}, tokens stored"
    wall = {name: [wall for wall, _ in runs] for name, runs in timings.items()}
    medians = {name: statistics.median(runs) for name, runs in wall.items()}
    processor = {name: statistics.median(cpu for _, cpu in runs) for name, runs in timings.items()}
    ours = [name for name in timings if name.startswith("crossknn")]
    return {
        "pairs": pairs,
        "tokens_per_pair": round(scorer.counts.tokens / scorer.counts.passes, 1),
        "padding_share": round(scorer.counts.padding / (scorer.counts.padding + scorer.counts.tokens), 4),
        "pairs_cut": scorer.counts.items_cut * pairs // scorer.counts.passes,
        "sides": {
            name: {
                "pairs_per_s": round(pairs / medians[name], 2),
                "median_wall_s": round(medians[name], 4),
                "wall_s": [round(run, 4) for run in runs],
                "median_processor_s": round(processor[name], 4),
                "max_abs_difference_from_ours": float(np.abs(scores[name] - scores[reference]).max()),
            }
            for name, runs in wall.items()
        },
        "wall_ratio_to_sentence_transformers": {
            name: {other: round(medians[other] / medians[name], 3) for other in timings if other not in ours}
            for name in ours
        },
        "median_of_ratios_within_a_round": {
            name: round(statistics.median(np.divide(wall[base], wall[name])), 3) for name in ours
        },
        "processor_ratio_to_sentence_transformers": {
            name: round(processor[base] / processor[name], 3) for name in ours
        },
    }


def floor(
    options: argparse.Namespace, scorer: CrossEncoder, dtype: str, queries: list[str], items: list[str], sides: Any
) -> dict[str, Any]:
    """How fast it were if the model's matrix products were all there is, and the share of that each side reaches."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    encoded = tokenizer(queries, items, truncation=True, max_length=scorer.truncation.max_length)["input_ids"]
    work = matrix_work(transformers.AutoConfig.from_pretrained(options.model), map(len, encoded))
    rate = matrix_rate(options.device, getattr(torch, dtype))
    pairs_per_s = len(queries) / (work / rate)
    shares = {name: round(side["pairs_per_s"] / pairs_per_s, 3) for name, side in sides.items()}
    return {"matrix_tflops": round(rate / 1e12), "pairs_per_s": round(pairs_per_s), "share_reached": shares}


if __name__ == "__main__":
    main()
