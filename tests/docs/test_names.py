"""Every symbol and file that README, CONTRIBUTING, CHANGELOG, docs and benchmark pages name exists."""

import ast
import functools
import importlib
import re

import pytest

import crossknn
from crossknn.cli.config import FILE_NAME
from tests.paths import ROOT

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
    ]
)
FOLDERS = ("crossknn", "tests", "docs", "benchmarks", "tools", "examples", ".github", ".ci")
FILE = re.compile(rf"^(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*$")
MODULE = re.compile(r"^[\w/]+\.py$")  # of the package, or with its folder
DOTTED = re.compile(r"^(?:crossknn|ck)(\.\w+)+")
CLASS = re.compile(r"^([A-Z][a-z0-9]+[A-Za-z0-9]*)(?:\.(\w+))?(?:\(.*)?$")
# Names of other libraries, formats and the paper.
FOREIGN = {
    *("Accept", "Authorization", "Host", "Origin", "Retry"),  # HTTP headers
    *("False", "None", "StopIteration", "True"),
    *(
        "AutoModelForSequenceClassification",
        "Document",
        "EdgeShard",
        "EvaluateRetrieval",
        "MetadataMode",
        "QueryBundle",
        "TfidfVectorizer",
    ),
}


def code_spans(text):
    """The inline code of a page, without its fenced blocks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


@functools.cache
def class_members():
    """By the name of every class and function of the package, of benchmarks and tools, the names of its members."""
    members = {}
    for path in [p for folder in ("crossknn", "benchmarks", "tools", "tests") for p in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                members.setdefault(node.name, set()).update(_names_in(node))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                members.update({t.id: set() for t in targets if isinstance(t, ast.Name) and t.id not in members})
    return members


def _names_in(node):
    names = {
        child.name for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id in ("self", "cls"):
            names.add(child.attr)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            names.add(child.target.id)
    return names


def exists(dotted):
    """Whether a dotted path such as `crossknn.vectors.ExactSearch.search` leads to something."""
    _, *names = dotted.split(".")
    thing, path = crossknn, "crossknn"
    for name in names:
        path += f".{name}"
        try:
            thing = getattr(thing, name)
        except AttributeError:
            try:
                thing = importlib.import_module(path)
            except ImportError:
                return name in getattr(thing, "__dataclass_fields__", {}) or name in getattr(
                    thing, "__annotations__", {}
                )
    return True


def unknown_names(text):
    unknown = []
    for span in code_spans(text):
        if FILE.match(span):
            known = any(True for _ in ROOT.glob(span.rstrip("/")))
        elif MODULE.match(span):
            known = any((folder / span).is_file() for folder in (ROOT, ROOT / "crossknn"))
        elif span == FILE_NAME:
            continue
        elif match := DOTTED.match(span):
            known = exists(match[0])
        elif match := CLASS.match(span):
            members = class_members().get(match[1])
            known = match[1] in FOREIGN or (members is not None and (match[2] is None or inherits(match[1], match[2])))
        else:
            continue
        if not known:
            unknown.append(span)
    return unknown


def inherits(name, member):
    """Whether a class has a member, its own or a base's: of public classes by asking it, else by its source."""
    public = getattr(crossknn, name, None) if name in crossknn.__all__ else None
    return (public is not None and hasattr(public, member)) or member in class_members()[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_symbol_and_file_exists(page):
    assert unknown_names(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "span",
    [
        "`crossknn/ranking.py`",
        "`strategies/quests.py`",
        "`crossknn.vectors.Wider`",
        "`Quests`",
        "`Searcher.serach`",
        "`ck.Spaces(…)`",
    ],
)
def test_what_does_not_exist_is_found(span):
    assert unknown_names(f"see {span} there") == [span.strip("`")]
