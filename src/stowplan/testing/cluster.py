"""A cluster for tests of policies, built from plain words, from manifests, or from both."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from stowplan.api.custom import CustomResource
from stowplan.api.manifests import Found, Manifests, read
from stowplan.api.meta import Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.config.types import V1
from stowplan.cycle import Planner
from stowplan.cycle.planner import ask_plugin, run_pre_enqueue
from stowplan.errors import InputError
from stowplan.explain.report import explain_decision
from stowplan.framework.answers import nothing_of, plugin_error
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import Plugin, overrides
from stowplan.framework.plugin_check import check_plugin
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import watched_kinds
from stowplan.framework.state import seal_state
from stowplan.framework.status import Code, Status
from stowplan.testing.outcome import HeldPod, Outcome

KIND = "KubeSchedulerConfiguration"
Plain = dict[str, Any]


def a_cluster(
    *plugins: type[Plugin], config: Path | Plain | None = None, plugin_dir: Path | str | None = None
) -> PolicyCluster:
    """An empty cluster with the default plugins and these; or with those of a configuration."""
    cluster = PolicyCluster(config, plugin_dir)
    for plugin in plugins:
        cluster.plugin(plugin)
    return cluster


class PolicyCluster:
    """What is added counts at once; `place` counts the pod as placed, `decide` changes nothing."""

    def __init__(self, config: Path | Plain | None = None, plugin_dir: Path | str | None = None) -> None:
        self.cluster = Cluster()
        self._clock = 0.0
        self._config = config
        self._plugin_dirs = [plugin_dir] if plugin_dir else []
        self._classes: dict[str, type[Plugin]] = {}
        self._enabled: list[Plain] = []
        self._disabled: list[Plain] = []
        self._args: list[Plain] = []
        self._pending: dict[str, Pod] = {}
        """Pods without a node, by namespace and name."""
        self._held: dict[str, HeldPod] = {}
        """Pods that a permit plugin holds, by uid."""
        self._planner: Planner | None = None

    @property
    def clock(self) -> float:
        """What `handle.now()` says, in seconds. A pod that a `permit` holds times out by it."""
        return self._clock

    @clock.setter
    def clock(self, seconds: float) -> None:
        self._clock = seconds
        for held in tuple(self._held.values()):
            held.check_time(seconds)

    def plugin(
        self, plugin: type[Plugin] | str, *, weight: int = 1, args: Mapping[str, Any] | None = None
    ) -> PolicyCluster:
        """Add a plugin to the default ones; `args` as `pluginConfig` would spell them."""
        if self._config is not None:
            raise InputError("the cluster has a configuration: name its plugins there")
        name = plugin if isinstance(plugin, str) else plugin.__name__
        if isinstance(plugin, type):
            self._classes[name] = check_plugin(plugin)
        self._enabled.append({"name": name, "weight": weight})
        if args is not None:
            self._args.append({"name": name, "args": dict(args)})
        self._planner = None
        return self

    def without(self, *plugins: str) -> PolicyCluster:
        """Leave out default plugins, such as a score that is not what the test is about."""
        self._disabled += [{"name": name} for name in plugins]
        self._planner = None
        return self

    def node(self, name: str, **words: Any) -> PolicyCluster:
        """Add a node, with the parameters of `a_node`."""
        return self.add(a_node(name, **words))

    def pod(self, name: str, node: str, **words: Any) -> PolicyCluster:
        """Add a pod that runs on a node, with the parameters of `a_pod`."""
        return self.add(a_pod(name, node=node, **words))

    def add(self, *things: Object | Pod | Plain | Path) -> PolicyCluster:
        """Add or replace objects: structs, custom ones too, plain data, or files and folders of manifests.

        A pod without a node waits for `place` or `decide` to name it.
        """
        for thing in things:
            items = [thing] if isinstance(thing, Object | Pod) else self._read(thing).objects.values()
            for item in items:
                if isinstance(item, Pod) and not item.node_name:
                    self._pending[item.key] = item
                else:
                    self.cluster.apply(item)
                if isinstance(item, Pod) and self._planner is not None:
                    self._planner.followers.tell(item)
        return self

    def delete(self, pod: str, namespace: str = "default") -> PolicyCluster:
        """Delete a pod: a running one, a pending one, or one that a `permit` holds."""
        key = f"{namespace}/{pod}"
        known = {each.key: each for each in (*self._pending.values(), *self.cluster.pods())}
        if key not in known:
            raise InputError(f"pod {key} not found in this cluster")
        found = known[key]
        if (held := self._held.get(found.uid)) is not None:
            held.reject("", "removed")
        self._pending.pop(key, None)
        self.cluster.remove_pod(found)
        self.planner.followers.tell(found, is_gone=True)
        return self

    def not_served(self, kind: type[CustomResource]) -> PolicyCluster:
        """Behave as if the kind's CustomResourceDefinition were not installed."""
        self.cluster.watched(kind).is_served = False
        return self

    def instance(self, plugin: type[Plugin] | str) -> Any:
        """The instance of a plugin in this cluster, to set what its `run` would have learned."""
        name = plugin if isinstance(plugin, str) else plugin.__name__
        return next(
            profile.plugins[name] for profile in self.planner.profiles.values() if name in profile.plugins
        )

    def place(self, pod: Pod | Plain | str, **words: object) -> Outcome:
        """Decide the pod, let plugins reserve and permit it, and count it as placed for the pods after it."""
        found = self._pod(pod, words)
        self._pending[found.key] = found
        self.planner.followers.tell(found)
        outcome = self.decide(found)
        decision = outcome.decision
        if outcome.held_back is not None:
            return outcome
        if decision.chosen is not None:
            outcome.stopped, outcome.held = self._reserve_and_permit(decision, decision.chosen)
        else:
            self.planner.carry_out(decision)
        return outcome

    def decide(self, pod: Pod | Plain | str, **words: object) -> Outcome:
        """Decide a pod, from `pre_enqueue` to `normalize_score`: a Pod, a manifest, the name of one that was
        added, or a name with the parameters of `a_pod`."""
        found = self._pod(pod, words)
        profile = self.planner.profile_of(found)
        decision = self.planner.decide(found)
        held_back = run_pre_enqueue(profile, found)
        return Outcome(
            explain_decision(
                decision,
                self.cluster.nodes,
                profile.scheduler_name,
                held_back=held_back,
                plugins=profile.plugins,
            )
        )

    @property
    def planner(self) -> Planner:
        """The engine, built when it is first needed."""
        if self._planner is None:
            registry = Registry.installed(self._plugin_dirs, self._classes)
            config = load(self._plain_config() if self._config is None else self._config, registry).config
            self._planner = Planner(
                self.cluster,
                config,
                registry=registry,
                now=lambda: self.clock,
                waiting_pods=_Values(self._held),
                pending_pods=self._pending.values,
            )
        return self._planner

    def _reserve_and_permit(self, decision: Decision, node_name: str) -> tuple[Status | None, HeldPod | None]:
        """What stops the pod after its node was chosen, or holds it."""
        profile = self.planner.profile_of(decision.pod)
        self.planner.nominations.remove(decision.pod)
        placed = self.cluster.assume_pod(decision.pod, node_name)
        timeouts: dict[str, float] = {}
        assert decision.state is not None
        for point in ("reserve", "permit"):
            for name, plugin in profile.at(point):
                ask = plugin.reserve if point == "reserve" else plugin.permit
                call = partial(ask, seal_state(plugin, decision.state), placed, node_name)
                status = ask_plugin(profile, name, point, call, placed, node_name)
                if status is not None and status.code is Code.WAIT:
                    timeouts[name] = self.clock + status.timeout
                elif status is not None:
                    self._undo(decision, placed, node_name)
                    return status, None
        if not timeouts:
            self._bind(decision, placed)
            return None, None

        def on_end(rejection: Status | None) -> None:
            self._held.pop(placed.uid, None)
            if rejection is None:
                self._bind(decision, placed)
            else:
                self._undo(decision, placed, node_name)

        self._held[placed.uid] = HeldPod(placed, timeouts, on_end, self.clock)
        return None, self._held[placed.uid]

    def _bind(self, decision: Decision, placed: Pod) -> None:
        self.planner.assume_written(decision)
        self.cluster.add_pod(placed)
        self._pending.pop(placed.key, None)
        self.planner.followers.tell(placed)

    def _undo(self, decision: Decision, placed: Pod, node_name: str) -> None:
        """Take back what was reserved."""
        profile = self.planner.profile_of(placed)
        assert decision.state is not None
        for name, plugin in reversed(profile.at("reserve")):
            if overrides(plugin, "unreserve"):
                try:
                    unreserve: Callable[..., object] = plugin.unreserve  # whatever its annotation says
                    with profile.observer.calling("Unreserve", plugin):
                        nothing_of(
                            "unreserve", unreserve(seal_state(plugin, decision.state), placed, node_name)
                        )
                except BaseException as error:
                    raise plugin_error(
                        f'running Unreserve plugin "{name}"', error, placed, method=(plugin, "unreserve")
                    ) from error
        self.cluster.forget_pod(placed)

    def _plain_config(self) -> Plain:
        multi_point = {"enabled": self._enabled, "disabled": self._disabled}
        profile = {"plugins": {"multiPoint": multi_point}, "pluginConfig": self._args}
        return {"apiVersion": V1, "kind": KIND, "profiles": [profile]}

    def _pod(self, pod: Pod | Plain | str, words: Mapping[str, Any]) -> Pod:
        if isinstance(pod, Pod):
            return pod
        if isinstance(pod, str):
            known = {each.name: each for each in self._pending.values()}
            return a_pod(pod, **words) if words or pod not in known else known[pod]
        (found,) = self._read(pod).pods.values()
        return found

    def _read(self, thing: Plain | Path) -> Manifests:
        """What manifests show, with the defaults that an API server fills in."""
        profiles = self.planner.profiles.values()
        kinds = watched_kinds(type(plugin) for profile in profiles for plugin in profile.plugins.values())
        if isinstance(thing, Path):
            manifests = read([str(thing)], io.BytesIO(), kinds=kinds)
        else:
            manifests = Manifests(kinds=kinds)
            manifests.add([Found("", "", thing)])
        for fault in manifests.faults:
            raise fault
        return manifests


