"""The engine that is used unless told otherwise: this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from crossknn.types import Job, Model, Result


class LocalEngine:
    """Does one job after the other, in their order, in this process."""

    def check(self, *models: Any) -> None:
        """Any model can be called here."""

    def run(
        self, function: Callable[..., Result], model: Model, jobs: Iterable[Job]
    ) -> Generator[tuple[int, Result], None, None]:
        """`function(model, *arguments)` of each job; the next one is taken when the result of the last was used."""
        for number, arguments in jobs:
            yield number, function(model, *arguments)


LOCAL: Final = LocalEngine()
