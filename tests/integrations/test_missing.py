"""Without its library an integration names the extra to install."""

import subprocess
import sys

CODE = """
import importlib, sys
import crossknn as ck

for module, library in [line.split() for line in sys.argv[1:]]:
    sys.modules[library] = None  # importing it raises ImportError
    try:
        importlib.import_module(f"crossknn.integrations.{module}")
    except ck.errors.MissingExtra as error:
        print(error)
"""


def test_a_missing_library_is_named_with_its_extra():
    expected = [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index.core", "llama-index"),
        ("haystack", "haystack", "haystack"),
        ("pyterrier", "pyterrier", "pyterrier"),
        ("mteb", "mteb", "mteb"),
    ]
    arguments = [f"{module} {library}" for module, library, _ in expected]
    output = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True).stdout
    assert len(output.splitlines()) == len(expected)
    for line, (_, library, extra) in zip(output.splitlines(), expected, strict=True):
        assert line.startswith(library)
        assert line.endswith(f"pip install 'crossknn[{extra}]'")
