"""Platt scaling of expected recall, its monotonicity, and the error that it is to lower."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.strategies.posterior.calibration import RecallCalibration, calibration_error, reliability_bins
from crossknn.strategies.posterior.diagnostics import expected_recall

COUNTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=8).map(sorted)
CALIBRATIONS = st.builds(RecallCalibration, st.floats(-5, 5), st.floats(0.05, 5))


def expect(counts, k, calibration=None):
    above = torch.tensor([counts], dtype=torch.float64)
    return expected_recall(above, torch.zeros_like(above), k, calibration).item()


@given(COUNTS, CALIBRATIONS, st.floats(1, 10), st.integers(0, 50))
def test_more_better_rows_never_raise_it(counts, calibration, factor, more):
    k = len(counts) + more
    found = expect(counts, k, calibration)
    assert 0 <= found <= 1
    assert expect([factor * count for count in counts], k, calibration) <= found + 1e-9


def test_it_is_the_formula():
    found = expect([0.5, 4.0], 2, RecallCalibration(-0.3, 0.8))
    chances = [1 / (1 + np.exp(-(-0.3 + 0.8 * np.log(room / count)))) for room, count in ((2, 0.5), (1, 4.0))]
    assert found == pytest.approx(np.mean(chances))


def test_what_is_surely_found_stays_so():
    assert expect([0.0, 0.0], 2, RecallCalibration(-5, 0.1)) == 1
    assert expect([0.0], 4, RecallCalibration(-5, 0.1)) == 0.25


@pytest.mark.parametrize(("intercept", "slope"), [(np.nan, 1), (np.inf, 1), (0, 0), (0, -1), (0, np.nan), ("0", 1)])
def test_a_calibration_that_does_not_increase_is_rejected(intercept, slope):
    with pytest.raises(InputError, match="must be"):
        RecallCalibration(intercept, slope)


def test_bins_hold_every_search_once_and_the_error_is_their_mean_gap():
    expected = np.array([[0.1, 0.5], [0.55, 1.0]])
    measured = np.array([[0.3, 0.4], [0.8, 1.0]])
    bins = reliability_bins(expected, measured)
    assert [one.searches for one in bins] == [1, 2, 1]
    assert bins[1].expected == pytest.approx(0.525)
    assert bins[1].measured == pytest.approx(0.6)
    assert calibration_error(expected, measured) == pytest.approx((0.2 + 2 * 0.075 + 0) / 4)
    assert calibration_error(measured, measured) == 0
