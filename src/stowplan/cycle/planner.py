"""A cluster and the profiles of a configuration, deciding pods one after another: an engine without host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from stowplan.api.groups import GroupKey
from stowplan.api.manifests import Manifests
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.cycle.cross_node import preempt_across
from stowplan.cycle.group import GroupDecision, Result, in_order, needed_count, try_group
from stowplan.cycle.group_trial import GroupHost
from stowplan.cycle.preempt import preempt
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import TieBreak, first_by_name, schedule
from stowplan.errors import InputError
from stowplan.framework.answers import plugin_error, status_of
from stowplan.framework.decision import Decision
from stowplan.framework.handle import Handle, Nominations, PodFollowers, WaitingPod
from stowplan.framework.observer import OFFLINE_GUARD, UNOBSERVED, Observer
from stowplan.framework.plugin import ReservingPlugin, is_trusted
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.framework.status import Code, Status

DEFAULT_CONFIG = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class Planner:
    def __init__(
        self,
        cluster: Cluster,
        config: KubeSchedulerConfiguration | None = None,
        *,
        registry: Registry | None = None,
        tie_break: TieBreak = first_by_name,
        now: Callable[[], float] = time.time,
        waiting_pods: Iterable[WaitingPod] = (),
        pending_pods: Callable[[], Iterable[Pod]] = tuple,
        observer: Observer = OFFLINE_GUARD,
    ) -> None:
        self.cluster, self.tie_break = cluster, tie_break
        self.nominations = Nominations()
        registry = registry or Registry.installed()
        resolved = resolve_profiles(config or load(DEFAULT_CONFIG, registry).config, registry)
        self.profiles: dict[str, Profile] = {}
        for each in resolved:
            handle = Handle(
                cluster,
                now=now,
                nominations=self.nominations,
                waiting_pods=waiting_pods,
                pending_pods=pending_pods,
            )
            # Nothing is observed where nothing can hang, so that it costs nothing.
            watches = observer if not all(map(is_trusted, each.classes.values())) else UNOBSERVED
            profile = self.profiles[each.scheduler_name] = Profile(each, handle, observer=watches)
            handle.preempt = partial(preempt, profile)
            handle.preempt_across = partial(preempt_across, profile)
            handle.scheduler_names = self.profiles.keys()
        self.followers = PodFollowers(observer)
        """The plugins that follow pods. Tell them of changes other than those by `carry_out`."""
        plugins = [plugin for profile in self.profiles.values() for plugin in profile.plugins.values()]
        self.followers.take_plugins(plugins, lambda: (*cluster.pods(), *pending_pods()))
        self._sampling = Sampling.of(
            {name: profile.percentage_of_nodes_to_score for name, profile in self.profiles.items()}
        )

    def profile_of(self, pod: Pod) -> Profile:
        found = self.profiles.get(pod.scheduler_name)
        if found is None:
            known = ", ".join(self.profiles)
            raise InputError(
                f"no profile has the name {pod.scheduler_name!r}, there is {known}",
                what=f"Pod {pod.key}",
                field="spec.schedulerName",
            )
        return found

    def decide(self, pod: Pod) -> Decision:
        """What kube-scheduler would do with the pod now. Nothing changes."""
        profile = self.profile_of(pod)
        sampling = self._sampling.get(profile.scheduler_name)
        return schedule(profile, pod, self.cluster.nodes, self.tie_break, sampling)

    def expect(self, pods: Iterable[Pod]) -> None:
        """Count pods that are to be decided as members of their groups, if a profile reads groups."""
        for pod in pods if self.cluster.groups.families else ():
            self.followers.tell(pod)

    def group_of(self, pod: Pod) -> GroupKey | None:
        """The group with which the pod is decided; None for a pod that is decided alone."""
        return self.cluster.group_of(pod)

    def decide_group(self, key: GroupKey, pods: Iterable[Pod]) -> GroupDecision:
        """Decide pending members of a group as one. Nothing changes."""
        groups, pods = self.cluster.groups, in_order(pods)
        group, profile = groups.find(key), self.profile_of(pods[0])
        if group is None:
            raise InputError("no such group", what=f"PodGroup {key}")
        host = GroupHost(
            profile, group, self.cluster, self.tie_break, self._sampling.get(profile.scheduler_name)
        )
        placed = groups.placed(key)
        needed = needed_count(group, len(placed), groups.succeeded(key), len(pods))
        return try_group(host, group, pods, placed, needed)

    def carry_out_group(self, found: GroupDecision) -> None:
        """Place the members that fit, and remove the victims at once."""
        if found.result not in (Result.SCHEDULED, Result.WAITING):
            return
        for victim in found.victims:
            self.cluster.remove_pod(victim)
            self.followers.tell(victim, is_gone=True)
        for member in found.members:
            if member.node_name:
                self.nominations.remove(member.pod)
                self.followers.tell(self.cluster.assume_pod(member.pod, member.node_name))

    def keep_nominations(self, pods: Iterable[Pod]) -> None:
        """Reserve capacity for pods that are nominated to a node and not bound yet."""
        for pod in pods:
            if pod.nominated_node_name and not pod.node_name and not pod.is_finished:
                self.nominations.put(pod, pod.nominated_node_name)

    def reservations(self, decision: Decision) -> dict[str, dict[str, object]]:
        """What plugins would reserve on each feasible node, by the name that they give it."""
        found: dict[str, dict[str, object]] = {}
        names = [decision.names[row] for row in decision.feasible.tolist()]
        for _, plugin in self.profile_of(decision.pod).at("reserve"):
            if isinstance(plugin, ReservingPlugin) and decision.state is not None:
                state = decision.state
                answers = {name: plugin.reservation(state, name) for name in names}
                if by_node := {name: answer for name, answer in answers.items() if answer}:
                    found[plugin.reservation_name or plugin.name] = by_node
        return found

    def assume_written(self, decision: Decision) -> None:
        """Count what plugins have reserved on the chosen node as written, for the pods decided next."""
        for _, plugin in self.profile_of(decision.pod).at("reserve"):
            if isinstance(plugin, ReservingPlugin) and decision.state is not None and decision.chosen:
                plugin.assume_written(decision.state, decision.pod, decision.chosen)

    def carry_out(self, decision: Decision) -> None:
        """Place the pod on the chosen node and remove its victims at once."""
        for victim in decision.victims:
            self.cluster.remove_pod(victim)
            self.followers.tell(victim, is_gone=True)
        node_name = decision.chosen or decision.nominated
        if node_name is not None:
            self.nominations.remove(decision.pod)
            self.followers.tell(self.cluster.assume_pod(decision.pod, node_name))


def build_cluster(manifests: Manifests) -> Cluster:
    """A cluster with the objects of the manifests, for the caller to change."""
    follower, manifests.follower = manifests.follower, None
    cluster = follower if isinstance(follower, Cluster) else Cluster.of(manifests.objects.values())
    for kind in manifests.unserved:
        cluster.watched(kind).is_served = False
    return cluster


def error_in(decision: Decision) -> str:
    """The error that a plugin raised, or an empty string."""
    after = decision.post_filter
    # parity: an error that post_filter returns is part of the answer, one that it raises is not
    if after is not None and after.was_raised:
        return after.message
    return decision.error or ""


def run_pre_enqueue(profile: Profile, pod: Pod) -> Status | None:
    """The status of the plugin that keeps the pod out of the queue, or fails; None if there is none."""
    for name, plugin in profile.at("preEnqueue"):
        status = ask_plugin(profile, name, "pre_enqueue", partial(plugin.pre_enqueue, pod), pod)
        if status is not None:
            return status
    return None


def ask_plugin(
    profile: Profile, name: str, method: str, ask: Callable[[], object], pod: Pod, node_name: str = ""
) -> Status | None:
    """The status that a method outside the cycle returns; an error if it raises or returns nonsense."""
    point = "".join(word.capitalize() for word in method.split("_"))
    doing, plugin = f'running {point} plugin "{name}"', profile.plugins[name]
    try:
        with profile.observer.calling(point, plugin):
            status = status_of(method, ask())
    except BaseException as error:
        failed = plugin_error(doing, error, pod, node_name, method=(plugin, method))
        return Status.error(str(failed), failed.stack).by(name)
    if status is not None and status.code is Code.ERROR:
        status = Status.error(f"{doing}: {status.message}")
    return None if status is None else status.by(name)
