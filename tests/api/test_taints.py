"""Tolerations: which taints a pod puts up with."""

from __future__ import annotations

import pytest

from stowplan.api.node import Taint, first_untolerated, tolerates
from stowplan.api.pod import Toleration

GPU = Taint("gpu", "a", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        pytest.param(Toleration(key="gpu", operator="Exists"), True, id="the key"),
        pytest.param(Toleration(key="gpu", operator="Equal", value="a"), True, id="key and value"),
        pytest.param(Toleration(key="gpu", value="a"), True, id="Equal is the default"),
        pytest.param(Toleration(key="gpu", value="b"), False, id="another value"),
        pytest.param(Toleration(key="gpu"), False, id="no value is an empty value"),
        pytest.param(Toleration(key="cpu", operator="Exists"), False, id="another key"),
        pytest.param(Toleration(operator="Exists"), True, id="everything"),
        pytest.param(Toleration(value="a"), True, id="any key of that value"),
        pytest.param(Toleration(operator="Exists", effect="NoSchedule"), True, id="the effect"),
        pytest.param(Toleration(operator="Exists", effect="NoExecute"), False, id="another effect"),
        pytest.param(
            Toleration(key="gpu", operator="Exists", value="b"), True, id="Exists does not look at values"
        ),
        pytest.param(
            Toleration(key="gpu", operator="Lt", value="b"), False, id="comparisons are an alpha feature"
        ),
        pytest.param(Toleration(key="gpu", operator="Near", value="a"), False, id="an unknown operator"),
    ],
)
def test_tolerates(toleration, tolerated):
    assert tolerates(toleration, GPU) is tolerated


def test_the_first_hard_taint_that_is_not_tolerated():
    soft, other = Taint("soft", "", "PreferNoSchedule"), Taint("other", "", "NoExecute")
    gpu = Toleration(key="gpu", operator="Exists")
    assert first_untolerated([soft, GPU, other], []) == GPU
    assert first_untolerated([soft, GPU, other], [gpu]) == other
    assert first_untolerated([soft, GPU], [gpu]) is None
