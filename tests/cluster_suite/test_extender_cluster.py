"""The real kube-scheduler schedules through our extender: each verb, with another outcome than without."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import account_kubeconfig, applied, mount
from extending import alone, extending, notes
from traffic import Prometheus

from certificates import Authority
from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.waiting import eventually

RULES = """
from stowplan import CycleState, Node, Plugin, Pod, Status


class NotFirst(Plugin):
    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        return Status.unschedulable("the first node is kept free") if node.name == "n1" else None


class Second(Plugin):
    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        return 100 if node.name == "n2" else 0


class Quiet(Plugin):
    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return Status.unschedulable("not now") if pod.labels.get("loud") else None
"""
BIG = {"cpu": "3"}


def wide(name: str) -> dict[str, Any]:
    """A node with more room, which kube-scheduler prefers."""
    made = node(name)
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return made | {"status": made["status"] | {"capacity": room, "allocatable": room}}


async def where(control_plane: ControlPlane, name: str, **spec: Any) -> str:
    create(control_plane, pod(name, **spec))
    return (await eventually(lambda: placed(control_plane), lambda each: bool(each[name])))[name]


async def without(control_plane: ControlPlane, name: str, **spec: Any) -> str:
    """Where kube-scheduler puts the pod by itself."""
    with control_plane.kube_scheduler():
        return await where(control_plane, name, **spec)


@pytest.mark.parametrize("by_name", [True, False])
async def test_filter(control_plane, tmp_path, by_name):
    add_nodes(control_plane, wide("n1"), node("n2"))
    assert await without(control_plane, "before") == "n1"
    with extending(control_plane, tmp_path, plugins=RULES, profile=alone("NotFirst")) as extender:
        (entry,) = extender.stanza()
        assert entry.keys() >= {"filterVerb", "preemptVerb", "nodeCacheCapable"}
        entry["nodeCacheCapable"] = by_name
        with control_plane.kube_scheduler(extenders=[entry]):
            assert await where(control_plane, "after") == "n2"
            create(control_plane, pod("stuck", nodeSelector={"kubernetes.io/hostname": "n1"}))
            said = await eventually(lambda: notes(control_plane, "stuck"), bool)
    assert "1 the first node is kept free" in said[0]


async def test_prioritize(control_plane, tmp_path):
    add_nodes(control_plane, wide("n1"), node("n2"))
    assert await without(control_plane, "before") == "n1"
    with (
        extending(control_plane, tmp_path, plugins=RULES, profile=alone("Second")) as extender,
        control_plane.kube_scheduler(extenders=extender.stanza("--weight=10")),
    ):
        assert await where(control_plane, "after") == "n2"
    told = re.search(
        r'path="/p/prioritize" pod="default/after" nodes=2 scores=(\S+)', extender.process.output
    )
    assert told is not None
    assert json.loads(told[1]) == {"n1": 0, "n2": 10}


async def test_preempt(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"))
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in (("low", 1), ("middle", 2))
    ]
    create(control_plane, *classes)
    full = [
        pod("on-n1", requests=BIG, priorityClassName="low", nodeName="n1"),
        pod("on-n2", requests=BIG, priorityClassName="middle", nodeName="n2"),
    ]
    create(control_plane, *full)

    async def evicted(name: str) -> str:
        create(control_plane, pod(name, requests=BIG, priorityClassName="system-node-critical"))
        return await where_to(control_plane, name)

    with control_plane.kube_scheduler():
        assert await evicted("before") == "n1"  # whose pod matters least
    control_plane.kubectl("delete", "pod", "--all", "--grace-period=0", "--force")
    create(control_plane, *full)
    flags = ("--verb=preempt",)
    with extending(control_plane, tmp_path, *flags, plugins=RULES, profile=alone("NotFirst")) as extender:
        (entry,) = extender.stanza()
        assert "filterVerb" not in entry
        with control_plane.kube_scheduler(extenders=[entry]):
            assert await evicted("after") == "n2"


async def where_to(control_plane: ControlPlane, name: str) -> str:
    """The node on which room is made for the pod."""

    def promised() -> str:
        found = control_plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")
        return str(found["status"].get("nominatedNodeName") or found["spec"].get("nodeName") or "")

    return await eventually(promised, bool)


async def test_bind(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"))
    assert await without(control_plane, "before", labels={"loud": "yes"})
    flags = ("--verb=bind",)
    with (
        extending(control_plane, tmp_path, *flags, plugins=RULES, profile=alone("Quiet")) as extender,
        control_plane.kube_scheduler(extenders=extender.stanza()),
    ):
        chosen = await where(control_plane, "after")
        assert f'"Bound pod to node" pod="default/after" node="{chosen}"' in extender.process.output
        create(control_plane, pod("loud", labels={"loud": "yes"}))
        said = await eventually(lambda: notes(control_plane, "loud"), bool)
        assert "Stowplan extender /p/bind: 0/1 nodes are available: 1 not now." in said[0]
    assert placed(control_plane)["loud"] == ""


async def test_what_was_just_bound_counts(control_plane, tmp_path):
    """Pods that come at once are not put together where only one of them fits, also by our own view."""
    add_nodes(control_plane, *(node(f"n{number}") for number in range(6)))
    flags = ("--verb=filter", "--verb=bind")
    with (
        extending(control_plane, tmp_path, *flags, profile={}) as extender,
        control_plane.kube_scheduler(extenders=extender.stanza()),
    ):
        create(control_plane, *(pod(f"p{number}", requests=BIG) for number in range(6)))
        found = await eventually(lambda: placed(control_plane), lambda each: all(each.values()))
    assert len(set(found.values())) == 6
    assert "rejects the pod" not in extender.process.output


@pytest.mark.parametrize("is_ignorable", [False, True])
async def test_an_extender_that_is_down(control_plane, tmp_path, is_ignorable):
    add_nodes(control_plane, node("n1"))
    with extending(control_plane, tmp_path, plugins=RULES, profile=alone("NotFirst")) as extender:
        entries = extender.stanza(*(["--ignorable"] if is_ignorable else []), "--timeout=0.5")
        extender.process.kill()
        with control_plane.kube_scheduler(extenders=entries):
            if is_ignorable:
                assert await where(control_plane, "a") == "n1"
                return
            create(control_plane, pod("a"))
            said = await eventually(lambda: notes(control_plane, "a"), bool)
            assert f"127.0.0.1:{extender.port}/p/filter" in said[0]
            assert "connection refused" in said[0]
            extender.process.start(seconds=30)
            add_nodes(control_plane, node("n2"))
            found = await eventually(lambda: placed(control_plane), lambda each: bool(each["a"]))
    assert found["a"] == "n2"


SLOW = """
import time
from stowplan import CycleState, Node, Plugin, Pod, Status


