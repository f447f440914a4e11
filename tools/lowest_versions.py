"""Constraints that pin every dependency to the lowest version that pyproject.toml allows.

python tools/lowest_versions.py > lowest.txt && pip install -c lowest.txt -e ".[models]"
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def main() -> None:
    print("\n".join(lowest_versions(PROJECT.read_text(encoding="utf-8"))))


def lowest_versions(project: str) -> list[str]:
    """One `name==version` per dependency that has a lower bound, of the project and of all its extras."""
    table = tomllib.loads(project)["project"]
    extras = [requirement for extra in table["optional-dependencies"].values() for requirement in extra]
    found = [REQUIREMENT.match(requirement) for requirement in [*table["dependencies"], *extras]]
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})


if __name__ == "__main__":
    main()