class _Values:
    """The values that a dictionary has at the time."""

    def __init__(self, found: dict[str, HeldPod]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[HeldPod]:
        return iter(tuple(self._found.values()))


_numbers = count(1)


def a_node(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "8Gi",
    pods: str = "110",
    resources: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Iterable[str] = (),
    unschedulable: bool = False,
) -> NodeObject:
    """A node. `resources` are further ones, such as GPUs; a taint is `key=value:effect` or `key:effect`."""
    plain = {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {"taints": [_taint(taint) for taint in taints], "unschedulable": unschedulable},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **(resources or {})}},
    }
    return decode(NodeObject, plain)


def a_pod(
    name: str = "pod",
    *,
    namespace: str = "default",
    cpu: str = "",
    memory: str = "",
    resources: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    tolerations: Iterable[str] = (),
    node: str = "",
    **spec: object,
) -> Pod:
    """A pod of one container; on `node`, if that is given. A toleration is a key, or `*` for every taint.

    Other fields of the spec go by their names in manifests: `priority=10`, `nodeSelector={…}`.
    """
    asked = {"cpu": cpu, "memory": memory, **(resources or {})}
    requests = {resource: amount for resource, amount in asked.items() if amount}
    plain = {
        "containers": [{"name": "main", "image": "main", "resources": {"requests": requests}}],
        "tolerations": [{"operator": "Exists", "key": "" if key == "*" else key} for key in tolerations],
        "nodeName": node,
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{name}-{next(_numbers)}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    return Pod.decode({"metadata": metadata, "spec": plain | spec, "status": {}})


def _taint(text: str) -> dict[str, str]:
    key_value, _, effect = text.rpartition(":")
    key, _, value = key_value.partition("=")
    return {"key": key, "value": value, "effect": effect}
