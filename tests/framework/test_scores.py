"""Ways to bring scores into 0 to 100."""

from __future__ import annotations

import numpy as np
import pytest

from stowplan.framework import scale_to_max


@pytest.mark.parametrize(
    ("raw", "reverse", "expected"),
    [
        pytest.param([0, 30, 50, 80], False, [0, 37, 62, 100], id="in proportion, cut off"),
        pytest.param([0, 1, 2, 3], True, [100, 67, 34, 0], id="reversed"),
        pytest.param([0, 0], False, [0, 0], id="all zero"),
        pytest.param([0, 0], True, [100, 100], id="all zero, reversed"),
        pytest.param([7], False, [100], id="alone"),
        pytest.param([], False, [], id="none"),
        pytest.param([10**15, 10**16], False, [10, 100], id="large numbers"),
        pytest.param([2**61, 2**62, 2**63 - 1], False, [25, 50, 100], id="too large for a hundredfold"),
    ],
)
def test_scale_to_max(raw, reverse, expected):
    assert scale_to_max(np.array(raw, np.int64), reverse=reverse).tolist() == expected
