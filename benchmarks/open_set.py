"""A retrieval set that any machine can make: what functions and classes of pinned Python packages say of themselves.

    python -m benchmarks.open_set .bench/open-set    # writes the set: seconds, no model, nothing downloaded
    make open-benchmark    # writes it, scores it exactly and compares strategies

Docstrings are read from the source files of numpy, scipy, scikit-learn, networkx, sympy and pandas as constraints.txt
pins them; nothing is imported. An item is a name and the first paragraph of its docstring. A query is the first
sentence of a docstring that is *not* an item and whose "See also" section names items: those are its relevant items, as
the authors of the docstring wrote them. What is held out, which split it is in and which items are kept follows from
SHA-256 digests of names, so that the same versions give the same set, whose digest is written into `set.json`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = {  # by the name of their folder
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "networkx": "networkx",
    "sympy": "sympy",
    "pandas": "pandas",
}
LEFT_OUT = {"tests", "testing", "test", "conftest", "externals", "_vendored", "_libs", "benchmarks", "setup"}
SPLITS = {"test": 300, "dev": 50, "train": 250}  # queries, drawn in this order
ITEMS, MAX_WORDS, MIN_WORDS = 3_000, 40, 4
SECTION = re.compile(r"^See Also\n[-=]+\n(.*?)(?=^\S[^\n]*\n[-=]{3,}$|\Z)", re.DOTALL | re.MULTILINE)
SENTENCE = re.compile(r"(?<=[^.][.!?])\s+(?=[A-Z`*])")


@dataclass(frozen=True)
class Documented:
    """A function or class with a docstring."""

    id: str  # the place of its definition, such as scipy.linalg._basic.solve
    docstring: str

    @property
    def name(self) -> str:
        return self.id.rsplit(".", 1)[1]

    @property
    def paragraph(self) -> str:
        return plain(self.docstring.strip().split("\n\n", 1)[0])

    @property
    def text(self) -> str:
        return " ".join(self.paragraph.split()[:MAX_WORDS])

    @property
    def query(self) -> str:
        return SENTENCE.split(self.paragraph, maxsplit=1)[0].rstrip(".")

    @property
    def related(self) -> list[str]:
        """The names in its "See also" section."""
        section = SECTION.search(self.docstring)
        lines = section[1].splitlines() if section else []
        heads = [re.split(r"\s:\s|\s:$", line)[0] for line in lines if line.strip() and not line[0].isspace()]
        names = [name.strip("` .~") for head in heads for name in re.sub(r":\w+:", "", head).split(",")]
        return [name for name in names if re.fullmatch(r"[\w.]+", name)]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.id.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the set is written, in BEIR layout")
    parser.add_argument("--items", type=int, default=ITEMS)
    options = parser.parse_args()
    facts = write_set(options.folder, [one for package in PACKAGES for one in read_package(package)], options.items)
    print(json.dumps(facts))


def read_package(package: str) -> Iterator[Documented]:
    """The public functions and classes of a package that have a docstring, in the order of its files."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f'{PACKAGES[package]} is not installed: pip install -c constraints.txt -e ".[dev]"')
    root = Path(found.origin).parent
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root.parent).with_suffix("").parts
        if LEFT_OUT.isdisjoint(module) and not module[-1].startswith("test_"):
            yield from read_module(".".join(module).removesuffix(".__init__"), path.read_text(encoding="utf-8"))


def read_module(module: str, source: str) -> Iterator[Documented]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            one = Documented(f"{module}.{node.name}", ast.get_docstring(node) or "")
            if len(one.text.split()) >= MIN_WORDS:
                yield one


def write_set(folder: Path, documented: Sequence[Documented], size: int = ITEMS) -> dict[str, Any]:
    """Write the set and `set.json`; returns what stands there: sizes, versions and a digest of all files."""
    ordered = distinct(sorted(documented, key=lambda one: (one.digest, one.docstring)))
    queries = choose_queries(ordered)
    held_out = {one.id for split in queries.values() for one in split}
    judged = {id_ for split in queries.values() for relevant in split.values() for id_ in relevant}
    others = [one for one in ordered if one.id not in held_out]
    kept = sorted(others, key=lambda one: one.id not in judged)[:size]
    if len(judged) > size:
        raise SystemExit(f"--items must be at least {len(judged):,}, the number of relevant items, got {size:,}.")
    files = {
        "corpus.jsonl": lines_of({"_id": one.id, "title": one.name, "text": one.text} for one in in_order(kept)),
        "queries.jsonl": lines_of(
            {"_id": one.id, "text": one.query} for split in queries.values() for one in in_order(split)
        ),
        **{f"qrels/{name}.tsv": judgments_of(split) for name, split in queries.items()},
    }
    facts = {
        "items": len(kept),
        "queries": {name: len(split) for name, split in queries.items()},
        "packages": {name: version(name) for name in PACKAGES.values()},
        "digest": hashlib.sha256("".join(files.values()).encode()).hexdigest()[:16],
    }
    for name, content in {**files, "set.json": json.dumps(facts, indent=1) + "\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return facts


def distinct(documented: Sequence[Documented]) -> list[Documented]:
    """Those whose id, text and first sentence no earlier one has: no query is the text of an item."""
    seen: set[str] = set()
    kept = []
    for one in documented:
        texts = {one.id, one.text.casefold(), one.query.casefold()}
        if seen.isdisjoint(texts):
            kept.append(one)
        seen |= texts
    return kept


def choose_queries(ordered: Sequence[Documented]) -> dict[str, dict[Documented, list[str]]]:
    """Queries by split, each with its relevant items.

    In the order of digests: one that nothing held out refers to, and that refers to something that is not held out.
    """
    places = places_by_name(ordered)
    splits: dict[str, dict[Documented, list[str]]] = {name: {} for name in SPLITS}
    held_out: set[str] = set()
    judged: set[str] = set()
    for one in ordered:
        name = next((name for name, size in SPLITS.items() if len(splits[name]) < size), None)
        relevant = [id_ for id_ in find_related(one, places) if id_ not in held_out]
        if name is not None and relevant and one.id not in judged:
            splits[name][one] = relevant
            held_out.add(one.id)
            judged |= set(relevant)
    return splits


def places_by_name(documented: Sequence[Documented]) -> Mapping[tuple[str, str], list[str]]:
    """Ids by package and last part of the name."""
    places = defaultdict(list)
    for one in documented:
        package, *_, last = one.id.split(".")
        places[package, last].append(one.id)
    return places


def find_related(one: Documented, places: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """The ids that "See also" names without doubt: the only ones of that name in the package, or in the module."""
    package, module = one.id.split(".", 1)[0], one.id.rsplit(".", 1)[0]
    found = []
    for name in one.related:
        known = places.get((package, name.rsplit(".", 1)[-1]), [])
        near = [id_ for id_ in known if id_.rsplit(".", 1)[0] == module]
        found += near or (known if len(known) == 1 else [])
    return sorted(set(found) - {one.id})


def plain(text: str) -> str:
    """Running text without markup of reStructuredText."""
    text = re.sub(r":[\w:]+:`~?([^`<]*?)(?:\s*<[^`]*>)?`", r"\1", text)
    return " ".join(re.sub(r"[`*]{1,2}", "", text).split())


def in_order(documented: Any) -> list[Documented]:
    return sorted(documented, key=lambda one: one.id)


def lines_of(records: Iterator[dict[str, str]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def judgments_of(split: Mapping[Documented, Sequence[str]]) -> str:
    lines = [f"{one.id}\t{id_}\t1" for one in in_order(split) for id_ in split[one]]
    return "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"


if __name__ == "__main__":
    main()
