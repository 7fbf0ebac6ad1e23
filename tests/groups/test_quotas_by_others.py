"""A plugin of others can limit, charge and take back what groups use, with public names alone."""

from __future__ import annotations

import random

import pytest
from test_coscheduling import SORTED, labelled, x_group

from scheduler_staging import node, pod, staged
from stowplan import Nomination, Plugin, Status

LIMIT = 3000
seen = []


class TeamLimit(Plugin):
    """Three CPUs for each team; a team below that takes back from one above."""

    def __init__(self, args, handle):
        super().__init__(args, handle)
        self.totals = handle.cluster.totals(lambda pod: (pod.labels.get("team", ""),))

    def used(self, team):
        return self.totals.of(team).get("cpu", 0)

    def pre_filter(self, state, pod, nodes):
        team = pod.labels.get("team", "")
        if self.used(team) + pod.requests["cpu"] > LIMIT:
            return Status.unschedulable(f"team {team} uses {self.used(team)} of {LIMIT}")
        return None

    def post_filter(self, state, pod, decision):
        groups = self.handle.cluster.groups
        seen.append(groups.key_of(pod))
        over = frozenset(
            other.uid
            for other in self.handle.cluster.pods()
            if self.used(other.labels.get("team", "")) > LIMIT and groups.key_of(other) is None
        )
        answer = self.handle.preempt(state, pod, decision, 100, 0, over)
        return answer if isinstance(answer, Nomination) else Status.unschedulable(answer.message)


PROFILE = {
    "plugins": {
        "multiPoint": {"enabled": [*SORTED["plugins"]["multiPoint"]["enabled"], {"name": "TeamLimit"}]},
        "queueSort": SORTED["plugins"]["queueSort"],
        "postFilter": {"disabled": [{"name": "DefaultPreemption"}]},
    }
}


def of_team(team, plain):
    plain["metadata"]["labels"] = {**plain["metadata"].get("labels", {}), "team": team}
    return plain


def team_stage():
    config = {"profiles": [PROFILE]}
    return staged(config=config, plugins={"TeamLimit": TeamLimit}, draw=random.Random(1))


@pytest.mark.parametrize(("least", "bound"), [(4, 0), (3, 3)])
async def test_a_group_is_charged_as_a_whole(least, bound):
    assert not TeamLimit.comes_with_stowplan
    async with team_stage() as stage:
        stage.see(node("n1", cpu="8"), x_group(minMember=least))
        stage.see(*(of_team("red", labelled(f"p{number}")) for number in range(4)))
        await stage.settle()
        assert len(stage.api.bound) == bound


async def test_a_group_takes_back():
    async with team_stage() as stage:
        borrowed = [of_team("blue", pod(f"b{number}", on="n1", priority=5)) for number in range(4)]
        stage.see(node("n1"), *borrowed, x_group(minMember=1), of_team("red", labelled("p")))
        await stage.settle()
        assert len(stage.api.deleted) == 1
        assert str(seen[-1]) == "default/g"


async def test_groups_cannot_be_changed_by_a_plugin():
    async with team_stage() as stage:
        (profile,) = stage.scheduler.profiles.values()
        groups = profile.plugins["TeamLimit"].handle.cluster.groups
        for change in (
            lambda: groups.put(None),
            lambda: groups.remove(None),
            lambda: groups.use(("x",), "default-scheduler"),
            lambda: groups.__setattr__("families", frozenset()),
        ):
            with pytest.raises(AttributeError):
                change()
