"""What posterior search believes about queries' scores: their means and how sure it is, corrected by every score."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from crossknn.prior import Prior
from crossknn.strategies.heard import Heard

FLAT: Final = 1e-3  # the least slope of means that a general prior expects
TINY: Final = 1e-12  # the least mean square of residuals
SAME: Final = 1e-6  # scores that differ by less than this part of the largest are all the same


class Beliefs:
    """What is believed about the scores of all queries of a search: a prior's mean and features, corrected by scores.

    For one query, with Φ the features of the scored rows, K = Φ Φᵀ + noise = L Lᵀ and r = (a − m) / γ their residuals,
    the posterior mean is `m + γ φ Φᵀ K⁻¹ r`, and a score is expected off it with the variance
    `γ² (φ φᵀ − φ Φᵀ K⁻¹ Φ φᵀ + noise)`. Of a round's scores only L's new corner is factorised: L⁻¹ Φ and L⁻¹ r, which
    are kept, are all that both need.

    A query that knows fewer scores than another has lines of 0 instead, which change nothing.

    What retrievers say is known of the rows they propose; of all others they say the same, so that the posterior mean
    of these is a constant plus γ times an inner product: that of `query` with an item's profile, which is its vector
    and, where there is a fitted prior, its traits and its bias.
    """

    def __init__(self, prior: Prior, heard: Heard, dim: int) -> None:
        self.heard = heard
        self._prior = prior  # priors of queries that are not fitted differ in what was heard only
        queries, columns, traits = len(heard.base), heard.shown.shape[2], prior.traits.shape[1]
        self._sizes = dim, columns, 1, 1, traits
        zeros = heard.base.new_zeros
        self._solved = zeros((queries, 0, sum(self._sizes) + 3)).double()  # L⁻¹ of Φ, and of a, 1 and m, over γ
        self._told = zeros((queries, 0, columns + 1)).double()  # of Φ what retrievers say, and the constant
        self._squares = zeros(queries).double()  # of all features, summed
        self._volume = zeros(queries).double()  # the logarithm of |K|
        self.known = zeros((queries, 0)).bool()  # which lines are scores
        self.scores = zeros((queries, 0)).double()  # a
        self.means = zeros((queries, 0)).double()  # m
        self._gamma = zeros((queries, 0)).double()  # γ
        self._level, self._spread = zeros(queries, 1).double(), zeros(queries, 1).double() + 1
        self._weights = torch.split(zeros((queries, sum(self._sizes))), list(self._sizes), 1)

    def learn(self, rows: Tensor, profiles: Tensor, scores: Tensor, known: Tensor) -> None:
        """Correct them by the scores of these rows, (queries, some); of rows that are not `known` there are none."""
        places = self.heard.places(rows)
        features = self._features(places, profiles) * known[:, :, None]
        gamma = self.heard.deviation.gather(1, places).double()
        means = self._mean(places, profiles).double()
        goals = torch.stack([scores.double(), torch.ones_like(means), means], 2) * (known / gamma)[:, :, None]
        self._append(torch.cat([features, goals], 2), known)
        dim, columns = self._sizes[:2]
        said = [features[:, :, dim : dim + columns], features[:, :, dim + columns + 1, None]]
        self._told = torch.cat([self._told, torch.cat(said, 2)], 1)
        self._squares += features.square().sum((1, 2))
        for name, fresh in (("known", known), ("scores", scores.double()), ("means", means), ("_gamma", gamma)):
            setattr(self, name, torch.cat([getattr(self, name), fresh], 1))
        if not self._prior.fitted:
            self._take_scale()
        weights = torch.einsum("qn,qnf->qf", self._solved_residuals(), self._solved[:, :, :-3])
        self._weights = torch.split(weights.float(), list(self._sizes), 1)

    def _append(self, fresh: Tensor, known: Tensor) -> None:
        """Let K grow by the features of these lines, and solve for what belongs to them."""
        features, width = fresh[:, :, :-3], sum(self._sizes)
        side = features @ self._solved[:, :, :width].mT  # of L
        noise = 1 + known.double() * (self._prior.noise - 1)
        corner = torch.linalg.cholesky(features @ features.mT + torch.diag_embed(noise) - side @ side.mT)
        solved = torch.linalg.solve_triangular(corner, fresh - side @ self._solved, upper=False)
        self._solved = torch.cat([self._solved, solved], 1)
        self._volume += 2 * corner.diagonal(dim1=1, dim2=2).log().sum(1)

    def _take_scale(self) -> None:
        """The level and spread of scores that are 0 and 1 to a general prior: from all scores so far."""
        count = self.known.sum(1, keepdim=True).clamp(min=1)
        center, mean = ((values * self.known).sum(1, keepdim=True) / count for values in (self.scores, self.means))
        spread = (((self.scores - center) * self.known).square().sum(1, keepdim=True) / count).sqrt()
        high, low = self._extreme(-torch.inf).amax(1, True), self._extreme(torch.inf).amin(1, True)
        varies = high - low > SAME * torch.maximum(high.abs(), low.abs())
        self._spread = torch.where(varies, spread, 1.0)
        self._level = center - self._spread * mean

    def _extreme(self, other: float) -> Tensor:
        """The scores, and this where there are none."""
        return torch.where(self.known, self.scores, other)

    def _solved_residuals(self) -> Tensor:
        """(queries, lines) L⁻¹ r."""
        scores, ones, means = self._solved[:, :, -3:].unbind(2)
        return (scores - self._level * ones) / self._spread - means

    @property
    def query(self) -> Tensor:
        """(queries, dim) what profiles are multiplied with, to tell the mean of what retrievers do not propose."""
        vector, _, bias, _, traits = self._weights
        parts = [self._prior.vector_variance**0.5 * vector]
        if self._prior.fitted:
            parts += [traits, bias * self._prior.bias_scale + 1 / self.heard.deviation[:, -1:]]
        return torch.cat(parts, 1)

    def expect_others(self, products: Tensor) -> Tensor:
        """The posterior mean of rows that no retriever proposes, from the products of `query` and their profiles."""
        return self._expect(slice(-1, None), products, 0)

    def expect_proposed(self, products: Tensor) -> Tensor:
        """The same of what they propose; −∞ where lines are filled up."""
        expected = self._expect(slice(-1), products, self.heard.bias)
        return expected.masked_fill(self.heard.filled, -torch.inf)

    def expect(self, rows: Tensor, profiles: Tensor) -> Tensor:
        """The same of any rows, (queries, some)."""
        places = self.heard.places(rows)
        lines = torch.arange(len(rows), device=rows.device)[:, None]
        bias = profiles[:, :, -1] if self._prior.fitted else 0
        products = (profiles @ self.query[:, :, None])[:, :, 0]
        return self._expect((lines, places), products, bias)

    def _expect(self, places: slice | tuple[Tensor, Tensor], products: Tensor, bias: Tensor | int) -> Tensor:
        """A product has the bias over the γ of others in it: here it counts once, whatever γ is."""
        at = (slice(None), places) if isinstance(places, slice) else places
        base, deviation, shown = (values[at] for values in (self.heard.base, self.heard.deviation, self.heard.shown))
        _, said, _, constant, _ = self._weights
        told = (shown @ said[:, :, None])[:, :, 0] + constant * self._prior.constant
        expected = base + deviation * (products + told) + bias * (1 - deviation / self.heard.deviation[:, -1:])
        scaled: Tensor = expected * self._spread.float() + self._level.float()
        return scaled

    def deviations(self, rows: Tensor, profiles: Tensor) -> Tensor:
        """How far the scores of these rows are expected off their posterior means; rows that they know stay unsure."""
        places = self.heard.places(rows)
        features = self._features(places, profiles)
        known = (self._solved[:, :, :-3] @ features.mT).square().sum(1)
        left = (features.square().sum(2) - known).clamp(min=0) + self._prior.noise
        return (self._spread * self.heard.deviation.gather(1, places) * left.sqrt()).float()

    def temper(self, means: Tensor, deviations: Tensor) -> tuple[Tensor, Tensor]:
        """Means and deviations as they are believed far from what was scored, too.

        A general prior does not know how low scores go. Most items have about the lowest score that was seen, and those
        vary less: means fall towards it ever more slowly, and variances with their slope.
        """
        if self._prior.fitted:
            return means.double(), deviations.double()
        low = self._extreme(torch.inf).amin(1, True)
        above = (means.double() - low) / self._spread
        slope = torch.sigmoid(above).clamp(min=FLAT)
        return low + self._spread * torch.nn.functional.softplus(above, threshold=500), slope.sqrt() * deviations

    def advantage(self) -> Tensor:
        """(queries,) how much better scores fit than with retrievers alone: the logarithm of the ratio of likelihoods.

        Each of the two models is taken on the scale that suits it best.
        """
        count = self.known.sum(1)
        residuals = (((self.scores - self._level) / self._spread - self.means) / self._gamma) * self.known
        rest = self._prior.noise + (self._squares - self._told.square().sum((1, 2))) / count.clamp(min=1)
        plain = _log_likelihood(*_solve_narrow(self._told, rest, residuals, count), count)
        return _log_likelihood(self._solved_residuals().square().sum(1), self._volume, count) - plain

    def agrees(self) -> Tensor:
        """(queries,) whether scores rise with what was expected before any was seen."""
        count = self.known.sum(1, keepdim=True).clamp(min=1)
        off = (self.means - (self.means * self.known).sum(1, keepdim=True) / count) * self.known
        return (off * self.scores).sum(1) > 0

    def _mean(self, places: Tensor, profiles: Tensor) -> Tensor:
        mean = self.heard.base.gather(1, places)
        return mean + profiles[:, :, -1] if self._prior.fitted else mean

    def _features(self, places: Tensor, profiles: Tensor) -> Tensor:
        """(queries, some, features) φ: the vector, what retrievers say, the bias, the constant, the traits."""
        dim, one = self._sizes[0], torch.ones_like(profiles[:, :, :1])
        lines = torch.arange(len(places), device=places.device)[:, None]
        bias = profiles[:, :, -1:] if self._prior.fitted else 0 * one
        traits = profiles[:, :, dim:-1] if self._prior.fitted else one[:, :, :0]
        parts = [
            self._prior.vector_variance**0.5 * profiles[:, :, :dim],
            self.heard.shown[lines, places],
            self._prior.bias_scale * bias,
            self._prior.constant * one,
            traits,
        ]
        return torch.cat(parts, 2).double()


def _solve_narrow(features: Tensor, noise: Tensor, goal: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """goalᵀ K⁻¹ goal and the logarithm of |K|, of K = features featuresᵀ + noise with few features."""
    width = features.shape[2]
    inner = features.mT @ features + noise[:, None, None] * torch.eye(width, dtype=noise.dtype, device=noise.device)
    along = (features.mT @ goal[:, :, None])[:, :, 0]
    factor = torch.linalg.cholesky(inner)
    solved = torch.linalg.solve_triangular(factor, along[:, :, None], upper=False)[:, :, 0]
    square = (goal.square().sum(1) - solved.square().sum(1)) / noise
    volume = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return square, volume + (count - width) * noise.log()


def _log_likelihood(square: Tensor, volume: Tensor, count: Tensor) -> Tensor:
    """Of `count` values under a normal distribution on its best scale, but for a constant."""
    return -0.5 * (count * (square / count.clamp(min=1)).clamp(min=TINY).log() + volume)
