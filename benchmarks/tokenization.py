"""Texts tokenized per second of processor time: by words, beside the tokenizer itself.

    python -m benchmarks.tokenization --texts corpus.jsonl --out benchmarks/results/tokenization.json

The first half of the texts makes words known. Then the other half, which is new, and the first half again are tokenized
by both sides in turns; the tokens are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers

from benchmarks.result_files import write_result
from benchmarks.scoring_speed import read_texts
from crossknn.models.hub import EMBEDDED_CROSS_ENCODER
from crossknn.scorers.inference.token_store import fast_tokenize
from crossknn.scorers.inference.word_tokens import tokenize_by_words

Tokenize = Callable[[list[str]], list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="a .jsonl whose lines have a text")
    parser.add_argument("--tokenizer", default=EMBEDDED_CROSS_ENCODER, help="a folder or a hub name")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    texts = read_texts(options.texts)
    half = len(texts) // 2
    fast = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
    backend = tokenizers.Tokenizer.from_str(fast.backend_tokenizer.to_str())
    whole = fast_tokenize(backend)
    report: dict[str, Any] = {"texts": half}
    for name, chosen in {"new texts": texts[half:], "known words": texts[:half]}.items():
        seconds: dict[str, list[float]] = {"tokenizer": [], "by words": []}
        for _ in range(options.repeats):
            by_words = tokenize_by_words(backend, whole)
            by_words(texts[:half])
            expected = timed(whole, chosen, seconds["tokenizer"])
            found = timed(by_words, chosen, seconds["by words"])
            assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))
        medians = {side: statistics.median(runs) for side, runs in seconds.items()}
        report[name] = {"tokens": sum(map(len, expected))}
        report[name] |= {side: round(len(chosen) / wall) for side, wall in medians.items()}
        report[name]["ratio"] = round(medians["tokenizer"] / medians["by words"], 2)
    print(json.dumps(report, indent=1))
    if options.out:
        write_result(options.out, report, options)


def timed(tokenize: Tokenize, texts: list[str], seconds: list[float]) -> list[Any]:
    begin = time.process_time()
    tokens = tokenize(texts)
    seconds.append(time.process_time() - begin)
    return tokens


if __name__ == "__main__":
    main()
