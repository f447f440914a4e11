"""How long things take to start, each in a fresh process, beside plain Python and `import sentence_transformers`.

    python -m benchmarks.startup --items 1000000

All take turns, once to warm up and then `--times` times; medians are reported, on the clock and of processor time,
which says what the clock cannot on a busy machine. The index is made for it, of made texts and vectors.

A search, with the models that come with the package, is one of 5,000 senses of WordNet, beside a script that does with
sentence-transformers what one does with it: encode the query, take the 100 nearest vectors, and rerank these items.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.big_index import DIM, build_index, read_items
from benchmarks.result_files import write_result
from crossknn import CrossEncoder, Index, SentenceEncoder
from crossknn.example.wordnet import senses
from crossknn.models.hub import EMBEDDED_CROSS_ENCODER

OUT = Path(__file__).parent / "results" / "startup.json"
PLAIN, THEIRS = "python -c pass", "import sentence_transformers"
SENSES, QUERY = 5_000, "a small dog"
MODELS = ("--scorer", "embedded", "--encoder", "embedded", "--device", "cpu")
THEIR_SEARCH = """
import json, sys
import numpy as np
from sentence_transformers import CrossEncoder, SentenceTransformer
folder, encoder, scorer, query = sys.argv[1:]
texts, vectors = json.load(open(f"{folder}/texts.json")), np.load(f"{folder}/vectors.npy")
asked = SentenceTransformer(encoder, device="cpu").encode([query], normalize_embeddings=True)[0]
best = np.argsort(-(vectors.astype(np.float32) @ asked))[:100]
model = CrossEncoder(scorer, device="cpu", model_kwargs={"dtype": "float32"})
scores = model.predict([(query, texts[row]) for row in best])
for row in best[np.argsort(-scores)][:10]:
    print(texts[row])
"""


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"items": options.items, "dim": DIM, "times": options.times}
    with TemporaryDirectory(dir=options.work) as work:
        folder = Path(work) / "items.ck"
        build_index(read_items(None, options.items), folder, prior=False)
        report["bytes"] = sum(path.stat().st_size for path in folder.iterdir())
        started = commands(folder, options.items // 2) | searches(Path(work))
        report["starts"] = measure({**started, THEIRS: ["-c", THEIRS]}, options.times)
    write_result(options.out, report, options)
    print(json.dumps(report, indent=1))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="of the index")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where a folder for the index is made")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def commands(folder: Path, row: int) -> dict[str, list[str]]:
    """Arguments of Python, by what is measured; `row` is some item's, and its id, too."""
    load = f"import crossknn; items = crossknn.Index.load({str(folder)!r}).items; "
    return {
        PLAIN: ["-c", "pass"],
        "import crossknn": ["-c", "import crossknn"],
        "crossknn --help": ["-m", "crossknn", "--help"],
        "crossknn info": ["-m", "crossknn", "info", str(folder)],
        "open an index": ["-c", load],
        "open it, read an item by its row": ["-c", f"{load} items.ids[{row}], items.texts[{row}]"],
        "open it, find an item by its id": ["-c", f"{load} items.rows_of(['{row}'])"],
        "open and verify it": ["-c", f"import crossknn; crossknn.Index.load({str(folder)!r}, verify=True)"],
    }


def searches(work: Path) -> dict[str, list[str]]:
    """Likewise, of whole searches of the same items with the same models; their data are put into this folder."""
    items, scorer, encoder = senses(SENSES), CrossEncoder("embedded", device="cpu"), SentenceEncoder("embedded")
    folder = work / "senses.ck"
    index = Index.build(items, scorer=scorer, encoder=encoder, factors=None, calibrate=False)
    index.save(folder)
    (work / "texts.json").write_text(json.dumps(list(items.texts)))
    np.save(work / "vectors.npy", index.vectors)
    theirs = [str(work), str(encoder.folder), str(EMBEDDED_CROSS_ENCODER), QUERY]
    return {
        "crossknn search": ["-m", "crossknn", "search", str(folder), QUERY, *MODELS],
        "the same by sentence-transformers": ["-c", THEIR_SEARCH, *theirs],
    }


def measure(sides: dict[str, list[str]], times: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each, and what share of sentence-transformers' processor time that is."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(times + 1):
        for name, arguments in sides.items():
            seconds = start(arguments)
            took[name] += [seconds] if turn else []
    wall = {name: 1000 * median(one for one, _ in runs) for name, runs in took.items()}
    processor = {name: 1000 * median(other for _, other in runs) for name, runs in took.items()}
    return {
        name: {
            "ms": round(wall[name], 1),
            "processor_ms": round(processor[name], 1),
            "processor_ms_above_plain": round(processor[name] - processor[PLAIN], 1),
            "share": round(processor[name] / processor[THEIRS], 4),
        }
        for name in sides
    }


def start(arguments: list[str]) -> tuple[float, float]:
    """Seconds on the clock and of the processor, of a process from its start to its end."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=usual)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return ended - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
