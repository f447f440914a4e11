"""Bayesian optimization with a Gaussian process over item embeddings, one per query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_number, check_positive, check_range
from crossknn.errors import InputError
from crossknn.strategies.base import Flow, Grid, MultiRound, Observations, Round, SearchContext
from crossknn.strategies.normalization import varies
from crossknn.strategies.posterior.prior import NOISE_VARIANCE, RETRIEVER_DEPTH, Prior, gamma_at, signal_features
from crossknn.types import Proposal, Rows, Scores, Vectors
from crossknn.vectors.ranking import order_rows, ranks_in

if TYPE_CHECKING:
    from crossknn.strategies.gaussian_process import GaussianProcess

STANDARDIZATION_DEPTH: Final = 1_000  # first rows of each retriever that standardize its features without an index
KERNELS: Final[Mapping[str, tuple[float, float]]] = {"rbf": (1.0, 0.0), "linear": (0.0, 1.0), "rbf+linear": (0.5, 0.5)}
MEANS: Final = ("signals", "query")

Array = NDArray[np.float32]


class PriorMean(NamedTuple):
    """What is believed of a query's candidates before the first call."""

    rows: Rows
    mean: Array
    scale: Array  # γ


@dataclass(frozen=True, repr=False)
class Gp(MultiRound):
    """Gaussian-process search, as in ReBOL (arXiv:2603.20513) and BAGEL (arXiv:2604.17906).

    The scores of a query are a Gaussian process over the item embeddings. Each round takes the candidates of largest
    `mean + beta · deviation` (the upper confidence bound; the posterior mean for beta 0). The RBF kernel is
    `exp((cos − 1) / length_scale²)`, which is scikit-learn's for vectors of length 1.

    The prior mean is a calibration of the signal retrievers' scores and ranks: that of the index's prior with its item
    biases and γ, or else one with equal weights on the scale of the query's own scores, as in `Posterior`. ReBOL's is
    mean "query" instead: items are as bad as the worst one scored, and the query's embedding counts as an item that was
    observed to be as good as the best one.

    Args:
        kernel: "rbf", "linear" (the cosine), or the mean of both, "rbf+linear".
        length_scale: Of the RBF kernel.
        variance: Of the kernel, and
        noise: of the observations, for scores of variance 1. With an index, both are in units of its noise.
        beta: Weight of the standard deviation in the acquisition.
        mean: "signals" or "query".
        pool: Candidates are the first rows of each signal retriever, this many; None is all items. A search takes
            4 · candidates · budget bytes.
    """

    requires = frozenset({"query_vectors"})
    by_default = False
    uses_signals = True
    uses_prior = True

    kernel: Literal["rbf", "linear", "rbf+linear"] = "rbf"
    length_scale: float = 1.0
    variance: float = 1.0
    noise: float = 0.2
    beta: float = 0.0
    mean: Literal["signals", "query"] = "signals"
    pool: int | None = None

    search_space: ClassVar[Grid] = {
        "kernel": ("rbf", "rbf+linear"),
        "length_scale": (1.0, 0.7),
        "beta": (0.0, 1.0),
        "mean": MEANS,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("kernel", self.kernel, KERNELS)
        check_choice("mean", self.mean, MEANS)
        if self.pool is not None:
            check_positive("pool", self.pool)
        for name in ("length_scale", "variance", "noise"):
            check_number(name, getattr(self, name))
        check_range("beta", self.beta, 0)

    def flow(self, context: SearchContext) -> Flow:
        if context.query_vectors is None:
            raise InputError("Gp needs query vectors: an encoder, and item vectors in its space.")
        prior = context.prior or Prior.weakly_informative(context.signals)
        depth = min(max(self.pool or RETRIEVER_DEPTH, self.budget), context.reachable)
        lists = [context.propose(name, depth)[1] for name in prior.signals]
        with context.solving:
            searches = [
                _Search(self, context, prior, *pair)
                for pair in zip(zip(*lists, strict=True), context.query_vectors(), strict=True)
            ]

        def choose(number: int) -> Round:
            with context.solving:
                proposals = [one.best(self._share(context, number, len(one.observed.rows))) for one in searches]
            return Round(proposals, "gp")

        yield from self._run_rounds(choose(1), [one.observed for one in searches], choose)
        return None

    def make_process(self, vectors: Vectors, prior: Prior, lists: Sequence[Proposal], rows: Rows) -> GaussianProcess:  # noqa: ARG002
        """The process over the vectors of the rows, and behind them the query's."""
        from crossknn.strategies.gaussian_process import GaussianProcess  # imports torch

        unit = prior.noise / NOISE_VARIANCE if prior.fitted and self.mean == "signals" else 1.0
        rbf, linear = (unit * self.variance * part for part in KERNELS[self.kernel])
        return GaussianProcess(vectors, rbf, linear, length_scale=self.length_scale, noise=unit * self.noise)


class _Search:
    """The Gaussian process of one query, over its candidates and, behind them, the query itself."""

    def __init__(
        self, settings: Gp, context: SearchContext, prior: Prior, lists: Sequence[Proposal], query: Vectors
    ) -> None:
        self.observed = Observations()
        self._settings, self._fitted = settings, prior.fitted and settings.mean == "signals"
        rows = context.allowed_rows if settings.pool is None else proposed_rows(lists)
        self._believed = prior_mean(prior, lists, rows, calibrated=settings.mean == "signals")
        vectors = np.concatenate([context.item_vectors().take(self._believed.rows), query[None]])
        self._process = settings.make_process(vectors, prior, lists, rows)
        self._learned = 0  # how many of the scores
        if settings.mean == "query":
            self._process.observe(np.array([len(self._believed.rows)]), np.array([[0.0, 0.0, 0.0, 1.0]]))

    def best(self, n: int) -> Proposal:
        """The `n` unscored candidates of largest acquisition."""
        self._learn()
        rows, prior, gamma = self._believed
        offset, scale, at_query = self._scale()
        mean = self._process.mean(np.array([-offset / scale, 1 / scale, -1.0, at_query]))[: len(rows)]
        estimates = (offset + scale * (prior + gamma * mean)).astype(np.float32)
        value, deviations = estimates, None
        if self._settings.beta:
            deviations = (scale * gamma * self._process.deviation()[: len(rows)]).astype(np.float32)
            value = estimates + self._settings.beta * deviations
        new = np.flatnonzero(~np.isin(rows, self.observed.rows))
        chosen = np.searchsorted(rows, order_rows(rows[new], value[new]).first(n).rows)
        return Proposal(rows[chosen], estimates[chosen], None if deviations is None else deviations[chosen])

    def _learn(self) -> None:
        """Observe the new scores: as targets (1, score, prior mean) / γ, whose weights `_scale` says later."""
        new, scores = self.observed.rows[self._learned :], self.observed.scores[self._learned :]
        if not len(new):
            return
        at = np.searchsorted(self._believed.rows, new)
        targets = np.column_stack([np.ones(len(new)), scores, self._believed.mean[at], np.zeros(len(new))])
        self._process.observe(at, targets / self._believed.scale[at, None])
        self._learned += len(new)

    def _scale(self) -> tuple[float, float, float]:
        """Offset and scale of the scores, which are `offset + scale · process`, and the process at the query."""
        scores = self.observed.scores.astype(np.float64)
        if self._fitted or not len(scores):
            return 0.0, 1.0, 1.0
        scale = float(scores.std()) if varies(scores) else 1.0
        if self._settings.mean == "query":
            return float(scores.min()), scale, max(1.0, float(np.ptp(scores)) / scale)
        expected = self._believed.mean[np.searchsorted(self._believed.rows, self.observed.rows)]
        return float(scores.mean() - scale * expected.mean()), scale, 0.0


def proposed_rows(lists: Sequence[Proposal]) -> Rows:
    """All rows in these proposals, ascending."""
    rows: Rows = np.unique(np.concatenate([one.rows for one in lists]))
    return rows


def prior_mean(prior: Prior, lists: Sequence[Proposal], rows: Rows, *, calibrated: bool = True) -> PriorMean:
    """The prior mean and γ of these rows, by the proposals of the signal retrievers; 0 and 1 if not `calibrated`."""
    if not calibrated:
        return PriorMean(rows, np.zeros(len(rows), np.float32), np.ones(len(rows), np.float32))
    mean = prior.intercept + standardized_features(prior, lists, rows) @ prior.weights
    settings = {name: getattr(prior, name) for name in ("gamma_start", "gamma_slope", "gamma_max")}
    scale = gamma_at(mean, **settings)
    bias: Scores | float = prior.bias[rows] if prior.fitted else 0.0
    return PriorMean(rows, (mean + bias).astype(np.float32), scale.astype(np.float32))


def standardized_features(prior: Prior, lists: Sequence[Proposal], rows: Rows) -> NDArray[np.float64]:
    """(rows, signal features) on the scale of the prior; without a fitted one, on that of the first rows of `lists`."""
    raw = signal_features(lists, [ranks_in(one, rows) for one in lists])
    center, spread = prior.center, prior.spread
    if not prior.fitted:
        near = np.searchsorted(rows, proposed_rows([one.first(STANDARDIZATION_DEPTH) for one in lists]))
        center, spread = (raw[near].mean(0), raw[near].std(0)) if len(near) else (center, spread)
        spread = np.where(spread > 0, spread, 1.0)
    features: NDArray[np.float64] = (raw - center) / spread
    return features
