"""A cluster for tests of clients: faults, waiting with a reason, tokens, snapshots, nodes."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from stowplan.embedded import KubeCluster
from stowplan.errors import InputError, StowplanError

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def running():
    with KubeCluster(nodes=2, seed=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    with running.restored():
        yield running
        running.clear_faults()


def ask(cluster, method, path, body=None, token=None, agent="tests"):
    """Status, body and headers of an answer to a client that knows nothing of Stowplan."""
    data = None if body is None else json.dumps(body).encode()
    headers = {
        "Authorization": f"Bearer {token or cluster.token}",
        "Content-Type": "application/json",
        "User-Agent": agent,
    }
    request = urllib.request.Request(cluster.url + path, data, headers, method=method)
    context = ssl.create_default_context(cafile=str(cluster.certificate_file))
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name, *, cpu="100m", **meta):
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [container]},
    }


class Watcher:
    """Watches config maps in a thread until the connection ends; `end` is how it did."""

    def __init__(self, cluster, query=""):
        headers = {"Authorization": f"Bearer {cluster.token}"}
        request = urllib.request.Request(f"{cluster.url}{MAPS}?watch=1{query}", headers=headers)
        context = ssl.create_default_context(cafile=str(cluster.certificate_file))
        self.events, self.end = [], None
        self._answer = urllib.request.urlopen(request, context=context, timeout=20)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            with self._answer:
                while data := self._answer.read1(2**20):  # unlike readline, it tells an end from a break
                    self.events += map(json.loads, data.splitlines())
            self.end = "clean"
        except Exception as error:
            self.end = error

    def join(self):
        self._thread.join(20)
        return self.end


@pytest.mark.parametrize(
    ("status", "method", "path", "reason"),
    [
        (409, "POST", MAPS, "AlreadyExists"),
        (409, "PUT", f"{MAPS}/one", "Conflict"),
        (410, "GET", MAPS, "Expired"),
        (429, "GET", MAPS, "TooManyRequests"),
        (500, "GET", MAPS, "InternalError"),
        (503, "DELETE", f"{MAPS}/one", "ServiceUnavailable"),
        (401, "GET", MAPS, "Unauthorized"),
    ],
)
def test_requests_fail_as_a_server_fails_them(cluster, status, method, path, reason):
    with cluster.fault(status, resource="configmaps") as fault:
        code, body, headers = ask(cluster, method, path, config_map("one"))
    assert (code, body["reason"], body["kind"]) == (status, reason, "Status")
    assert fault.hits == 1
    assert headers.get("Retry-After") == ("1" if status == 429 else None)
    assert ask(cluster, "GET", MAPS)[0] == 200


def test_a_fault_takes_only_what_it_names(cluster):
    fault = cluster.fault(500, verb="create", resource="configmaps", name="b*", count=2)
    codes = [ask(cluster, "POST", MAPS, config_map(name))[0] for name in ("a", "b1", "b2", "b3")]
    assert codes == [201, 500, 500, 201]
    assert ask(cluster, "GET", f"{MAPS}/b3")[0] == 200
    assert fault.hits == 2


def test_namespaces_and_subresources_are_told_apart(cluster):
    cluster.fault(500, resource="pods/status")
    cluster.fault(500, namespace="kube-*")
    assert ask(cluster, "GET", "/api/v1/namespaces/default/pods")[0] == 200
    assert ask(cluster, "GET", "/api/v1/namespaces/kube-system/pods")[0] == 500
    cluster.create(pod("web"))
    assert ask(cluster, "GET", "/api/v1/namespaces/default/pods/web/status")[0] == 500


def test_the_cluster_itself_is_spared_unless_it_is_named(cluster):
    with cluster.fault(500):
        cluster.create(pod("web"))
        cluster.wait_for("pod/web", "Ready")
    binding = cluster.fault(
        500, verb="create", resource="pods/binding", user_agent="stowplan/scheduler*", count=1
    )
    cluster.create(pod("later"))
    cluster.wait_for("pod/later", lambda found: binding.hits == 1)
    cluster.tick("1m")
    cluster.wait_for("pod/later", "Ready")


def test_a_delay(cluster):
    with cluster.fault(delay=0.3, verb="list", resource="configmaps"):
        before = cluster.now
        assert ask(cluster, "GET", MAPS)[0] == 200
        assert cluster.now - before >= 0.3


def test_a_fault_that_makes_no_sense_is_rejected(cluster):
    with pytest.raises(InputError, match="a status, a delay, or both"):
        cluster.fault(resource="pods")
    with pytest.raises(InputError, match="400 to 599, not 200"):
        cluster.fault(200)
    with pytest.raises(InputError, match="no verb matches 'creates'; verbs are get, list, watch, create"):
        cluster.fault(500, verb="creates")
    cluster.fault(500, verb="delete*", count=0).remove()


def test_watches_break_off(cluster):
    watcher = Watcher(cluster)
    cluster.create(config_map("one"))
    cluster.wait_for(
        "configmap/one", lambda found: any(e["object"]["metadata"]["name"] == "one" for e in watcher.events)
    )
    assert cluster.drop_watches("pods") == 0
    assert cluster.drop_watches("configmaps") == 1
    assert isinstance(watcher.join(), Exception)  # as when the server dies, not as when its time is up


def test_expired_watches_have_to_list_again(cluster):
    version = ask(cluster, "GET", MAPS)[1]["metadata"]["resourceVersion"]
    watcher = Watcher(cluster, f"&resourceVersion={version}")
    cluster.expire_watches("configmaps")
    watcher.join()
    again = Watcher(cluster, f"&resourceVersion={version}")
    assert again.join() == "clean"
    (event,) = again.events
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_the_administrators_token_expires(cluster):
    old = cluster.token
    cluster.expire_token()
    assert ask(cluster, "GET", MAPS, token=old)[0] == 401
    assert ask(cluster, "GET", MAPS)[0] == 200
    assert cluster.token in cluster.kubeconfig.read_text()


def test_all_kubeconfigs_of_the_administrator_get_the_new_token(cluster):
    path, other = cluster.kubeconfig_for("default"), cluster.kubeconfig_for("default", "default")
    before = other.read_text()
    cluster.expire_token()
    assert cluster.token in path.read_text()
    assert "namespace: default" in path.read_text()
    assert other.read_text() == before


def test_kinds_by_any_name_that_kubectl_knows(cluster):
    assert len(cluster.list("nodes")) == len(cluster.list("no")) == len(cluster.list("Node")) == 2
    cluster.create(config_map("one"))
    assert cluster.get("cm", "one") == cluster.get("ConfigMap", "one")
    cluster.delete("configmaps", "one")
    cluster.wait_for("configmap/one", "deleted")


class Model:
    """Not plain data, as the objects of some clients."""


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            "shop.yaml",
            r"expected plain data or a Path, not 'shop.yaml': for a file, pass Path\('shop.yaml'\)",
        ),
        (Model(), r"expected plain data or a Path, not <.*Model.*>"),
        ({"metadata": {"name": "one"}}, r"\{'metadata'.*: .*it needs at least apiVersion, kind and metadata"),
    ],
)
def test_what_is_no_object_is_said(cluster, item, said):
    for do in (cluster.create, cluster.apply):
        with pytest.raises(InputError, match=said):
            do(item)


def test_waiting_in_the_wrong_namespace_shows_the_right_one(cluster):
    cluster.create_namespace("shop")
    cluster.create(pod("web", namespace="shop"))
    with pytest.raises(AssertionError, match="pods that exist: shop/web"):
        cluster.wait_for("pod/web", timeout=0.1)


def test_tokens_of_service_accounts_expire(cluster):
    token = cluster.service_account_token(expires="10m")
    assert ask(cluster, "GET", MAPS, token=token)[0] == 200
    cluster.tick("11m")
    assert ask(cluster, "GET", MAPS, token=token)[0] == 401


def test_rbac():
    with KubeCluster(nodes=1, rbac=True) as cluster:
        cluster.wait_for("serviceaccount/default", "exists")
        token = cluster.service_account_token()
        assert ask(cluster, "GET", MAPS, token=token)[0] == 403
        assert ask(cluster, "GET", MAPS)[0] == 200
        assert token[:20] in cluster.kubeconfig_for("default", "default").read_text()


def test_waiting_says_why_a_pod_is_not_ready(cluster):
    cluster.create(pod("giant", cpu="1000"))
    with pytest.raises(AssertionError) as failure:
        cluster.wait_for("pod/giant", "Ready", timeout=1)
    said = str(failure.value)
    assert said.startswith("Pod default/giant is not Ready after 1 s\n")
    assert "condition PodScheduled=False (Unschedulable: 0/2 nodes are available: 2 Insufficient cpu." in said
    assert "event Warning FailedScheduling: 0/2 nodes are available" in said
    assert "NodeResourcesFit: Insufficient cpu" in said  # from the scheduler's decision


def test_waiting_shows_the_pods_of_a_deployment(cluster):
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod("x", cpu="1000")["spec"]}
    spec = {"replicas": 5, "selector": {"matchLabels": labels}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    cluster.create(made)
    with pytest.raises(AssertionError, match="and 2 more pods that are not ready") as failure:
        cluster.wait_for(made, "Available", timeout=1.5)
    assert "condition Available=False (MinimumReplicasUnavailable" in str(failure.value)
    assert str(failure.value).count("which belongs to it:") == 3


def test_waiting_for_what_is_not_there(cluster):
    cluster.create(config_map("other"))
    with pytest.raises(AssertionError, match=r"is not there after 0.1 s\n  it does not exist\n.*other"):
        cluster.wait_for("cm/one", "exists", timeout=0.1)
    with pytest.raises(InputError, match="does not serve kind shelf"):
        cluster.wait_for("shelf/one")
    with pytest.raises(InputError, match='such as "pod/web", not'):
        cluster.wait_for("web")


def test_what_can_be_waited_for(cluster):
    (made,) = cluster.create(pod("web"))
    assert cluster.wait_for(made)["status"]["phase"] == "Running"
    assert cluster.wait_for("pods/web", "Running")
    assert cluster.wait_for("po/web", "Ready=True")
    assert cluster.wait_for("pod/web", "spec.nodeName")
    assert cluster.wait_for("pod/web", "status.phase=Running")
    assert cluster.wait_for("node/node-1")
    cluster.delete("Pod", "web")
    assert cluster.wait_for("pod/web", "deleted") == {}


def test_a_slow_node(cluster):
    for node in ("node-1", "node-2"):
        cluster.slow_down_node(node, "5m")
    cluster.create(pod("web"))
    cluster.wait_for("pod/web", "PodScheduled")
    cluster.tick("4m")
    assert cluster.get("Pod", "web")["status"]["phase"] == "Pending"
    cluster.tick("2m")
    assert cluster.wait_for("pod/web", "Running")
    for node in ("node-1", "node-2"):
        cluster.slow_down_node(node, 0)


def test_a_node_dies_and_comes_back(cluster):
    cluster.kill_node("node-1")
    cluster.tick("1m")
    cluster.wait_for("node/node-1", "Ready=Unknown")
    cluster.revive_node("node-1")
    cluster.wait_for("node/node-1", "Ready")
    with pytest.raises(InputError, match="unknown node 'node-9' "):
        cluster.kill_node("node-9")


def test_snapshots_show_as_changes_to_watches(cluster):
    cluster.create(config_map("kept", value="old"), config_map("lost"))
    taken = cluster.snapshot()
    cluster.apply(config_map("kept", value="new"))
    cluster.delete("ConfigMap", "lost")
    cluster.create(config_map("made"))
    version = ask(cluster, "GET", MAPS)[1]["metadata"]["resourceVersion"]
    cluster.restore(taken)
    watcher = Watcher(cluster, f"&resourceVersion={version}&timeoutSeconds=1")
    assert watcher.join() == "clean"
    seen = {(each["type"], each["object"]["metadata"]["name"]) for each in watcher.events}
    assert seen == {("MODIFIED", "kept"), ("ADDED", "lost"), ("DELETED", "made")}
    assert cluster.get("ConfigMap", "kept")["data"] == {"value": "old"}


def test_a_removed_namespace_is_gone_whatever_its_finalizers(cluster):
    cluster.create_namespace("short")
    cluster.create(
        {
            **pod("web", finalizers=["example.com/stays"]),
            "metadata": {"name": "web", "namespace": "short", "finalizers": ["example.com/stays"]},
        }
    )
    cluster.wait_for("pod/web", "Ready", "short")
    cluster.remove_namespace("short")
    cluster.wait_for("namespace/short", "deleted")
    assert cluster.list("Pod", "short") == []


def test_a_hundred_namespaces_at_once(cluster):
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod("web", cpu="10m")["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}

    def use(number):
        namespace = f"parallel-{number}"
        meta = {"name": "web", "namespace": namespace}
        cluster.create_namespace(namespace)
        cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
        cluster.wait_for("deployment/web", "status.availableReplicas=2", namespace, timeout=60)
        names = [each["metadata"]["namespace"] for each in cluster.list("Pod", namespace)]
        cluster.remove_namespace(namespace)
        return names == [namespace] * 2 and not cluster.list("Pod", namespace)

    with ThreadPoolExecutor(100) as tests:
        assert all(tests.map(use, range(100)))
    assert len(cluster.list("Namespace")) == 4


def test_it_ends_clean_and_cannot_be_used_afterwards():
    threads = set(threading.enumerate())
    cluster = KubeCluster(nodes=1)
    with pytest.raises(StowplanError, match="not running"):
        _ = cluster.kubeconfig
    with cluster:
        path = cluster.kubeconfig
        assert path.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()
    assert set(threading.enumerate()) == threads
    with pytest.raises(StowplanError, match="not running"):
        cluster.list("Node")


def test_what_is_wrong_with_its_options_is_said_at_the_start():
    with pytest.raises(StowplanError, match="NoSuchPlugin"):
        KubeCluster(
            config={
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "NoSuchPlugin"}]}}}],
            }
        ).start()
