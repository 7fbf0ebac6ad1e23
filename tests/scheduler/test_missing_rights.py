"""An account that may only read: the log says what it lacks and what to do; events say what others do."""

from __future__ import annotations

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin
from stowplan.client.errors import Forbidden

REFUSED = Forbidden(403, "Forbidden", 'pods "p" is forbidden: User "reader" cannot do that')
ADVICE = (
    ": give this account the right, most simply by binding it to the ClusterRoles system:kube-scheduler and "
    "system:volume-scheduler"
)


class Writing(Plugin):
    async def pre_bind(self, state, pod, node_name):
        raise REFUSED


@pytest.mark.parametrize(
    ("refused", "objects", "line"),
    [
        pytest.param("bind", [node("n1"), pod("p")], "Error scheduling pod; retrying", id="binding"),
        pytest.param("patch", [node("n1"), pod("p", cpu="9")], "Error updating pod", id="a pod's status"),
        pytest.param(
            "delete",
            [node("n1"), pod("low", on="n1", cpu="4"), pod("p", cpu="2", priority=9)],
            "Error occurred during async preemption",
            id="an eviction",
        ),
    ],
)
async def test_the_log_says_what_to_do(caplog, refused, objects, line):
    async with staged() as stage:
        stage.api.refuse[refused] = REFUSED
        stage.see(*objects)
        await stage.settle()
        assert ADVICE not in "".join(stage.notes("FailedScheduling"))
    said = [str(each.fields["err"]) for each in caplog.records if each.getMessage() == line]
    assert said
    assert all(each.endswith(f"{REFUSED}{ADVICE}") for each in said)


async def test_so_it_does_for_what_plugins_may_not_write(caplog):
    profile = {"plugins": {"preBind": {"enabled": [{"name": "Writing"}]}}}
    async with staged({"profiles": [profile]}, {"Writing": Writing}) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        (note,) = stage.notes("FailedScheduling")
        assert "is forbidden" in note
        assert ADVICE not in note
    (said,) = [each for each in caplog.records if each.getMessage() == "Error scheduling pod; retrying"]
    assert said.fields["err"] == note + ADVICE
