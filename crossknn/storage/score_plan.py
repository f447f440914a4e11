"""Plans: the chunks that a build reuses, fixed before its first call, so that a rerun makes the same calls."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.storage.atomic import digest, disk_errors, write_atomic
from crossknn.storage.score_chunks import CANNOT_USE, FORMAT, KEPT

PLAN_NAME = re.compile(r"plan-([0-9a-f]{16})-([0-9]{3,})\.json")  # hash of the pairs, generation
DELETE_PLAN = "Delete this file: finished chunks are reused, and a new plan is made."


@dataclass(frozen=True, slots=True)
class Plan:
    """Which chunks of earlier plans a build reuses; together with its pairs, this fixes the pairs of each call.

    Each generation has one plan, that of the first worker. The next generation begins only when a chunk that the plan
    reuses was deleted, since then other pairs remain to be scored.

    Attributes:
        pairs: Hash of the pairs, the scorer and the number of pairs per call.
        generation: Counts from 0.
        reused: Names of chunk files.
    """

    pairs: str
    generation: int
    reused: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first part of the names of its chunks."""
        return digest(json.dumps([self.pairs, self.generation, self.reused]).encode())

    @property
    def file_name(self) -> str:
        return f"plan-{self.pairs}-{self.generation:03}.json"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in this file, verified by its digest."""
        content = read_json(path, DELETE_PLAN)
        try:
            plan = cls(content["wanted"], content["generation"], tuple(content["reused"]))
            intact = plan.name == content["plan"] and plan.file_name == path.name
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged ({error!r}). {DELETE_PLAN}") from error
        if not intact:
            raise InputError(f"{path}: damaged: its content does not match its digest or its name. {DELETE_PLAN}")
        return plan

    def write(self, folder: Path) -> Plan:
        """The plan in force from now on: this one, or that of another worker who was first."""
        content = {
            "format": FORMAT,
            "plan": self.name,
            "wanted": self.pairs,
            "generation": self.generation,
            "reused": self.reused,
        }
        write_json(folder / self.file_name, content)
        return Plan.read(folder / self.file_name)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of the log, unless another worker has written it."""
    with disk_errors(path.parent, CANNOT_USE, KEPT):
        write_atomic(path, json.dumps(content, indent=1).encode(), first_wins=True)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """The object in a file of the log; an error, with this advice, if it is damaged or of a newer format."""
    with disk_errors(path, CANNOT_USE):
        data = path.read_bytes()
    try:
        content = json.loads(data)
    except ValueError as error:
        raise InputError(f"{path}: damaged: not JSON ({error}). {advice}") from error
    number = content.get("format") if isinstance(content, dict) else None
    if not isinstance(number, int):
        raise InputError(f"{path}: damaged: an object with a format number is expected. {advice}")
    if number > FORMAT:
        raise InputError(
            f"{path}: written by a newer crossknn (format {number}, this one reads {FORMAT}). "
            "Upgrade crossknn, or give another folder."
        )
    return dict(content)
