"""The real part of differences, from measured classes."""

import numpy as np
import pytest

from tape2048.ntuple.calibration import SIZES
from tape2048_recorder.evaluation.calibrating import fitted_differences

SIZE = np.array(SIZES)


def classes(shares: list[float], errors: list[float], positions: list[int]) -> np.ndarray:
    return np.array([shares * SIZE, errors, positions]).T


def test_a_share_that_rises_with_the_size_is_kept() -> None:
    measured = classes([0.1, 0.1, 0.2, 0.3, 0.5, 0.9], [1.0] * 6, [50] * 6)
    real, errors, _ = fitted_differences(measured)
    np.testing.assert_allclose(real, measured[:, 0])
    assert errors.tolist() == [1] * 6


def test_a_noisy_small_class_takes_the_share_of_larger_ones() -> None:
    real, *_ = fitted_differences(classes([3.0, 0.1, 0.1, 0.1, 0.1, 0.1], [200.0, 1, 1, 1, 1, 1], [50] * 6))
    np.testing.assert_allclose(real / SIZE, 0.1, rtol=1e-3)


def test_no_move_is_better_than_the_best() -> None:
    real, *_ = fitted_differences(classes([-0.5, -0.5, -0.1, 0.1, 0.1, 0.1], [1.0] * 6, [50] * 6))
    assert real[:3].tolist() == [0, 0, 0]


@pytest.mark.parametrize("known", [0, 1, 3])
def test_classes_without_positions_take_the_share_below(known: int) -> None:
    positions = [50] * known + [2] * (6 - known)
    real, *_ = fitted_differences(classes([0.2] * known + [9.0] * (6 - known), [1.0] * 6, positions))
    np.testing.assert_allclose(real / SIZE, 0.2 if known else 1)
