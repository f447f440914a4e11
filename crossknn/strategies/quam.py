"""QuAM: adaptive re-ranking whose frontier is ordered by affinity to the scored items, weighted by their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crossknn._checks import check_positive
from crossknn.strategies.base import Grid, Observations
from crossknn.strategies.gar import Gar
from crossknn.strategies.neighbor_graph import NeighborGraph
from crossknn.strategies.tour import softmax
from crossknn.types import EMPTY_PROPOSAL, Proposal
from crossknn.vectors.ranking import order_rows


@dataclass(frozen=True, repr=False)
class Quam(Gar):
    """QuAM (Rathee, MacAvaney and Anand, WSDM 2025, arXiv:2410.20286): `Gar` with another frontier.

    A neighbor d of scored items is ordered by its set affinity (section 3.3), `Σ_{s ∈ S} f(d, s) · R(s)`, where S are
    the `top` best-scored items and R is the softmax of their scores. The authors train a model for the affinity f; here
    it is the inner product of item vectors.

    Args:
        top: How many of the best-scored items the frontier is reached from, the paper's s.
    """

    by_default = False

    top: int = 30

    search_space: ClassVar[Grid] = {**Gar.search_space, "top": (30, 10)}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("top", self.top)

    def _frontiers(self, graph: NeighborGraph, observations: list[Observations], counts: list[int]) -> list[Proposal]:
        sources = [order_rows(observed.rows, observed.scores).first(self.top) for observed in observations]
        graph.search(int(row) for best, n in zip(sources, counts, strict=True) for row in (best.rows if n else ()))
        return [
            graph.set_affinity(best, softmax(best.estimates), observed.rows).first(n)
            if n and len(best)
            else EMPTY_PROPOSAL
            for best, observed, n in zip(sources, observations, counts, strict=True)
        ]
