"""Result files: written with what they come from, and checked against the source files of today."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from crossknn.evaluate.provenance import changed_sources, describe_run, script_command

RESULTS: Final = Path(__file__).parent / "results"


def write_result(path: Path, report: Mapping[str, Any], options: argparse.Namespace | None = None) -> None:
    """Write the report with its provenance as JSON; `options` are those of the script, for seed and device."""
    seed, device = getattr(options, "seed", None), getattr(options, "device", "cpu")
    provenance = describe_run(script_command(sys.argv[1:]), seed=seed, device=device)
    content = {**report, "provenance": provenance}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def provenance_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a result file says of its origin: all that `describe_run` gives, or what older files have of it."""
    header = result.get("header", {})
    data = header.get("data", {})
    known = {
        "command": header.get("command"),
        "hardware": result.get("hardware") or data.get("machine"),
        "versions": result.get("versions") or data.get("versions"),
        "seed": result.get("seed", data.get("seed")),
    }
    return {name: value for name, value in (known | result.get("provenance", {})).items() if value is not None}


def staleness(result: Mapping[str, Any]) -> list[str] | None:
    """The source files that changed since; None if the file does not say what it depends on."""
    sources = provenance_of(result).get("sources")
    return None if sources is None else changed_sources(sources)


def check_results() -> str:
    """One line for each result file: unchanged, the sources that changed since, or that it names none."""
    lines = []
    for path in sorted(RESULTS.glob("*.json")):
        changed = staleness(json.loads(path.read_text(encoding="utf-8")))
        if changed is None:
            state = "unknown: written before result files named their sources"
        else:
            state = f"changed since: {', '.join(changed)}" if changed else "current"
        lines.append(f"{path.name}: {state}")
    return "\n".join(lines)
