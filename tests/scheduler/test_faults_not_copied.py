"""Faults that kube-scheduler 1.36 has and Stowplan must not; docs/parity.md lists them all."""

from __future__ import annotations

from scheduler_staging import Stage, node, pod, staged
from stowplan import Plugin, Status

FULL = "disk 95% full (100%)"


class Holding(Plugin):
    def permit(self, state, pod, node_name):
        return Status.wait(60.0)


class Grumbling(Plugin):
    def filter(self, state, pod, node):
        return Status.unschedulable(FULL)


def with_plugin(plugin: type) -> dict:
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": plugin.__name__}]}}}]}
    return {"config": config, "plugins": {plugin.__name__: plugin}}


def namespace(name: str, **labels: str) -> dict:
    return {"kind": "Namespace", "metadata": {"name": name, "labels": labels, "resourceVersion": "1"}}


def labelled(made: dict, **labels: str) -> dict:
    return {**made, "metadata": {**made["metadata"], "labels": labels}}


async def test_a_partner_in_a_selected_namespace_wakes_the_pod_that_waits_for_it():
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "partner"}},
        "namespaceSelector": {"matchLabels": {"team": "x"}},
    }
    together = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with staged() as stage:
        host = labelled(node("n1"), **{"kubernetes.io/hostname": "n1"})
        stage.see(namespace("theirs", team="x"), host, pod("lonely", affinity=together))
        await stage.settle()
        assert stage.api.bound == {}
        partner = labelled(pod("partner", on="n1"), app="partner")
        partner["metadata"] |= {"namespace": "theirs"}
        stage.see(partner)
        await stage.settle()
        assert stage.api.bound == {"default/lonely": "n1"}


async def test_a_new_failure_text_is_not_lost_in_the_event_of_the_old_one():
    async with staged() as stage:
        stage.see(node("n1", cpu="1"), pod("p", cpu="2"))
        await stage.settle()
        stage.see(node("n2", cpu="3"), pod("filler", on="n2", cpu="2"))
        await tried_again(stage)
        first, second = stage.notes("FailedScheduling")
        assert first.startswith("0/1 nodes are available: 1 Insufficient cpu.")
        assert second.startswith("0/2 nodes are available: 2 Insufficient cpu.")


async def tried_again(stage: Stage) -> None:
    """Its backoff is over."""
    stage.scheduler.queue.activate([queued.pod for queued in stage.scheduler.queue])
    await stage.settle()


async def test_a_percent_sign_in_a_failure_text_stays_as_it_is():
    async with staged(**with_plugin(Grumbling)) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        (note,) = stage.notes("FailedScheduling")
        assert note.startswith(f"0/1 nodes are available: 1 {FULL}.")
        assert note == stage.api.conditions("default/p")[0]["message"]


async def test_its_own_status_patch_is_no_reason_to_try_a_pod_again():
    async with staged() as stage:
        waiting = pod("p", cpu="9")
        stage.see(node("n1"), waiting)
        await stage.settle()
        patched = {
            **waiting,
            "metadata": {**waiting["metadata"], "resourceVersion": "2"},
            "status": {"conditions": stage.api.conditions("default/p")},
        }
        stage.change(waiting, patched)
        await stage.settle()
        assert len(stage.notes("FailedScheduling")) == 1
        assert stage.scheduler.queue.counts()["unschedulable"] == 1


async def test_a_leader_that_loses_its_lease_does_not_bind_what_it_has_decided():
    async with staged(**with_plugin(Holding)) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        stage.is_leading = False
        (waiting,) = stage.scheduler.waiting
        waiting.allow("Holding")
        await stage.settle()
        assert stage.api.bound == {}
        assert stage.scheduler.cluster.assumed_count == 0


async def test_a_node_deleted_meanwhile_gets_no_pod():
    async with staged(**with_plugin(Holding)) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        stage.change(node("n1"), None)
        (waiting,) = stage.scheduler.waiting
        waiting.allow("Holding")
        await stage.settle()
        assert stage.api.bound == {}
        assert "was deleted" in stage.notes("FailedScheduling")[0]


async def test_a_pod_made_anew_under_the_same_name_is_not_blamed_for_the_old_one():
    async with staged(**with_plugin(Holding)) as stage:
        first = pod("p")
        stage.see(node("n1"), first)
        await stage.settle()
        stage.change(first, None)
        second = {**first, "metadata": {**first["metadata"], "uid": "uid-anew"}}
        stage.see(second)
        await stage.settle()
        assert stage.notes("FailedScheduling") == []
        assert [waiting.pod.uid for waiting in stage.scheduler.waiting] == ["uid-anew"]
        assert stage.scheduler.cluster.assumed_count == 1
