"""What is expected of traits, against the formula of a posterior mean written out."""

import numpy as np
import pytest

from crossknn.indexing.ppca import ItemScores, ProbabilisticPca
from crossknn.strategies.posterior.prior import LATENT_FACTORS


@pytest.mark.parametrize("count", [0, 1, 7, LATENT_FACTORS, 40])
def test_means_and_covariances_are_those_of_the_posterior(count):
    rng = np.random.default_rng(count)
    queries, rows, values = np.tile(np.arange(count), 3), np.repeat(np.arange(3), count), rng.normal(size=3 * count)
    matrix, noise = rng.normal(size=(40, LATENT_FACTORS)), 0.3
    scores = ItemScores.of(queries, rows, values, 3)
    ((part, means, gain, shown),) = ProbabilisticPca(scores, matrix, noise)._expect(np.arange(3))
    assert part.tolist() == [0, 1, 2]
    doubts = np.linalg.inv(matrix[:count].T @ matrix[:count] / noise + np.eye(LATENT_FACTORS))
    for row in range(3):
        along = matrix[:count].T @ values[rows == row] / noise
        np.testing.assert_allclose(means[row], doubts @ along, atol=1e-9)
        np.testing.assert_allclose(np.eye(LATENT_FACTORS) - gain[row] @ shown[row], doubts, atol=1e-9)
