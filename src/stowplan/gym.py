"""A Gymnasium environment over the replay: an agent chooses nodes, or the weights of the scores.

The scheduler is the one of the replay, with its queue, filters and preemption. It pauses before each
decision between several feasible nodes, and the agent makes it. Pods of groups and pods with one feasible
node are decided without the agent."""

from __future__ import annotations

import asyncio
import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan import log
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.cycle.planner import DEFAULT_CONFIG
from stowplan.cycle.schedule import TieBreak, first_by_name, schedule
from stowplan.errors import InputError, missing_extra
from stowplan.framework.registry import Registry
from stowplan.queue.waiting import QueuedPod
from stowplan.replay.engine import Replay, ReplayOptions, VirtualLoop
from stowplan.replay.readers import read_trace
from stowplan.replay.results import Results, Sample, Samples
from stowplan.replay.trace import Trace

try:
    import gymnasium
    from gymnasium import spaces
except ImportError:
    raise missing_extra("stowplan.gym", "gymnasium", "gym") from None

ENVIRONMENT = "stowplan/Replay-v0"
MAX_WEIGHT = 10
"""The highest weight that an action gives, unless the configuration has a higher one."""
Observation = dict[str, NDArray[Any]]
Action = Literal["node", "weights"]
T = TypeVar("T")


class Reward:
    """The reward of a step. Subclasses override `__call__`, and `reset` if they keep state."""

    def reset(self, env: ReplayEnv) -> None:
        """An episode begins."""

    def __call__(self, env: ReplayEnv) -> float:
        """The reward for what happened since the last call, or since `reset`."""
        raise NotImplementedError


class PendingTime(Reward):
    """Minus the time that pods waited for a node, in pod-seconds divided by `scale`."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self._before = scale, 0.0

    def reset(self, env: ReplayEnv) -> None:
        self._before = env.samples.pending_seconds

    def __call__(self, env: ReplayEnv) -> float:
        passed, self._before = env.samples.pending_seconds - self._before, env.samples.pending_seconds
        return -passed / self.scale


class AllocatedTime(Reward):
    """The allocated share of a resource, integrated over time in seconds and divided by `scale`."""

    def __init__(self, resource: str = "cpu", scale: float = 1.0) -> None:
        self.resource, self.scale, self._before = resource, scale, 0.0

    def _total(self, env: ReplayEnv) -> float:
        return env.samples.allocated_seconds.get(self.resource, 0.0)

    def reset(self, env: ReplayEnv) -> None:
        self._before = self._total(env)

    def __call__(self, env: ReplayEnv) -> float:
        before, self._before = self._before, self._total(env)
        return (self._before - before) / self.scale


class SampleChange(Reward):
    """Minus the change of a measure of the cluster; the rewards of an episode add up to its total change."""

    def __init__(self) -> None:
        self._before = 0.0

    def measure(self, sample: Sample) -> float:
        raise NotImplementedError

    def reset(self, env: ReplayEnv) -> None:
        self._before = self.measure(env.sample())

    def __call__(self, env: ReplayEnv) -> float:
        before, self._before = self._before, self.measure(env.sample())
        return before - self._before


class Fragmentation(SampleChange):
    """Minus the change of the share of the free amount that pods of the trace's shapes cannot use."""

    def __init__(self, resource: str = "cpu") -> None:
        super().__init__()
        self.resource = resource

    def measure(self, sample: Sample) -> float:
        return sample.fragmented.get(self.resource, 0.0)


class NodesUsed(SampleChange):
    """Minus the change of the number of nodes with pods."""

    def measure(self, sample: Sample) -> float:
        return float(sample.nodes_used)


class WeightedSum(Reward):
    """Several rewards, each with a weight."""

    def __init__(self, rewards: Sequence[tuple[float, Reward]]) -> None:
        self.rewards = list(rewards)

    def reset(self, env: ReplayEnv) -> None:
        for _, each in self.rewards:
            each.reset(env)

    def __call__(self, env: ReplayEnv) -> float:
        return sum(weight * each(env) for weight, each in self.rewards)