class Slow(Plugin):
    budget = 60

    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        time.sleep(30)


class Raises(Plugin):
    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        raise KeyError(node.name)
"""


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ("Slow", "took longer than its budget of 0."),
        ("Raises", """running "Raises" filter plugin: KeyError: 'n1' (pod default/a, node n1, at """),
    ],
)
async def test_a_plugin_that_fails(control_plane, tmp_path, plugin, words):
    add_nodes(control_plane, node("n1"))
    flags = ("--time-budget=0.5",)
    with (
        extending(control_plane, tmp_path, *flags, plugins=SLOW, profile=alone(plugin)) as extender,
        control_plane.kube_scheduler(extenders=extender.stanza()),
    ):
        create(control_plane, pod("a"))
        said = await eventually(lambda: notes(control_plane, "a"), bool)
    assert "Stowplan extender /p/filter: " in said[0]
    assert words in said[0]


async def test_only_a_scheduler_with_the_certificate_gets_answers(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"))
    authority = Authority("of the extender")
    (tmp_path / "ca.crt").write_text(authority.certificate)
    server = authority.issue("extender", "127.0.0.1").write(tmp_path, "server")
    known = authority.issue("kube-scheduler").write(tmp_path, "known")
    flags = (
        f"--tls-cert-file={server[0]}",
        f"--tls-private-key-file={server[1]}",
        f"--client-ca-file={tmp_path / 'ca.crt'}",
    )
    ca = f"--ca-file={tmp_path / 'ca.crt'}"
    with extending(control_plane, tmp_path, *flags, plugins=RULES, profile=alone("NotFirst")) as extender:
        with control_plane.kube_scheduler(extenders=extender.stanza(ca, scheme="https")):
            create(control_plane, pod("stranger"))
            said = await eventually(lambda: notes(control_plane, "stranger"), bool)
            assert f'Post "https://127.0.0.1:{extender.port}/p/filter"' in said[0]
        assert placed(control_plane)["stranger"] == ""
        own = (f"--cert-file={known[0]}", f"--key-file={known[1]}")
        with control_plane.kube_scheduler(extenders=extender.stanza(ca, *own, scheme="https")):
            assert await where(control_plane, "known") == "n2"


# Tutorial 4


async def test_tutorial_4s_image_score(control_plane, tmp_path):
    """Three nodes, `nginx:1.7.9` on worker-node2: it gets 1, the others 0, and the pod goes there."""
    holder = node("worker-node2")
    holder["status"] = holder["status"] | {"images": [{"names": ["nginx:1.7.9"], "sizeBytes": 1}]}
    add_nodes(control_plane, wide("master-node"), wide("worker-node1"), holder)
    image = [{"name": "nginx", "image": "nginx:1.7.9"}]
    assert await without(control_plane, "before", containers=image) != "worker-node2"
    flags = ("--functions=stowplan.extender.worked.image_score",)
    with extending(control_plane, tmp_path, *flags, is_following=False) as extender:
        (entry,) = extender.stanza("--weight=100", path="/my_scheduler_extension")
        assert entry["prioritizeVerb"] == "my_new_priorities/image_score"
        with control_plane.kube_scheduler(extenders=[entry]):
            name = "pod-nginx-ext-scheduler1"
            assert await where(control_plane, name, containers=image) == "worker-node2"
    (line,) = [each for each in extender.process.output.splitlines() if "Prioritized nodes" in each]
    for scored in ('"master-node":0', '"worker-node1":0', '"worker-node2":1'):
        assert scored in line


async def test_always_true_and_zero_score(control_plane, tmp_path):
    add_nodes(control_plane, wide("n1"), node("n2"))
    flags = ("--functions=stowplan.extender.worked.always_true",)
    with (
        extending(control_plane, tmp_path, *flags) as extender,
        control_plane.kube_scheduler(extenders=extender.stanza()),
    ):
        assert await where(control_plane, "a") == "n1"
    assert "/scheduler/predicates/always_true" in extender.process.output
    assert 'scores={"n1":0,"n2":0}' in extender.process.output


async def test_the_node_less_used_over_the_last_six_hours(control_plane, tmp_path):
    """Two nodes of 8 CPU with 5 requested each: to kube-scheduler alone they are alike."""
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    for name in ("busy", "idle"):
        made = node(name)
        add_nodes(control_plane, made | {"status": made["status"] | {"capacity": room, "allocatable": room}})
        create(control_plane, pod(f"on-{name}", requests={"cpu": "5"}, nodeName=name))
    server = with_history(tmp_path, {"busy": 6.0, "idle": 0.5})
    server.start(seconds=30)
    flags = (
        "--functions=stowplan.extender.worked.safe",
        f"--set=read_usage.prometheus={server.server}",
        "--set=read_usage.refresh_seconds=0.5",
    )
    try:
        with extending(control_plane, tmp_path, *flags) as extender:
            await eventually(lambda: extender.process.output, lambda said: "Read the usage of nodes" in said)
            entries = [each for each in extender.stanza("--weight=10") if "prioritizeVerb" in each]
            assert len(entries) == 2
            with control_plane.kube_scheduler(extenders=entries):
                found = [await where(control_plane, name, requests={"cpu": "100m"}) for name in "abc"]
    finally:
        server.stop()
    assert found == ["idle"] * 3


def with_history(folder, cores: dict[str, float]) -> Prometheus:
    """A Prometheus that knows what the nodes have used in the last six hours, in cores."""
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is not on PATH; Debian's package prometheus has it"
    now = int(time.time())
    lines = ["# TYPE node_cpu_seconds counter"]
    for name, rate in cores.items():
        for mode, share in (("user", rate), ("idle", 8 - rate)):
            labels = f'node="{name}",mode="{mode}"'
            lines += [
                f"node_cpu_seconds_total{{{labels}}} {share * (at - now + 25_000):.1f} {at}"
                for at in range(now - 6 * 3600 - 600, now, 60)
            ]
    history = folder / "history.txt"
    history.write_text("\n".join([*lines, "# EOF", ""]))
    command = [tool, "tsdb", "create-blocks-from", "openmetrics", history, folder / "prometheus"]
    subprocess.run(command, check=True, capture_output=True)
    return Prometheus(folder, {})


# The manifests of examples/extender

EXAMPLES = Path(__file__).parents[2] / "examples" / "extender"


@pytest.mark.parametrize("name", ["image-score", "always-true", "safe", "plugin"])
async def test_the_manifests(control_plane, tmp_path, name):
    """What a Deployment runs, with the rights of its account and the scheduler's configuration beside it."""
    files = ("rights", "extended-scheduler", name)
    text = "---\n".join((EXAMPLES / f"{file}.yaml").read_text() for file in files)
    nodes = [node("n1"), node("n2", labels={"score-by-label": "5"})]
    nodes[1]["status"] = nodes[1]["status"] | {"images": [{"names": ["nginx:1.7.9"], "sizeBytes": 1}]}
    add_nodes(control_plane, *nodes)
    with applied(control_plane, text, tmp_path) as objects:
        found = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        account = account_kubeconfig(control_plane, found["ServiceAccount", "stowplan-extender"], tmp_path)
        app = "label-score" if name == "plugin" else name
        template = found["Deployment", app]["spec"]["template"]
        assert found["Service", app]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        flags = [each for each in template["spec"]["containers"][0]["args"] if each != "-v4"]
        if "serviceAccountName" in template["spec"]:
            flags = [each for each in flags if each != "--follow"] + [f"--kubeconfig={account}"]
        if ("ConfigMap", app) in found:
            mount(tmp_path / "etc", found["ConfigMap", app]["data"])
            flags = [each.replace("/etc/stowplan", str(tmp_path / "etc")) for each in flags]
        with extending(control_plane, tmp_path, *flags, is_following=False) as extender:
            config = yaml.safe_load(found["ConfigMap", "extended-scheduler"]["data"]["config.yaml"])
            for entry in config["extenders"]:
                assert entry["urlPrefix"].startswith(f"http://{app}.kube-system.svc")
                host = f"127.0.0.1:{extender.port}"
                entry["urlPrefix"] = entry["urlPrefix"].replace(f"{app}.kube-system.svc", host)
            settings = {key: config[key] for key in ("profiles", "extenders")}
            with control_plane.kube_scheduler(**settings) as scheduler:
                control_plane.kubectl("create", "-f", str(EXAMPLES / "pods.yaml"))
                await eventually(lambda: placed(control_plane), lambda each: all(each.values()))
                assert "extender" not in "".join(
                    line for line in scheduler.output.splitlines() if line[:1] in "EW"
                )
    assert extender.process.output.count('"Prioritized nodes"') >= 2
    assert '"Request failed"' not in extender.process.output
