"""Which pods a scheduler cannot tell apart, so that one answer does for all of them."""

from __future__ import annotations

from typing import Any

from stowplan.api.pod import Pod
from stowplan.framework.plugin import is_trusted
from stowplan.framework.profile import Profile


def likeness_of(pod: Pod, profile: Profile) -> tuple[Any, ...] | None:
    """Equal for pods that differ in no more than their names; None where a name may matter.

    It does to claims that are made for the pod, and it may to plugins that we do not know.
    """
    spec = pod.spec
    is_known = all(is_trusted(type(plugin)) for plugin in profile.plugins.values())
    if spec.volumes or spec.resource_claims or pod.nominated_node_name or not is_known:
        return None
    return (pod.shape, pod.label_set, pod.controller, id(pod.annotations))
