"""DefaultBinder: the binding it asks the API for."""

from __future__ import annotations

import pytest

from make import make_pod
from stowplan.cluster import Cluster
from stowplan.framework import CycleState, Handle, PluginArgs
from stowplan.plugins.default.default_binder import DefaultBinder


class Recorder:
    """An API that remembers the bindings it was asked for, or refuses them."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.refusal, self.bindings = refusal, []

    async def create_binding(self, pod, node_name):
        if self.refusal is not None:
            raise self.refusal
        self.bindings.append((pod.key, pod.uid, node_name))


def binder(api):
    return DefaultBinder(PluginArgs(), Handle(Cluster(), api=api))


async def test_the_pod_is_bound_to_the_node():
    api = Recorder()
    assert await binder(api).bind(CycleState(), make_pod("web", namespace="shop"), "n1") is None
    assert api.bindings == [("shop/web", "uid-web", "n1")]


async def test_a_refusal_is_for_the_host_to_deal_with():
    with pytest.raises(ConnectionError, match="refused"):
        await binder(Recorder(ConnectionError("refused"))).bind(CycleState(), make_pod(), "n1")