class ReplayEnv(gymnasium.Env[Observation, Any]):
    """One episode is one replay of the trace.

    The observation has a row for each node of the trace, in order of their names:

    - `nodes`: for each resource the allocated share and the free amount as a share of the largest node,
      then the score that the profile gives to the node for this pod, then whether the node exists;
    - `pod`: for each resource the request as a share of the largest node, then t / (t + 60) for the seconds
      it has waited, then n / (n + 1) for its n failed attempts;
    - `action_mask`: 1 for the nodes that are feasible.

    With `action="node"` the action is the row of a node. If that is not feasible, the step earns
    `infeasible_reward` on top and the scheduler chooses. With `action="weights"` it is a number from 0 to 1
    for each score of the profile, as listed in `score_names`: its weight as a share of `max_weight`. The
    weights apply to this and all following decisions; the next step comes after `decisions_per_step` of them.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        trace: Trace | Path | str,
        *,
        config: KubeSchedulerConfiguration | Path | str | None = None,
        action: Action = "node",
        reward: Reward | None = None,
        decisions_per_step: int = 1,
        infeasible_reward: float = -1.0,
        resources: Sequence[str] = ("cpu", "memory"),
        options: ReplayOptions | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.trace = trace if isinstance(trace, Trace) else _read(Path(trace))
        self.registry = registry or Registry.installed()
        if not isinstance(config, KubeSchedulerConfiguration):
            config = load(DEFAULT_CONFIG if config is None else Path(config), self.registry).config
        # A sample of the nodes would make the mask a matter of luck.
        profiles = tuple(
            msgspec.structs.replace(each, percentage_of_nodes_to_score=100) for each in config.profiles
        )
        self.config = msgspec.structs.replace(config, profiles=profiles)
        self.action, self.options = action, options or ReplayOptions()
        # Rewards keep what they saw last, so environments that are made alike must not share one.
        self.reward = PendingTime() if reward is None else copy.deepcopy(reward)
        self.decisions_per_step, self.infeasible_reward = decisions_per_step, infeasible_reward
        self.resources = tuple(resources)
        self.node_names = sorted({event.name for event in self.trace.events if event.kind == "Node"})
        if not self.node_names:
            raise InputError("has no nodes", where=self.trace.source)
        self._rows = {name: row for row, name in enumerate(self.node_names)}
        self._runner: asyncio.Runner | None = None
        self._replay: _PausedReplay
        self._start()  # the profile says which scores there are
        scores = self._replay.profile.scores
        self.score_names = [step.name for step in scores]
        self.max_weight = max([MAX_WEIGHT, *(step.weight for step in scores)])
        self.default_action = np.array([step.weight for step in scores], np.float32) / self.max_weight
        """The weights of the configuration, as an action."""
        self._largest = _largest_amounts(self.trace, self.resources)
        count, columns = len(self.node_names), 2 * len(self.resources) + 2
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {
                "nodes": spaces.Box(0, 1, (count, columns), np.float32),
                "pod": spaces.Box(0, 1, (len(self.resources) + 2,), np.float32),
                "action_mask": spaces.MultiBinary(count),
            }
        )
        if action == "node":
            self.action_space: spaces.Space[Any] = spaces.Discrete(count)
        elif action == "weights":
            self.action_space = spaces.Box(0, 1, (len(self.score_names),), np.float32)
        else:
            raise ValueError(f"action is {action!r}; expected 'node' or 'weights'")

    # What rewards and agents may look at

    @property
    def time(self) -> float:
        return self._replay.time

    @property
    def samples(self) -> Samples:
        return self._replay.samples

    @property
    def results(self) -> Results:
        """The results so far; its pods and means are there once the episode is over."""
        return self._replay.results

    def sample(self) -> Sample:
        """The cluster as it is now."""
        return self.samples.measure(self.time)

    def action_masks(self) -> NDArray[np.bool_]:
        """The feasible nodes, by the name under which sb3-contrib looks for them."""
        return self._mask().astype(np.bool_)

    # Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        """Begin at the start of the trace. A seed makes the scheduler draw among equally good nodes."""
        super().reset(seed=seed)
        self._start(seed)
        self._advance()
        if self._replay.queued is None:
            text = "never leaves a choice: no pod has more than one feasible node"
            raise InputError(text, where=self.trace.source)
        self.reward.reset(self)
        return self._observe(), self._info()

    def step(self, action: object) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        replay, is_feasible = self._replay, True
        if self._runner is None or replay.queued is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        if self.action == "weights":
            replay.profile.set_weights(self._weights(action))
        else:
            row = replay.nodes.row_of(self._node_name(action))
            is_feasible = row is not None and row in replay.feasible
            replay.choice = row if is_feasible else None
        for _ in range(self.decisions_per_step if self.action == "weights" else 1):
            self._advance()
            if replay.queued is None:
                break
        reward = float(self.reward(self) + (0.0 if is_feasible else self.infeasible_reward))
        info, is_over = self._info(), replay.queued is None
        info["is_feasible"] = is_feasible
        if is_over:
            info["metrics"] = replay.results.metrics()
        return self._observe(), reward, is_over, False, info

    def close(self) -> None:
        if self._runner is not None:
            with log.only_warnings():
                _outside_loop(self._runner.close)
            self._runner = None

    def _node_name(self, action: Any) -> str:
        count = len(self.node_names)
        try:
            row = operator.index(action.item() if isinstance(action, np.ndarray) else action)
        except (TypeError, ValueError):
            row = -1
        if not 0 <= row < count:
            raise ValueError(f"action is {action!r}; expected the row of a node, from 0 to {count - 1}")
        return self.node_names[row]

    def _weights(self, action: object) -> list[int]:
        count = len(self.score_names)
        try:
            shares = np.asarray(action, np.float64)
        except (TypeError, ValueError):
            shares = np.full(count, np.nan)
        if shares.shape != (count,) or not ((shares >= 0) & (shares <= 1)).all():
            text = f"expected {count} numbers from 0 to 1, one for each of score_names"
            raise ValueError(f"action is {action!r}; {text}")
        return [round(share) for share in (shares * self.max_weight).tolist()]

    # The replay

    def _start(self, seed: int | None = None) -> None:
        self.close()
        options = self.options if seed is None else msgspec.structs.replace(self.options, seed=seed)
        self._runner = runner = asyncio.Runner(loop_factory=partial(VirtualLoop, self.trace.start))
        self._replay = _outside_loop(lambda: runner.run(self._make(options)))

    async def _make(self, options: ReplayOptions) -> _PausedReplay:
        return _PausedReplay(self.trace, self.config, self.registry, options)

    def _advance(self) -> None:
        """Run until the next decision of the agent, or to the end."""
        runner, replay = self._runner, self._replay
        assert runner is not None
        with log.only_warnings():
            _outside_loop(lambda: runner.run(replay.advance()))

    def _mask(self) -> NDArray[np.int8]:
        mask = np.zeros(len(self.node_names), np.int8)
        mask[self._places(self._replay.feasible)] = 1
        return mask

    def _places(self, rows: Rows) -> list[int]:
        names = self._replay.nodes.names
        return [self._rows[names[row]] for row in rows.tolist()]

    def _observe(self) -> Observation:
        replay, nodes = self._replay, self._replay.nodes
        places = self._places(nodes.rows)
        table = np.zeros((len(self.node_names), 2 * len(self.resources) + 2), np.float32)
        pod = np.zeros(len(self.resources) + 2, np.float32)
        for column, resource in enumerate(self.resources):
            largest = self._largest[resource]
            if resource in nodes.allocatable:
                capacity, requested = nodes.allocatable[resource], nodes.requested[resource]
                table[places, 2 * column] = requested / np.maximum(capacity, 1)
                table[places, 2 * column + 1] = (capacity - requested) / largest
            if replay.queued is not None:
                pod[column] = replay.queued.pod.requests.get(resource, 0) / largest
        if replay.queued is not None:
            table[self._places(replay.feasible), -2] = replay.scores
            waited = max(self.time - (replay.arrived_at(replay.queued.pod)), 0.0)
            pod[-2], pod[-1] = waited / (waited + 60), 1 - 1 / max(replay.queued.attempts, 1)
        table[places, -1] = 1
        return {
            "nodes": np.clip(table, 0, 1),
            "pod": np.clip(pod, 0, 1),
            "action_mask": self._mask(),
        }

    def _info(self) -> dict[str, object]:
        queued = self._replay.queued
        return {"time": self.time, "pod": "" if queued is None else queued.pod.key}


class _PausedReplay(Replay):
    """A replay that waits before decisions."""

    queued: QueuedPod | None = None
    """The pod that is to be decided; None at the end."""
    choice: int | None = None
    """The row that the agent chose."""
    feasible: Rows = np.zeros(0, np.intp)
    scores: NDArray[np.float32] = np.zeros(0, np.float32)
    """The totals of the feasible nodes, from 0 for the lowest to 1 for the highest."""
    _task: asyncio.Task[Results] | None = None
    _paused: asyncio.Future[None]
    _resumed: asyncio.Future[None]

    @property
    def nodes(self) -> LiveNodeTable:
        return self._cluster.nodes

    @property
    def time(self) -> float:
        return self._loop.time()

    @property
    def profile(self) -> Any:
        """The profile that actions change: the first."""
        return next(iter(self.scheduler.profiles.values()))

    def arrived_at(self, pod: Pod) -> float:
        return self._by_id[pod.uid].arrived

    async def advance(self) -> None:
        self.queued, self._paused = None, self._loop.create_future()
        if self._task is None:
            self._task = self._loop.create_task(self.run(lambda done, total: None))
        else:
            self._resumed.set_result(None)
        await asyncio.wait((self._task, self._paused), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
            self.feasible = np.zeros(0, np.intp)

    async def before_decision(self, queued: QueuedPod) -> None:
        self.choice, pod = None, queued.pod
        profile = self.scheduler.profiles.get(pod.scheduler_name)
        if profile is None or pod.is_terminating or self._cluster.group_of(pod) is not None:
            return
        decision = schedule(profile, pod, self.nodes, first_by_name, preempts=False)
        totals = decision.relative_totals
        if totals is None or len(decision.feasible) < 2:
            return
        self.feasible, lowest = decision.feasible, totals.min()
        self.scores = ((totals - lowest) / max(totals.max() - lowest, 1)).astype(np.float32)
        self.queued, self._resumed = queued, self._loop.create_future()
        self._paused.set_result(None)
        await self._resumed

    def _tie_break(self) -> TieBreak:
        plain = super()._tie_break()

        def choose(nodes: LiveNodeTable, feasible: Rows, totals: NDArray[Any]) -> int:
            if self.choice is not None:
                (places,) = (feasible == self.choice).nonzero()
                if len(places):
                    return int(places[0])
            return plain(nodes, feasible, totals)

        return choose


def _outside_loop(work: Callable[[], T]) -> T:
    """Call `work`, in another thread if this one runs an event loop, as that of a notebook does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def _read(file: Path) -> Trace:
    trace = read_trace(file)
    if trace.faults:
        raise trace.faults[0]
    return trace


def _largest_amounts(trace: Trace, resources: Sequence[str]) -> Mapping[str, float]:
    """The largest allocatable amount of a node, by resource."""
    found = dict.fromkeys(resources, 1.0)
    for event in trace.events:
        if event.kind == "Node" and event.verb != "delete":
            amounts = decode(NodeObject, bytes(event.object)).allocatable
            for name in resources:
                found[name] = max(found[name], amounts.get(name, 0))
    return found


gymnasium.register(ENVIRONMENT, entry_point="stowplan.gym:ReplayEnv", disable_env_checker=True)
