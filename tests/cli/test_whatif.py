"""`stowplan whatif` from the outside."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples/demo"
CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.fixture
def whatif(run_stowplan):
    return partial(run_stowplan, "whatif")


def node(name, cpu=4, labels=""):
    return (
        f"---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n"
        f"status: {{capacity: {{cpu: {cpu}, memory: 8Gi, pods: 110}}}}\n"
    )


def pod(name, cpu=1, spec=""):
    return (
        f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n"
        f"spec: {{containers: [{{name: c, resources: {{requests: {{cpu: {cpu}}}}}}}]{spec}}}\n"
    )


def workload(kind, name, group="apps/v1", **spec):
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c"}]}}
    whole = {"selector": {"matchLabels": {"app": name}}, "template": template, **spec}
    return "---\n" + json.dumps(
        {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": whole}
    ) + "\n"  # fmt: skip


def landed(run):
    assert (run.status, run.err) == (0, "")
    return {each["pod"]: each["node"] or each["outcome"] for each in json.loads(run.out)["pods"]}


def documented():
    text = (ROOT / "docs/whatif.md").read_text()
    blocks = re.findall(r"```console\n\$ (stowplan whatif[^\n]*)\n(.*?)```", text, re.DOTALL)
    return [pytest.param(command, output, id=command) for command, output in blocks]


@pytest.mark.parametrize(("command", "output"), documented())
def test_prints_what_the_documentation_shows(command, output, whatif, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert whatif(*shlex.split(command)[2:]) == (0, output, "")


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        pytest.param(pod("p"), {"default/p": "n1"}, id="a pod"),
        pytest.param(
            workload("Deployment", "web", replicas=3),
            {"default/web-new": "n1", "default/web-new-1": "n2", "default/web-new-2": "n1"},
            id="a deployment",
        ),
        pytest.param(
            workload("StatefulSet", "db", replicas=2),
            {"default/db-0": "n1", "default/db-1": "n2"},
            id="a set",
        ),
        pytest.param(
            workload("Job", "sums", "batch/v1", parallelism=5, completions=2),
            {"default/sums-new": "n1", "default/sums-new-1": "n2"},
            id="a job",
        ),
        pytest.param(
            workload("DaemonSet", "log"),
            {"default/log-new-n1": "n1", "default/log-new-n2": "n2"},
            id="a daemon set",
        ),
    ],
)
def test_adds_manifests(whatif, file, added, expected):
    cluster = file(node("n1") + node("n2"), "cluster.yaml")
    assert landed(whatif("-f", cluster, "--add", file(added), "-o", "json")) == expected


def test_a_daemon_set_has_no_pods_where_it_does_not_belong(whatif, file):
    added = workload("DaemonSet", "log").replace(
        '"containers"', '"nodeSelector": {"disk": "ssd"}, "containers"'
    )
    cluster = file(node("n1", labels="disk: ssd") + node("n2"), "cluster.yaml")
    run = whatif("-f", cluster, "--add", file(added), "-o", "json")
    assert landed(run) == {"default/log-new-n1": "n1"}


def test_more_of_what_there_is(whatif, file):
    cluster = file(node("n1") + pod("p", 1, ", nodeName: n1") + workload("Deployment", "web"))
    run = whatif("-f", cluster, "--more", "p=2", "--more", "deploy/web", "-o", "json")
    assert landed(run) == {"default/p-1": "n1", "default/p-2": "n1", "default/web-new": "n1"}


def test_nodes_are_added_before_others_are_lost(whatif, file):
    cluster = file(node("n1") + pod("p", 3))
    run = whatif("-f", cluster, "--more-nodes", "n1=2", "--lose", "n1", "-o", "json")
    assert landed(run) == {"default/p": "n1-new-1"}


def test_names_the_priority_classes_of_the_cluster(whatif, file):
    classes = "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 5\n"
    low = pod("low", 4, ", nodeName: n1")
    run = whatif(
        "-f",
        file(node("n1") + low + classes, "cluster.yaml"),
        "--add",
        file(pod("p", 4, ", priorityClassName: high")),
        "-o",
        "json",
    )
    assert landed(run) == {"default/low": "gone", "default/p": "n1"}


def test_json_says_it_all(whatif, file):
    run = whatif("-f", file(node("n1") + pod("p", 5)), "--drain", "n1", "-o", "json")
    found = json.loads(run.out)
    assert (found["changes"], found["counts"]) == (["n1 drained"], {"pending": 1})
    (told,) = found["pods"]
    message = told.pop("message")
    assert message.startswith("0/1 nodes are available: 1 node(s) were unschedulable.")
    assert told == {
        "pod": "default/p",
        "cause": "pending",
        "outcome": "pending",
        "node": None,
        "before": None,
        "victims": [],
        "evictedBy": None,
        "refused": [
            {
                "plugin": "NodeUnschedulable",
                "code": "UnschedulableAndUnresolvable",
                "reasons": ["node(s) were unschedulable"],
                "nodes": 1,
                "detail": "",
            }
        ],
    }


def test_long_lists_are_cut_short(whatif, file):
    cluster = file(node("n1", 40) + node("n2", 40))
    run = whatif("-f", cluster, "--add", file(workload("Deployment", "web", replicas=30), "w.yaml"))
    assert "… and 10 more (--all-pods lists them)\nMost of them land on n1 (15) and n2 (15).\n" in run.out
    whole = whatif(
        "-f", cluster, "--add", file(workload("Deployment", "web", replicas=30), "w.yaml"), "--all-pods"
    )
    assert whole.out.count("default/web-new") == 30


def test_nothing_to_decide(whatif, file):
    assert whatif("-f", file(node("n1"))).out == "No pod would have to be placed.\n"


def test_what_is_added_and_not_looked_at_is_told(whatif, file):
    added = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: backup}\n"
    run = whatif("-f", file(node("n1")), "--add", file(added, "added.yaml"))
    assert run == (0, "What if: 1 CronJob not looked at.\nNo pod would have to be placed.\n", "")


def test_a_pod_whose_victims_are_going_lands_once_they_are_gone(whatif, file):
    going = pod("victim", 4, ", nodeName: n1").replace("name: victim", "name: victim, deletionTimestamp: x")
    vip = pod("vip", 4, ", priority: 5").replace("spec:", "status: {nominatedNodeName: n1}\nspec:")
    run = whatif("-f", file(node("n1") + going + vip))
    assert "default/vip  n1        pending, once default/victim is gone\n" in run.out


ITSELF = "apiVersion: v1\nkind: Pod\nmetadata: &a {name: x, labels: *a}\n"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        pytest.param("-f", ITSELF, id="the cluster"),
        pytest.param("--add", ITSELF, id="what is added"),
    ],
)
def test_a_file_that_holds_itself(whatif, file, option, text):
    run = whatif("-f", file(node("n1")), option, file(text, "itself.yaml"))
    assert (run.status, run.out) == (1, "")
    assert run.err.endswith("itself.yaml: contains itself (&a … *a)\n")


def test_what_a_terminal_would_obey_is_spelt_out(whatif, file):
    run = whatif("-f", file(node("n1") + pod('"\\e[31m<b>p</b>"')))
    assert "default/\\x1b[31m<b>p</b>  n1" in run.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--drain", "n2"], "node n2 not found (known: n1", id="no such node"),
        pytest.param(["--more-nodes", "n2"], "node n2 not found (known: n1", id="no node like that"),
        pytest.param(["--more", "web"], "pod default/web not found (known: p", id="no such pod"),
        pytest.param(["--more", "p=0"], "p: the count must be from 1 to 100000, as in p=3", id="none"),
        pytest.param(["--more", "p=x"], "p: the count must be from 1", id="no number"),
        pytest.param(["--more", "sts/db"], "StatefulSet default/db not found (there are none)", id="no set"),
        pytest.param(["--lose", "n1", "--lose", "n2"], "node n2 not found (there are none)", id="lost"),
        pytest.param(["--add", "nowhere"], "nowhere: cannot be read: No such file", id="no such file"),
    ],
)
def test_says_what_is_wrong(whatif, file, arguments, message):
    run = whatif("-f", file(node("n1") + pod("p")), *arguments)
    assert (run.status, run.out) == (1, "")
    assert run.err.startswith(f"stowplan: {message}".replace("known: p", "known: default/p"))


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        (2_000_000_000, "2000000000 more would make 2000000000 pods and nodes; not more than 100000 can be"),
        (-4, "spec.replicas: -4 is negative; must be 0 or greater"),
    ],
)
def test_numbers_of_pods_that_cannot_be_meant(whatif, file, replicas, message):
    added = file(workload("Deployment", "web", replicas=replicas), "added.yaml")
    run = whatif("-f", file(node("n1")), "--add", added)
    assert (run.status, run.out) == (1, "")
    assert run.err.startswith(f"stowplan: Deployment default/web: {message}")


def test_a_fault_in_what_is_added_names_its_file(whatif, file):
    added = file(pod("q", "lots"), "added.yaml")
    run = whatif("-f", file(node("n1")), "--add", added)
    assert run.status == 1
    assert run.err.startswith(
        f"stowplan: {added}: Pod default/q: spec.containers[0].resources.requests.cpu: "
    )


def test_files_and_an_api_server_exclude_each_other(whatif, file):
    run = whatif("-f", file(node("n1")), "--kubeconfig", "k")
    assert run.status == 2
    assert "-f cannot be combined with --kubeconfig or --context" in run.err


def test_another_configuration(whatif, file):
    config = file(CONFIG + "profiles: [{schedulerName: mine}]\n", "config.yaml")
    cluster = file(node("n1") + pod("p") + pod("q", 1, ", schedulerName: mine"))
    run = whatif("-f", cluster, "--config", config, "-o", "json")
    assert landed(run) == {"default/p": "other scheduler", "default/q": "n1"}
    assert json.loads(run.out)["changes"] == [f"the configuration of {config}"]
    assert "Of other schedulers: default/p (it is left to 'default-scheduler')" in whatif(
        "-f", cluster, "--config", config
    ).out  # fmt: skip


OBJECTS = {
    "/api/v1/nodes": [{"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}}],
    "/api/v1/pods": [{"metadata": {"name": "p", "namespace": "shop", "uid": "1"}, "spec": {}}],
}
WEB = json.loads(workload("Deployment", "web").removeprefix("---\n"))
WEB["metadata"]["namespace"] = "shop"


@pytest.fixture
def kubeconfig(file) -> Iterator[tuple[Path, list[str]]]:
    """Of an API server over a real socket, with the methods it was asked with."""
    methods: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            methods.append(self.command)
            path = self.path.partition("?")[0]
            found = {"metadata": {"resourceVersion": "1"}, "items": OBJECTS.get(path, [])}
            status, body = 200, json.dumps(WEB if path.endswith("/shop/deployments/web") else found).encode()
            if "resource.k8s.io" in path:
                status, body = 403, b'{"kind": "Status", "message": "not for you", "code": 403}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield (
            file(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
                f"clusters: [{{name: k, cluster: {{server: '{url}'}}}}]\n"
                "contexts: [{name: c, context: {cluster: k, user: u, namespace: shop}}]\n"
                "users: [{name: u, user: {}}]\n",
                "kubeconfig",
            ),
            methods,
        )
        server.shutdown()


def test_a_cluster_is_read_and_nothing_is_written(whatif, kubeconfig):
    path, methods = kubeconfig
    run = whatif("--kubeconfig", path, "--more", "deployment/web=2", "-o", "json")
    assert {each["pod"]: each["node"] for each in json.loads(run.out)["pods"]} == {
        "shop/p": "n1",
        "shop/web-new": "n1",
        "shop/web-new-1": "n1",
    }
    assert set(methods) == {"GET"}
    assert "ignoring deviceclasses: not for you" in run.err


def test_an_api_server_that_is_not_there(whatif, file, kubeconfig):
    path = file(re.sub(r"127.0.0.1:\d+", "127.0.0.1:1", kubeconfig[0].read_text()), "k")
    run = whatif("--kubeconfig", path)
    assert run.status == 1
    assert re.match(r"stowplan: .*127\.0\.0\.1", run.err)
