"""What posterior search believes about queries' scores: their means and how sure it is, corrected by every score."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from crossknn.strategies.posterior.features import RetrieverFeatures
from crossknn.strategies.posterior.model_check import ModelEvidence
from crossknn.strategies.posterior.prior import Prior

FLAT: Final = 1e-3  # the least slope of means that a general prior expects
SAME: Final = 1e-6  # scores that differ by less than this part of the largest are all the same


class CandidateFeatures(NamedTuple):
    """Some rows of each query, (queries, some), as beliefs see them.

    rows      the number of items behind the last
    known     which of them there are
    places    where they are among what was heard
    means     m
    gamma     γ
    features  (queries, some, features) φ; 0 where there is no row
    side      (queries, some, lines) φ Φᵀ L⁻ᵀ, of all scores so far
    """

    rows: Tensor
    known: Tensor
    places: Tensor
    means: Tensor
    gamma: Tensor
    features: Tensor
    side: Tensor

    def first(self, n: int) -> CandidateFeatures:
        """The first `n` of each query."""
        return CandidateFeatures(*(values[:, :n] for values in self)) if n < self.rows.shape[1] else self


class BayesianLinearModel:
    """What is believed about the scores of all queries of a search: a prior's mean and features, corrected by scores.

    For one query, with Φ the features of the scored rows, K = Φ Φᵀ + noise = L Lᵀ and r = (a − m) / γ their residuals,
    the posterior mean is `m + γ φ Φᵀ K⁻¹ r`, and a score is expected off it with the variance
    `γ² (φ φᵀ − φ Φᵀ K⁻¹ Φ φᵀ + noise)`. Of a round's scores only L's new corner is factorised: L⁻¹ Φ and L⁻¹ r, which
    are kept, are all that both need. A general prior has another scale after every round, so that r, a sum of 1, a and
    m over γ, is kept as these three goals (`ModelEvidence`).

    A query that knows fewer scores than another has lines of 0 instead, which change nothing.

    What retrievers say is known of the rows they propose; of all others they say the same, so that the posterior mean
    of these is a constant plus γ times an inner product: that of `query` with an item's profile, which is its vector
    and, where there is a fitted prior, its traits and its bias. φ is a profile, what retrievers say and a constant.

    scores    (queries, lines) a
    means     (queries, lines) m
    known     (queries, lines) which lines are scores
    query     (queries, dim) what profiles are multiplied with, to tell the mean of what retrievers do not propose
    evidence  whether the model fits
    """

    def __init__(self, prior: Prior, heard: RetrieverFeatures, dim: int) -> None:
        self.heard = heard
        self._prior = prior  # priors of queries that are not fitted differ in what was heard only
        queries, columns = len(heard.base), heard.shown.shape[2]
        scale = [prior.vector_variance**0.5] * dim
        if prior.fitted:
            scale += [1.0] * prior.traits.shape[1] + [prior.bias_scale]
        self._profile = len(scale)
        self._scale = heard.base.new_tensor([*scale, *[1.0] * columns, prior.constant], dtype=torch.float64)
        width = len(self._scale)

        def zeros(*size: int) -> Tensor:
            return heard.base.new_zeros((queries, *size), dtype=torch.float64)

        self._lines = zeros(0, 3)  # which are scores, a and m
        self._solved = zeros(0, width + 3)  # L⁻¹ of Φ, and of the goals
        self._sums = zeros(3, width)  # (L⁻¹ goals)ᵀ L⁻¹ Φ
        self.evidence = ModelEvidence.none(queries, narrow=columns + 1, noise=prior.noise, device=heard.base.device)
        self._level, self._spread, self._low = zeros(1), zeros(1) + 1, zeros(1)
        self._weights = zeros(width)
        self._prepare()

    def _prepare(self) -> None:
        """What never changes, of what is expected."""
        heard = self.heard
        last = heard.deviation[:, -1:]
        # A product has the bias over the γ of others in it: with this it counts once, whatever γ is.
        self._ground = heard.base[:, :-1] + heard.bias * (1 - heard.deviation[:, :-1] / last)
        self._bias = heard.base.new_zeros((len(last), self._profile))
        if self._prior.fitted:
            self._bias[:, -1:] = 1 / last
        self._apply()

    def look(self, rows: Tensor, profiles: Tensor) -> CandidateFeatures:
        """These rows, (queries, some), to be learned from or asked about until other scores are learned."""
        known = rows < self.heard.items
        places = self.heard.places(rows)
        told = self.heard.told[self.heard.lines, places]
        means, gamma = told[:, :, -2:].double().unbind(2)
        if self._prior.fitted:
            means = means + profiles[:, :, -1]
        features = (torch.cat([profiles, told[:, :, :-2]], 2) * self._scale).mul_(known[:, :, None])
        side = torch.bmm(features, self._solved[:, :, :-3].mT)
        return CandidateFeatures(rows, known, places, means, gamma, features, side)

    def learn(self, rows: CandidateFeatures, scores: Tensor) -> None:
        """Correct them by the scores of these rows, 0 where there is none."""
        lines = torch.stack([rows.known, scores, rows.means], 2) * rows.known[:, :, None]
        fresh = torch.cat([rows.features, lines / rows.gamma[:, :, None]], 2)
        self._lines = torch.cat([self._lines, lines], 1)
        narrow = torch.cat([fresh[:, :, self._profile :], lines], 2)
        self.evidence.moments.baddbmm_(narrow.mT, narrow)
        self._append(fresh, rows)
        if not self._prior.fitted:
            self._take_scale()
        self._weights = torch.bmm(self.evidence.residual[:, None], self._sums)[:, 0]
        self._apply()

    def _append(self, fresh: Tensor, rows: CandidateFeatures) -> None:
        """Let K grow by the features of these rows, and solve for what belongs to them."""
        corner = torch.bmm(rows.features, rows.features.mT)
        diagonal = corner.diagonal(dim1=1, dim2=2)
        self.evidence.squares.add_(diagonal.sum(1, keepdim=True))
        diagonal.add_(1).add_(rows.known, alpha=self._prior.noise - 1)  # 1 where there is no row
        factor, failed = torch.linalg.cholesky_ex(corner.baddbmm_(rows.side, rows.side.mT, alpha=-1))
        factor.masked_fill_((failed > 0)[:, None, None], torch.nan)  # which a search refuses, so that nobody waits here
        solved = torch.linalg.solve_triangular(factor, fresh.baddbmm_(rows.side, self._solved, alpha=-1), upper=False)
        self._solved = torch.cat([self._solved, solved], 1)
        goals = solved[:, :, -3:]
        self._sums.baddbmm_(goals.mT, solved[:, :, :-3])
        self.evidence.solved.baddbmm_(goals.mT, goals)
        self.evidence.volume.add_(factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True), alpha=2)

    def _take_scale(self) -> None:
        """The level and spread of scores that are 0 and 1 to a general prior: from all scores so far."""
        count = self.evidence.count.clamp(min=1)
        center, mean = self.evidence.score / count, self.evidence.mean / count
        known, scores, _ = self._lines.unbind(2)
        off = torch.addcmul(scores, known, center, value=-1)  # 0 where there is no score
        low, high = (center + end for end in torch.aminmax(off, dim=1, keepdim=True))
        varies = high - low > SAME * torch.maximum(high.abs(), low.abs())
        spread = torch.linalg.vector_norm(off, dim=1, keepdim=True) / count.sqrt()
        self._low, self._spread = low, torch.where(varies, spread, 1.0)
        self._level = torch.addcmul(center, self._spread, mean, value=-1)
        self.evidence.residual[:, :2] = torch.cat([-self._level, torch.ones_like(center)], 1) / self._spread

    def _apply(self) -> None:
        """Take the weights to profiles and to what was heard."""
        weights = (self._weights * self._scale).float()
        self.query = weights[:, : self._profile] + self._bias
        self._told = torch.bmm(self.heard.told[:, :, :-2], weights[:, self._profile :, None])[:, :, 0]

    @property
    def known(self) -> Tensor:
        return self._lines[:, :, 0] > 0

    @property
    def scores(self) -> Tensor:
        return self._lines[:, :, 1]

    @property
    def means(self) -> Tensor:
        return self._lines[:, :, 2]

    def expect_others(self, products: Tensor) -> Tensor:
        """The posterior mean of rows that no retriever proposes, from the products of `query` and their profiles."""
        base, gamma = self.heard.base[:, -1:], self.heard.deviation[:, -1:]
        return self._rescale(torch.addcmul(base, gamma, products + self._told[:, -1:]))

    def expect_proposed(self, products: Tensor) -> Tensor:
        """The same of what they propose; any value where lines are filled up."""
        gamma = self.heard.deviation[:, :-1]
        return self._rescale(torch.addcmul(self._ground, gamma, products + self._told[:, :-1]))

    def expect(self, rows: CandidateFeatures) -> Tensor:
        """The same of any rows."""
        products = torch.bmm(rows.features, self._weights[:, :, None])[:, :, 0]
        return self._rescale(torch.addcmul(rows.means, rows.gamma, products)).float()

    def _rescale(self, expected: Tensor) -> Tensor:
        """On the scale of scores."""
        if self._prior.fitted:
            return expected
        return torch.addcmul(self._level.to(expected.dtype), self._spread.to(expected.dtype), expected)

    def deviations(self, rows: CandidateFeatures) -> Tensor:
        """How far the scores of these rows are expected off their posterior means; rows that they know stay unsure."""
        whole, known = (torch.linalg.vector_norm(values, dim=2).square() for values in (rows.features, rows.side))
        left = (whole - known).clamp(min=0) + self._prior.noise
        off: Tensor = self._spread * rows.gamma * left.sqrt()
        return off.float()

    def temper(self, means: Tensor, deviations: Tensor) -> tuple[Tensor, Tensor]:
        """Means and deviations as they are believed far from what was scored, too.

        A general prior does not know how low scores go. Most items have about the lowest score that was seen, and those
        vary less: means fall towards it ever more slowly, and variances with their slope.
        """
        if self._prior.fitted:
            return means.double(), deviations.double()
        above = (means.double() - self._low) / self._spread
        slope = torch.sigmoid(above).clamp(min=FLAT)
        soft = torch.nn.functional.softplus(above, threshold=500)
        return torch.addcmul(self._low, self._spread, soft), slope.sqrt() * deviations
