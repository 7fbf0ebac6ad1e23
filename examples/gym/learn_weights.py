"""Learn score weights with the cross-entropy method, on a trace where spreading pods is a bad idea.

    python examples/gym/learn_weights.py [SEED]

Small pods arrive first and large ones, which need a whole node, after them. The default profile spreads the
small ones, so that the large ones wait. An episode is one replay with one vector of weights; its reward is
minus the time that pods were pending. What was learned is then measured on another trace.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from numpy.typing import NDArray

from stowplan.gym import ENVIRONMENT, PendingTime, ReplayEnv
from stowplan.replay import Event, Trace
from stowplan.replay.trace import event_of

GENERATIONS, POPULATION, ELITE = 3, 6, 2
WHOLE_EPISODE = 1_000_000


def make_node(name: str) -> Event:
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
    return event_of(
        0, "add", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
    )


def make_pod(time: float, name: str, cpu: int, seconds: float) -> Event:
    requests = {"cpu": str(cpu), "memory": f"{cpu}Gi"}
    containers = [{"name": "main", "image": "web", "resources": {"requests": requests}}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}
    return event_of(time, "add", pod, run_seconds=seconds)


def make_trace(generator: np.random.Generator, rounds: int = 3) -> Trace:
    events = [make_node(f"node-{number}") for number in range(4)]
    for number in range(rounds):
        start = 200.0 * number
        small, large = int(generator.integers(3, 5)), 3
        events += [make_pod(start + each, f"small-{number}-{each}", 1, 150) for each in range(small)]
        events += [make_pod(start + 10 + each, f"large-{number}-{each}", 4, 60) for each in range(large)]
    return Trace(events, "made-up")


def pending_seconds(trace: Trace, action: NDArray[np.float32] | None) -> float:
    """How long pods wait with these weights; without an action, with those of the default profile."""
    env = ReplayEnv(trace, action="weights", decisions_per_step=WHOLE_EPISODE)
    env.reset()
    _, reward, *_ = env.step(env.default_action if action is None else action)
    env.close()
    return abs(reward)


def learn(trace: Trace, generator: np.random.Generator) -> NDArray[np.float32]:
    envs = gymnasium.make_vec(
        ENVIRONMENT,
        num_envs=POPULATION,
        vectorization_mode="sync",
        trace=trace,
        action="weights",
        reward=PendingTime(),
        decisions_per_step=WHOLE_EPISODE,
    )
    count = envs.single_action_space.shape[0]
    mean, spread = np.zeros(count), np.full(count, 0.4)
    for generation in range(GENERATIONS):
        drawn = generator.normal(mean, spread, (POPULATION, count))
        envs.reset()
        # A negative number turns a score off.
        _, rewards, *_ = envs.step(np.clip(drawn, 0, 1).astype(np.float32))
        best = drawn[np.argsort(-rewards, kind="stable")[:ELITE]]
        mean, spread = best.mean(axis=0), best.std(axis=0) + 0.02
        print(f"generation {generation + 1}: {abs(rewards.mean()):.0f} pod-seconds pending in the mean")
    envs.close()
    return np.clip(mean, 0, 1).astype(np.float32)


def main() -> None:
    generator = np.random.default_rng(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    action = learn(make_trace(generator), generator)
    other = make_trace(generator)
    env = ReplayEnv(other, action="weights")
    weights = np.rint(action * env.max_weight)
    print(
        "weights:",
        ", ".join(f"{name} {each:.0f}" for name, each in zip(env.score_names, weights, strict=True)),
    )
    env.close()
    print(f"default profile: {pending_seconds(other, None):.0f} pod-seconds pending on another trace")
    print(f"learned profile: {pending_seconds(other, action):.0f} pod-seconds pending on another trace")


if __name__ == "__main__":
    main()
