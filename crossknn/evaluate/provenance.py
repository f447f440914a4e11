"""Where a result comes from: command, commit, hardware, versions, seed, and digests of the source files that ran."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]  # of the checkout, if there is one
FOLDERS: Final = ("crossknn", "benchmarks")
NO_EFFECT: Final = (  # on numbers
    *("crossknn/cli/", "crossknn/evaluate/report/", "crossknn/integrations/", "crossknn/__main__.py"),
    *("crossknn/_imports.py", "crossknn/_progress.py", "crossknn/errors.py", "crossknn/types.py"),
    *("crossknn/evaluate/provenance.py", "benchmarks/result_files.py", "benchmarks/kept_parts.py"),
    "benchmarks/__init__.py",
)
PACKAGES: Final = {  # whose versions are recorded if they are imported, by the name of the module
    **{name: name for name in ("crossknn", "numpy", "scipy", "torch", "transformers", "tokenizers", "triton")},
    **{name: name for name in ("bm25s", "pyarrow", "ray", "lancedb", "openvino", "nncf", "ir_measures")},
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
    "faiss": "faiss-cpu",
}
DIGEST_LENGTH: Final = 12


def describe_run(command: str, *, seed: int | None = None, device: str | None = None) -> dict[str, Any]:
    """What is needed to judge and repeat a run, without dates and without paths of this machine.

    Call it at the end: versions and sources are those of the modules that have been imported. The commit is left out
    where crossknn does not run from a checkout.

    Args:
        device: Of the models; by default the GPU if there is one.
    """
    return {
        "command": portable(command),
        **describe_commit(),
        "hardware": describe_hardware(device),
        "versions": describe_versions(),
        **({} if seed is None else {"seed": seed}),
        "sources": dict(sorted(digest_sources())),
    }


def portable(command: str) -> str:
    """The command with absolute paths as relative ones, or outside the current folder as names alone."""
    return shlex.join(map(_portable_argument, shlex.split(command)))


def script_command(arguments: Sequence[str]) -> str:
    """The command of the running `python -m` script."""
    spec = sys.modules["__main__"].__spec__
    name = "python" if spec is None else spec.name.removesuffix(".__main__")
    return shlex.join(["python", "-m", name, *arguments])


def describe_commit(root: Path = ROOT) -> dict[str, str | bool]:
    """The commit of the checkout, and whether files other than results differ from it; empty outside a checkout."""
    if _git(root, "ls-files", "--error-unmatch", "crossknn/__init__.py") is None:
        return {}
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results")
    return {} if commit is None or changes is None else {"commit": commit, "uncommitted changes": bool(changes)}


def describe_hardware(device: str | None = None) -> str:
    """The GPU, if the device is one, the number of cores and the processor."""
    cores = f"{os.cpu_count()} cores, {_processor_name()}"
    torch = sys.modules.get("torch")
    if torch is None:
        return cores
    on_gpu = torch.cuda.is_available() and (device is None or device.startswith("cuda"))
    threads = f"{torch.get_num_threads()} of {cores}"
    return f"{torch.cuda.get_device_name()}; {threads}" if on_gpu else threads


def describe_versions() -> dict[str, str]:
    """Python's version and those of the imported packages that matter for results."""
    found = {"python": platform.python_version()}
    for module, package in PACKAGES.items():
        if module in sys.modules:
            own = getattr(sys.modules[module], "__version__", None)
            with suppress(metadata.PackageNotFoundError):
                found[package] = str(own or metadata.version(package))
    return found


def digest_sources() -> Iterator[tuple[str, str]]:
    """The imported source files that results depend on, by their path in the repository, with digests."""
    for module in [*sys.modules.values()]:
        path = getattr(module, "__file__", None)
        if path and path.endswith(".py") and Path(path).is_relative_to(ROOT):
            name = Path(path).relative_to(ROOT).as_posix()
            known = digest(Path(path))
            if known and name.split("/")[0] in FOLDERS and not name.startswith(NO_EFFECT):
                yield name, known


def changed_sources(sources: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """The files with an effect on numbers that are no longer as their digests say, or no longer there."""
    named = {name: known for name, known in sources.items() if not name.startswith(NO_EFFECT)}
    return [name for name, known in named.items() if digest(root / name) != known]


def digest(path: Path) -> str | None:
    """A digest of a text file, whatever its line ends; None if there is no such file."""
    if not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:DIGEST_LENGTH]


def _portable_argument(argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    path = Path(value).expanduser()
    if not path.is_absolute():
        return argument
    here = Path.cwd()
    shown = path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name
    return f"{option}{equals}{shown}"


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git in a folder; None if there is no git, or it fails."""
    program = which("git")
    if program is None:
        return None
    command = [program, "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed arguments)
    return None if done.returncode else done.stdout.strip()


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
