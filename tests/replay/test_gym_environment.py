"""The Gymnasium environment: Gymnasium's own checker, masks, rewards, vectors, and an agent that learns."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from small_trace import add, busy_trace, change, node, pod, trace_of

from stowplan.errors import InputError
from stowplan.gym import (
    ENVIRONMENT,
    AllocatedTime,
    Fragmentation,
    NodesUsed,
    PendingTime,
    ReplayEnv,
    WeightedSum,
)
from stowplan.replay import replay, write_trace

EXAMPLE = Path(__file__).parents[2] / "examples/gym/learn_weights.py"


@pytest.fixture
def make():
    made = []

    def make(trace, **more):
        made.append(ReplayEnv(trace, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def run(env, choose):
    """The whole episode: the sum of rewards, and the metrics."""
    return finish(env, choose, env.reset()[0])


def finish(env, choose, found):
    total, is_over = 0.0, False
    while not is_over:
        found, reward, is_over, _, info = env.step(choose(found))
        total += reward
    return total, info["metrics"]


def by_score(found):
    """What the scheduler itself would choose."""
    scores = np.where(found["action_mask"] == 1, found["nodes"][:, -2], -1)
    return int(scores.argmax())


def emptiest(found):
    return int(np.where(found["action_mask"] == 1, found["nodes"][:, 1], -1).argmax())


def fullest(found):
    return int(np.where(found["action_mask"] == 1, found["nodes"][:, 0], -1).argmax())


@pytest.mark.parametrize("action", ["node", "weights"])
def test_it_passes_the_checker_of_gymnasium(make, action):
    check_env(make(busy_trace(pods=10), action=action), skip_render_check=True)


def test_the_scores_lead_to_the_decisions_of_the_scheduler(make):
    trace = busy_trace(pods=25)
    env = make(trace)
    _, metrics = run(env, by_score)
    expected = replay(trace)
    assert env.results.placements == expected.placements
    assert metrics["waiting.p95"] == expected.metrics()["waiting.p95"]


def test_the_agent_decides(make):
    env = make(busy_trace(pods=20))
    _, spread = run(env, emptiest)
    _, packed = run(env, fullest)
    assert packed["nodes.used"] < spread["nodes.used"]


def test_only_feasible_nodes_are_in_the_mask(make):
    cordoned = node("c")
    cordoned["spec"] = {"unschedulable": True}
    late = node("d")
    env = make(
        trace_of(
            *(add(0, each) for each in (node("a"), node("b", "1"), node("b2", "3"), cordoned)),
            add(1, pod("first", "2")),
            add(2, late),
            add(3, pod("second", "500m")),
        )
    )
    found, info = env.reset()
    assert env.node_names == ["a", "b", "b2", "c", "d"]
    assert info["pod"] == "default/first"
    assert found["action_mask"].tolist() == [1, 0, 1, 0, 0]
    assert found["nodes"][:, -1].tolist() == [1, 1, 1, 1, 0]
    assert found["pod"][0] == 0.5
    found, _, _, _, info = env.step(0)
    assert info["pod"] == "default/second"
    assert found["nodes"][0, :2].tolist() == [0.5, 0.5]
    assert found["action_mask"].tolist() == [1, 1, 1, 0, 1]
    _, _, is_over, _, info = env.step(4)
    assert is_over
    assert env.results.placements == {"first": "a", "second": "d"}


@pytest.mark.parametrize("infeasible_reward", [-5.0, 0.0])
def test_an_action_that_is_not_feasible(make, infeasible_reward):
    env = make(
        trace_of(
            *(add(0, node(name, cpu)) for name, cpu in (("a", "4"), ("b", "1"), ("c", "4"))),
            add(1, pod("p", "2")),
        ),
        infeasible_reward=infeasible_reward,
    )
    env.reset()
    _, reward, _, _, info = env.step(1)
    assert reward == infeasible_reward
    assert not info["is_feasible"]
    assert env.results.placements == {"p": "a"}


@pytest.mark.parametrize("action", [-1, 5, 0.5, "a", float("nan"), None, [0, 1]])
def test_an_action_that_is_not_a_row(make, action):
    env = make(busy_trace(pods=5))
    env.reset()
    with pytest.raises(ValueError, match=r"expected the row of a node, from 0 to 4"):
        env.step(action)
    env.step(0)


@pytest.mark.parametrize("value", [[0.5, 0.5], 0.5, [float("nan")] * 9, [-0.1] * 9, [1.1] * 9, "heavy", None])
def test_an_action_that_is_not_weights(make, value):
    env = make(busy_trace(pods=5), action="weights")
    env.reset()
    with pytest.raises(ValueError, match=r"expected 9 numbers from 0 to 1, one for each of score_names"):
        env.step(value)
    env.step(env.default_action)


def test_a_notebook_has_an_event_loop_already(make):
    trace = busy_trace(pods=10)

    async def cell():
        env = make(trace)
        _, metrics = run(env, fullest)
        env.reset()
        env.close()
        return metrics

    def repeatable(metrics):
        return {name: value for name, value in metrics.items() if not name.startswith("decision.")}

    assert repeatable(asyncio.run(cell())) == repeatable(run(make(trace), fullest)[1])


def test_a_profile_without_scores(make, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("""\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {score: {disabled: [{name: "*"}]}}
""")
    env = make(busy_trace(pods=5), config=config)
    assert env.score_names == []
    run(env, fullest)


def test_weights_change_decisions(make):
    env = make(busy_trace(pods=20), action="weights", decisions_per_step=1000)
    names = env.score_names

    def weigh(found):
        return np.array([1.0 * (name == "NodeResourcesFit") for name in names], np.float32)

    _, spread = run(env, weigh)
    _, nothing = run(env, lambda found: np.zeros(len(names), np.float32))
    assert nothing["nodes.used"] < spread["nodes.used"]  # without scores, the first by name


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (PendingTime(), lambda metrics, env: -metrics["pending.mean"] * (env.trace.end - env.trace.start)),
        (
            AllocatedTime("memory", scale=2.0),
            lambda metrics, env: metrics["allocated.memory"] * (env.trace.end - env.trace.start) / 2,
        ),
        (NodesUsed(), lambda metrics, env: 1 - env.sample().nodes_used),
        (
            WeightedSum([(2.0, NodesUsed()), (0.0, Fragmentation())]),
            lambda metrics, env: 2 * (1 - env.sample().nodes_used),
        ),
    ],
)
def test_the_rewards_of_an_episode_add_up(make, reward, expected):
    trace = busy_trace(pods=25)
    # The first pod has no choice and is placed before the episode begins.
    fixed = change(0, "add", pod("fixed", "1", nodeName="node-0"))
    env = make(trace_of(*trace.events, fixed), reward=reward)
    total, metrics = run(env, by_score)
    assert total == pytest.approx(expected(metrics, env), abs=0.5)


def test_environments_do_not_share_a_reward(make):
    shared, trace = PendingTime(), busy_trace(pods=20)
    one, other = make(trace, reward=shared), make(trace, reward=shared)
    found, _ = one.reset()
    expected, _ = run(other, emptiest)
    assert finish(one, emptiest, found)[0] == expected


def test_a_vector_of_environments_from_a_file(tmp_path):
    write_trace(tmp_path / "trace.jsonl", busy_trace(pods=12).events)
    made = gymnasium.make_vec(
        ENVIRONMENT, num_envs=2, vectorization_mode="sync", trace=str(tmp_path / "trace.jsonl")
    )
    found, _ = made.reset(seed=3)
    assert found["nodes"].shape == (2, 5, 6)
    found, rewards, *_ = made.step(np.array([0, 1]))
    assert rewards.shape == (2,)
    assert found["nodes"][0, 0, 0] > 0
    assert found["nodes"][1, 1, 0] > 0
    made.close()


def test_a_trace_without_choices(make):
    env = make(trace_of(add(0, node("a")), add(1, pod("p"))))
    with pytest.raises(InputError, match="made-up: never leaves a choice"):
        env.reset()


def test_the_example_learns_weights_that_beat_the_default_profile():
    found = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=300)
    lines = dict(
        line.split(": ", 1) for line in found.stdout.splitlines() if line.startswith(("default", "learned"))
    )
    assert float(lines["learned profile"].split()[0]) < float(lines["default profile"].split()[0])


def test_extras_are_loaded_only_where_they_are_needed():
    imports = "import sys, stowplan, stowplan.replay, stowplan.cli.tune, stowplan.cli.compare"
    text = f"{imports}; print({{'gymnasium', 'optuna', 'distributed', 'dask'}} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


WITHOUT_EXTRAS = """
import sys
sys.modules |= dict.fromkeys(("gymnasium", "optuna", "distributed"))
from stowplan.errors import InputError
from stowplan.replay import Trace
from stowplan.replay.executors import DaskExecutor
from stowplan.replay.tune import import_optuna

for use in (lambda: __import__("stowplan.gym"), import_optuna, lambda: DaskExecutor(Trace([]), "tcp://x:1")):
    try:
        use()
    except InputError as error:
        print(error)
"""


def test_a_missing_extra_says_how_to_install_it():
    found = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True)
    how = "which is not installed; in a checkout of Stowplan, install it with: pip install"
    assert found.stdout.splitlines() == [
        f"stowplan.gym: needs gymnasium, {how} '.[gym]'",
        f"stowplan tune: needs optuna, {how} '.[tune]'",
        f"--executor dask: needs dask.distributed, {how} '.[dask]'",
    ]
