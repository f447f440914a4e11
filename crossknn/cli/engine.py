"""The options of commands that can let a cluster do their work, and the engine that they name."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.types import Engine


class EngineName(StrEnum):
    local = "local"
    ray = "ray"


EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="Where models run: in this process, or on workers of a Ray cluster.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="ray: the cluster, of which this machine is part. Default: one that was started here, else a new one.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="ray: how many. Default: one for each GPU, without GPUs for each CPU."),
]


def make_engine(
    name: EngineName, *, address: str | None, workers: int | None, scorer: str, device: str | None
) -> Engine:
    """The engine that the options name, if the others go with it."""
    from crossknn.engines.local import LOCAL
    from crossknn.engines.ray import RayEngine
    from crossknn.scorers.remote.scorer import is_url

    if name is EngineName.local:
        for option, value in (("--address", address), ("--workers", workers)):
            if value is not None:
                raise InputError(f"{option} goes with --engine ray only. Got {value!r} without.")
        return LOCAL
    if is_url(scorer):
        raise InputError(
            "--engine ray is for models that run here: a server has its own machines. Leave one of them out."
        )
    if device is not None and ":" in device:
        raise InputError(f"--engine ray gives each worker its GPU: say --device cuda. Got {device!r} instead.")
    return RayEngine(address=address, workers=workers)
