"""A cluster for tests of policies, built from plain words, from manifests, or from both."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stowplan.api.custom import CustomResource
from stowplan.api.manifests import Found, Manifests, read
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.config.types import V1
from stowplan.cycle import Planner
from stowplan.cycle.planner import run_pre_enqueue
from stowplan.errors import InputError
from stowplan.explain.report import explain_decision
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import watched_kinds
from stowplan.testing.objects import a_node, a_pod
from stowplan.testing.outcome import Outcome

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
        self.clock = 0.0
        """What `handle.now()` says, in seconds."""
        self._config = config
        self._plugin_dirs = [plugin_dir] if plugin_dir else []
        self._classes: dict[str, type[Plugin]] = {}
        self._enabled: list[Plain] = []
        self._disabled: list[Plain] = []
        self._args: list[Plain] = []
        self._pending: dict[str, Pod] = {}
        self._planner: Planner | None = None

    def plugin(
        self, plugin: type[Plugin] | str, *, weight: int = 1, args: Mapping[str, Any] | None = None
    ) -> PolicyCluster:
        """Adds a plugin to the default ones; `args` as `pluginConfig` would spell them."""
        if self._config is not None:
            raise InputError("the cluster has a configuration: name its plugins there")
        name = plugin if isinstance(plugin, str) else plugin.__name__
        if isinstance(plugin, type):
            self._classes[name] = plugin
        self._enabled.append({"name": name, "weight": weight})
        if args is not None:
            self._args.append({"name": name, "args": dict(args)})
        self._planner = None
        return self

    def without(self, *plugins: str) -> PolicyCluster:
        """Leaves default plugins out, such as a score that is not what the test is about."""
        self._disabled += [{"name": name} for name in plugins]
        self._planner = None
        return self

    def node(self, name: str, **words: Any) -> PolicyCluster:
        """Adds a node, in the words of `a_node`."""
        return self.add(a_node(name, **words))

    def pod(self, name: str, node: str, **words: Any) -> PolicyCluster:
        """Adds a pod that runs on a node, in the words of `a_pod`."""
        return self.add(a_pod(name, node=node, **words))

    def add(self, *things: Object | Pod | Plain | Path) -> PolicyCluster:
        """Adds objects: structs, custom ones too, plain data, or files and folders of manifests.

        A pod without a node waits for `place` or `decide` to name it.
        """
        for thing in things:
            items = [thing] if isinstance(thing, Object | Pod) else self._read(thing).objects.values()
            for item in items:
                if isinstance(item, Pod) and not item.node_name:
                    self._pending[item.name] = item
                else:
                    self.cluster.apply(item)
        return self

    def not_served(self, kind: type[CustomResource]) -> PolicyCluster:
        """As if the kind's CustomResourceDefinition were not installed."""
        self.cluster.watched(kind).is_served = False
        return self

    def instance(self, plugin: type[Plugin] | str) -> Any:
        """The plugin that runs here, to give it what its `run` would have found out."""
        name = plugin if isinstance(plugin, str) else plugin.__name__
        return next(
            profile.plugins[name] for profile in self.planner.profiles.values() if name in profile.plugins
        )

    def place(self, pod: Pod | Plain | str, **words: Any) -> Outcome:
        """Decides the pod and counts it as placed, for the pods after it."""
        outcome = self.decide(pod, **words)
        if outcome.held_back is None:
            self.planner.carry_out(outcome.decision)
        return outcome

    def decide(self, pod: Pod | Plain | str, **words: Any) -> Outcome:
        """What becomes of a pod: a Pod, a manifest, the name of one that was added, or words for `a_pod`."""
        found = self._pod(pod, words)
        profile = self.planner.profile_of(found)
        decision = self.planner.decide(found)
        held_back = run_pre_enqueue(profile, found)
        nodes = self.cluster.nodes
        return Outcome(explain_decision(decision, nodes, profile.scheduler_name, held_back=held_back))

    @property
    def planner(self) -> Planner:
        """The engine, built when it is first needed."""
        if self._planner is None:
            registry = Registry.installed(self._plugin_dirs, self._classes)
            config = load(self._plain_config() if self._config is None else self._config, registry).config
            self._planner = Planner(self.cluster, config, registry=registry, now=lambda: self.clock)
        return self._planner

    def _plain_config(self) -> Plain:
        multi_point = {"enabled": self._enabled, "disabled": self._disabled}
        profile = {"plugins": {"multiPoint": multi_point}, "pluginConfig": self._args}
        return {"apiVersion": V1, "kind": KIND, "profiles": [profile]}

    def _pod(self, pod: Pod | Plain | str, words: Mapping[str, Any]) -> Pod:
        if isinstance(pod, Pod):
            return pod
        if isinstance(pod, str):
            return a_pod(pod, **words) if words or pod not in self._pending else self._pending[pod]
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
