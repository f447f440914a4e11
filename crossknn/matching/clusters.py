"""Clusters of matching records: connected components, and correlation clustering by random pivots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from crossknn.types import Rows

PIVOT_ORDERS: Final = 16  # random orders of which the clustering with the fewest disagreements is taken

Edges = Sequence[tuple[int, int]]


def connected_components(nodes: int, edges: Edges) -> list[list[int]]:
    """The nodes that a chain of edges connects, by union–find; the earliest node first, singletons included."""
    parents = list(range(nodes))

    def find(node: int) -> int:
        while parents[node] != node:
            parents[node] = node = parents[parents[node]]
        return node

    for one, other in edges:
        low, high = sorted((find(one), find(other)))
        parents[high] = low
    return _group([find(node) for node in range(nodes)])


def pivot_clusters(nodes: int, edges: Edges, *, seed: int = 0) -> list[list[int]]:
    """Correlation clustering by CC-Pivot: a random node and its remaining neighbors form a cluster, repeatedly.

    A chain of matches does not merge records that do not match each other. In expectation the disagreements (matches
    across clusters, and other pairs within one) are at most three times the fewest possible (Ailon, Charikar and
    Newman, 2008). The best of 16 random orders is taken.
    """
    neighbors: list[set[int]] = [set() for _ in range(nodes)]
    for one, other in edges:
        neighbors[one].add(other)
        neighbors[other].add(one)
    rng = np.random.default_rng(seed)
    best, fewest = list(range(nodes)), np.inf
    for _ in range(PIVOT_ORDERS):
        labels = _pivot(neighbors, rng.permutation(nodes))
        disagreements = _count_disagreements(labels, edges)
        if disagreements < fewest:
            best, fewest = labels, disagreements
    return _group(best)


def _pivot(neighbors: Sequence[set[int]], order: Rows) -> list[int]:
    labels = [-1] * len(neighbors)
    for pivot in order.tolist():
        if labels[pivot] < 0:
            for node in (pivot, *neighbors[pivot]):
                if labels[node] < 0:
                    labels[node] = pivot
    return labels


def _count_disagreements(labels: Sequence[int], edges: Edges) -> int:
    """Edges across clusters, and pairs within clusters without an edge."""
    sizes = np.unique(labels, return_counts=True)[1]
    inside = sum(labels[one] == labels[other] for one, other in edges)
    return len(edges) - inside + int((sizes * (sizes - 1) // 2).sum()) - inside


def _group(labels: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for node, label in enumerate(labels):
        groups.setdefault(label, []).append(node)
    return list(groups.values())
