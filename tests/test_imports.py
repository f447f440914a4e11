"""Importing is fast and light, and modules depend on each other in one direction only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import crossknn

PACKAGE = Path(crossknn.__file__).parent
HEAVY = [
    "torch",
    "transformers",
    "sentence_transformers",
    "sklearn",
    "bm25s",
    "pyarrow",
    "scipy",
    "rich",
    "typer",
    "matplotlib",
    "ir_measures",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "pandas",
    "langchain_core",
    "llama_index",
    "haystack",
    "pyterrier",
    "mteb",
    "ray",
    "faiss",
    "psycopg",
    "mcp",
    "opentelemetry",
    "pgvector",
    "qdrant_client",
    "qdrant_edge",
    "lancedb",
]

# A folder may import from itself and from the folders above it in this list; those of one line do not know each other.
LAYERS = [
    {"errors"},
    {"_imports", "_progress", "_threads", "types"},
    {"_checks"},
    {"storage"},
    {"engines", "items", "models"},
    {"scorers", "vectors"},
    {"encoders"},
    {"retrievers"},
    {"stores"},
    {"strategies"},
    {"testing"},
    {"indexing"},
    {"search"},
    {"matching"},
    {"evaluate", "serve"},
    {"integrations"},
    {"example"},
    {"cli"},
    {"__main__"},
]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_imports_nothing_heavy():
    loaded = run(f"import sys, crossknn; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]"


def test_the_command_line_starts_without_models():
    light = ["numpy", *(m for m in HEAVY if m not in ("rich", "typer"))]
    assert run(f"import sys, crossknn.cli; print([m for m in {light} if m in sys.modules])") == "[]"


def test_strategies_and_searcher_can_be_named_without_models():
    code = "import sys, crossknn as ck; ck.Searcher, ck.Axn(), ck.Bm25(), ck.CrossEncoder, ck.Items(['a']).ids_of([0])"
    heavy = ["torch", "transformers", "sentence_transformers", "sklearn", "pandas"]
    assert run(f"{code}; print([m for m in {heavy} if m in sys.modules])") == "[]"


def imported_parts(path: Path) -> set[str]:
    """Top-level parts of the package that a module imports at run time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("crossknn.")} - {"__version__"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_dependencies_point_one_way(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    layer = next(number for number, parts in enumerate(LAYERS) if part in parts)
    assert imported_parts(path) <= set().union(*LAYERS[:layer]) | {part}
