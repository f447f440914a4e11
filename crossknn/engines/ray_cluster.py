"""Connecting to a Ray cluster, and how many workers its nodes have room for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from crossknn._imports import import_extra
from crossknn.errors import InputError

FOUND_BY_RAY: Final = ("auto", "local")  # addresses that name no machine
_joined: dict[str | None, str] = {}  # clusters that this process was connected to here: as given, and as Ray says it


def connect(address: str | None, *, timeout: float) -> Any:
    """The module `ray`, connected: as it was already, or now."""
    ray = import_extra("ray", extra="ray")
    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", connected) and _joined.get(address) != connected:
            raise InputError(
                f"this process is connected to the Ray cluster at {connected} already. Got address {address!r}: "
                "leave it out, or call ray.shutdown() first."
            )
        return ray
    place = address or os.environ.get("RAY_ADDRESS")
    if place is not None and place not in FOUND_BY_RAY:
        _check_reachable(place, timeout)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here
    try:
        ray.init(address=place, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise InputError(f"no Ray cluster could be reached or started ({first_line(error)}). {START_ONE}") from error
    _joined[address] = ray.get_runtime_context().gcs_address
    return ray


START_ONE: Final = (
    "Start one with `ray start --head` and give its address, or leave the address out to use this machine alone."
)


def _check_reachable(address: str, timeout: float) -> None:
    """An error unless a cluster answers soon: left to itself, Ray tries for minutes."""
    if "://" in address:
        raise InputError(
            f"address must be HOST:PORT of a cluster that this machine is part of. Got {address!r} instead. "
            "Run `ray start --address HOST:PORT` here first, or run the build on a machine of the cluster."
        )
    question = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(question, capture_output=True, text=True, timeout=timeout, check=False)  # noqa: S603
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] if done.returncode else None
    except subprocess.TimeoutExpired:
        said = [f"no answer within {timeout:g} seconds"]
    if said is not None:
        raise InputError(f"no Ray cluster could be reached at {address} ({''.join(said)}). {START_ONE}")


def first_line(error: Exception) -> str:
    """What an error says, without the lines that explain it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class Room:
    """What one worker takes of its node, and how many such workers the cluster's nodes have room for."""

    cpus: float
    gpus: float
    workers: int


def find_resources(ray: Any, *, cpus: float, gpus: float | None) -> Room:
    """One worker for each GPU, or where there are none (or none are wanted) for each CPU; an error without any room."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if gpus is None:
        gpus = 1.0 if any(node.get("GPU", 0) >= 1 for node in nodes) else 0.0
    workers = sum(_count_fitting(node, cpus, gpus) for node in nodes)
    if not workers:
        has = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise InputError(
            f"no node of the Ray cluster has the {cpus:g} CPUs and {gpus:g} GPUs of a worker. Its nodes have {has}. "
            "Ask for less with cpus_per_worker and gpus_per_worker, or start larger nodes."
        )
    return Room(cpus, gpus, workers)


def _count_fitting(node: Mapping[str, float], cpus: float, gpus: float) -> int:
    free_cpus, free_gpus = node.get("CPU", 0.0), node.get("GPU", 0.0)
    if free_cpus < cpus or free_gpus < gpus:
        return 0
    if gpus:
        return int(min(free_gpus / gpus, free_cpus / cpus))
    return max(1, int(free_cpus / max(1.0, cpus)))
