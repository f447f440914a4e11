"""Probabilistic PCA: posterior means and covariances against the textbook formula."""

import numpy as np
import pytest

from crossknn.indexing.ppca import ItemScores, ProbabilisticPca
from crossknn.strategies.posterior.prior import LATENT_FACTORS


@pytest.mark.parametrize("count", [0, 1, 7, LATENT_FACTORS, 40])
def test_means_and_covariances_match_the_posterior_formula(count):
    rng = np.random.default_rng(count)
    queries, rows, values = np.tile(np.arange(count), 3), np.repeat(np.arange(3), count), rng.normal(size=3 * count)
    loadings, noise = rng.normal(size=(40, LATENT_FACTORS)), 0.3
    scores = ItemScores.group(queries, rows, values, 3)
    ((part, means, gain, observed),) = ProbabilisticPca(scores, loadings, noise)._posterior(np.arange(3))
    assert part.tolist() == [0, 1, 2]
    covariance = np.linalg.inv(loadings[:count].T @ loadings[:count] / noise + np.eye(LATENT_FACTORS))
    for row in range(3):
        right = loadings[:count].T @ values[rows == row] / noise
        np.testing.assert_allclose(means[row], covariance @ right, atol=1e-9)
        np.testing.assert_allclose(np.eye(LATENT_FACTORS) - gain[row] @ observed[row], covariance, atol=1e-9)
