"""`stowplan run` as those see it who operate a cluster: leases, pages, signals, flags and messages."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from signal import SIGHUP, SIGUSR2
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec
import pytest

from controlplane.binaries import program
from controlplane.control_plane import ADMIN, NOBODY, SCHEDULER, ControlPlane, free_ports, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
QUICK_ELECTION = {"leaderElect": True, "leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "1s"}
STOWPLAN = (sys.executable, "-m", "stowplan.cli", "run")


def lines(process: Process, message: str) -> list[str]:
    return [line for line in process.output.splitlines() if f'] "{message}"' in line]


async def bound(control_plane: ControlPlane, name: str) -> str:
    found = await eventually(lambda: placed(control_plane), lambda each: bool(each.get(name)))
    return found[name]


# Lease


async def test_it_stands_by_for_kube_scheduler_and_takes_over_from_it(control_plane):
    add_nodes(control_plane, node("n1"))
    with ExitStack() as stack:
        theirs = control_plane.kube_scheduler(leaderElection=QUICK_ELECTION)
        leading = ExitStack()
        leading.enter_context(theirs)
        first = await eventually(lambda: lease(control_plane), lambda spec: bool(spec.get("holderIdentity")))
        ours = stack.enter_context(control_plane.stowplan(leaderElection=QUICK_ELECTION))
        create(control_plane, pod("before"))
        await bound(control_plane, "before")
        assert lines(ours, "Successfully bound pod to node") == []
        assert lease(control_plane)["holderIdentity"] == first["holderIdentity"]
        leading.close()
        create(control_plane, pod("after"))
        await bound(control_plane, "after")
        (line,) = lines(ours, "Successfully bound pod to node")
        assert 'pod="default/after" node="n1" evaluatedNodes=1 feasibleNodes=1' in line
        then = lease(control_plane)
        assert then["holderIdentity"] != first["holderIdentity"]
        assert then["leaseTransitions"] == first.get("leaseTransitions", 0) + 1
        ours.stop()
        assert ours.exit_status == 0
        assert lease(control_plane)["holderIdentity"] == ""


async def test_kube_scheduler_takes_over_from_it(control_plane):
    add_nodes(control_plane, node("n1"))
    with control_plane.stowplan(leaderElection=QUICK_ELECTION) as ours:
        await eventually(lambda: lease(control_plane), lambda spec: bool(spec.get("holderIdentity")))
        with control_plane.kube_scheduler(leaderElection=QUICK_ELECTION):
            ours.stop()
            create(control_plane, pod("after"))
            assert await bound(control_plane, "after") == "n1"
            assert lines(ours, "Successfully bound pod to node") == []


async def test_a_leader_whose_lease_someone_else_takes_stops_at_once(control_plane):
    add_nodes(control_plane, node("n1"))
    with control_plane.stowplan(leaderElection=QUICK_ELECTION) as ours:
        await eventually(lambda: lease(control_plane), lambda spec: bool(spec.get("holderIdentity")))
        create(control_plane, pod("before"))
        await bound(control_plane, "before")
        status = 'leader_election_master_status{name="kube-scheduler"} 1'
        assert status in ask(ours.server, "/metrics", token_of(ADMIN))[1]
        someone = {"spec": {"holderIdentity": "someone-else", "leaseDurationSeconds": 60}}
        control_plane.request("PATCH", LEASE, someone)
        await eventually(lambda: lines(ours, "Leaderelection lost"), bool)
        create(control_plane, pod("after"))
        ours.stop()
        assert ours.exit_status == 1
        assert placed(control_plane) == {"before": "n1", "after": ""}
        assert lease(control_plane)["holderIdentity"] == "someone-else"


async def test_a_standby_that_is_told_so_does_not_watch_the_cluster(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"))
    taken = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "someone-else", "leaseDurationSeconds": 60},
    }
    create(control_plane, taken, pod("p"))
    (port,) = free_ports(1)
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(control_plane.kubeconfig(SCHEDULER))},
        "leaderElection": QUICK_ELECTION,
        "delayCacheUntilActive": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    server = f"https://127.0.0.1:{port}"
    ours = Process(
        [*STOWPLAN, f"--config={tmp_path / 'config.json'}", *kubeadm_flags(control_plane, port)],
        tmp_path / "stowplan.log",
        lambda: answers(server, "/livez"),
    )
    ours.start()
    try:
        status, text = ask(server, "/readyz?verbose")
        assert status == 500
        assert "[-]sched-handler-sync failed" in text
        control_plane.request("PATCH", LEASE, {"spec": {"holderIdentity": ""}})
        await bound(control_plane, "p")
        assert answers(server, "/readyz")
    finally:
        ours.stop()


def lease(control_plane: ControlPlane) -> dict:
    try:
        return control_plane.request("GET", LEASE)["spec"]
    except HTTPError as refusal:
        refusal.close()
        return {}


# Pages


async def test_who_may_see_what(control_plane):
    who = {"admin": token_of(ADMIN), "nobody": token_of(NOBODY), "none": None, "wrong": "a-wrong-token"}
    health, secret = (
        ("/healthz", "/livez", "/readyz"),
        ("/metrics", "/configz", "/readyz/shutdown", "/nothing"),
    )
    with control_plane.stowplan() as ours:
        found = {
            path: {name: ask(ours.server, path, token)[0] for name, token in who.items()}
            for path in health + secret
        }
        refusal = json.loads(ask(ours.server, "/metrics")[1])
    assert found == {
        **{path: {"admin": 200, "nobody": 200, "none": 200, "wrong": 401} for path in health},
        **{path: {"admin": 200, "nobody": 403, "none": 403, "wrong": 401} for path in secret},
        "/nothing": {"admin": 404, "nobody": 403, "none": 403, "wrong": 401},
    }
    assert refusal["message"] == 'forbidden: User "system:anonymous" cannot get path "/metrics"'


async def test_pages_say_what_kube_scheduler_says(control_plane):
    add_nodes(control_plane, node("n1"), node("n2"))
    admin = token_of(ADMIN)
    shown, families, host = {}, {}, urlsplit(control_plane.server).netloc
    # A binding and an event, at least.
    asked = rf'rest_client_requests_total\{{code="201",host="{host}",method="POST"\}} ([2-9])'
    for number, scheduler in enumerate((control_plane.stowplan, control_plane.kube_scheduler)):
        with scheduler() as running:
            create(control_plane, pod(f"p{number}"), pod(f"big{number}", requests={"cpu": "100"}))
            await bound(control_plane, f"p{number}")
            shown[number] = {
                path: ask(running.server, path, admin)
                for path in ("/healthz", "/livez?verbose", "/readyz?verbose", "/readyz/nothing")
            }
            page = await eventually(
                lambda: ask(running.server, "/metrics", admin)[1],
                lambda page: re.search(asked, page) and "scheduler_event_handling_duration" in page,
            )
            families[number] = own_families(page)
    status, checks = shown[0]["/livez?verbose"]
    assert "[+]core-tasks ok\n" in checks  # a check that kube-scheduler does not have
    shown[0]["/livez?verbose"] = status, checks.replace("[+]core-tasks ok\n", "")
    assert shown[0] == shown[1]
    # What kube-scheduler shows for features that are Go's or of its own making.
    missing = set(families[1]) - set(families[0])
    assert {name for name in missing if name.startswith("scheduler_")} == set()
    assert {name: families[1][name] for name in families[0].keys() & families[1]} == {
        name: families[0][name] for name in families[0].keys() & families[1]
    }


def own_families(page: str) -> dict[str, tuple[str, frozenset[str]]]:
    """The type and the label names of each of a scheduler's families."""
    types = dict(re.findall(r"^# TYPE (scheduler_\S+) (\w+)$", page, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in types}
    for name, inside in re.findall(r"^(scheduler_\w+?)(?:_bucket|_sum|_count)?\{(.*)\} ", page, re.MULTILINE):
        if name in labels:
            labels[name] |= set(re.findall(r'(\w+)="', inside))
    return {name: (kind, frozenset(labels[name])) for name, kind in types.items()}


# Signals


async def test_told_to_stop_it_finishes_what_it_has_begun(control_plane):
    add_nodes(control_plane, node("n1"), node("n2"))
    with control_plane.stowplan() as ours:
        create(control_plane, *(pod(f"p{number}") for number in range(150)))
        await eventually(lambda: placed(control_plane), lambda each: any(each.values()))
        ours.stop()
        assert ours.exit_status == 0
        bound_pods = {name for name, where in placed(control_plane).items() if where}
        said = lines(ours, "Successfully bound pod to node")
        assert {re.search(r'pod="default/(\w+)"', line)[1] for line in said} == bound_pods
        events = control_plane.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        assert {
            event["regarding"]["name"] for event in events if event["reason"] == "Scheduled"
        } == bound_pods


async def test_it_says_what_it_holds(control_plane):
    add_nodes(control_plane, node("n1"))
    with control_plane.stowplan() as ours:
        create(control_plane, pod("p"), pod("big", requests={"cpu": "100"}), pod("x", schedulerName="other"))
        await bound(control_plane, "p")
        ours.send(SIGUSR2)
        await eventually(lambda: lines(ours, "Dump of cache and queue"), bool)
        text = ours.output
        assert "pods [default/p]" in text
        assert "default/big in unschedulable" in text
        assert lines(ours, "Cache mismatch") == []


async def test_it_reads_its_configuration_again(control_plane):
    add_nodes(control_plane, node("n1"))
    with control_plane.stowplan() as ours:
        (path,) = (
            Path(word.removeprefix("--config=")) for word in map(str, ours.command) if "--config=" in word
        )
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | {"profiles": [{"schedulerName": "another"}]}))
        ours.send(SIGHUP)
        await eventually(lambda: lines(ours, "Configuration reloaded"), bool)
        create(control_plane, pod("theirs"), pod("ours", schedulerName="another"))
        await bound(control_plane, "ours")
        path.write_text(json.dumps(document | {"profiles": [{"schedulerName": "bad", "nonsense": 1}]}))
        ours.send(SIGHUP)
        (line,) = await eventually(lambda: lines(ours, "Configuration not reloaded, the old one stays"), bool)
        assert "nonsense" in line
        create(control_plane, pod("more", schedulerName="another"))
        await bound(control_plane, "more")
        assert placed(control_plane)["theirs"] == ""


# As docs/operations.md has it


def documented(heading: str) -> list[str]:
    """The YAML under a heading of the page."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)


async def test_a_second_scheduler_needs_what_its_page_says_and_no_more(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"))
    configuration, account = documented("As second scheduler")
    (tmp_path / "account.yaml").write_text(account)
    control_plane.kubectl("apply", f"--filename={tmp_path / 'account.yaml'}")
    try:
        token = control_plane.kubectl("create", "token", "stowplan", "--namespace=kube-system").strip()
        kubeconfig = json.loads(control_plane.kubeconfig(ADMIN).read_text())
        kubeconfig["users"][0]["user"] = {"token": token}
        (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
        connection = f"clientConnection: {{kubeconfig: {tmp_path / 'kubeconfig'}}}\n"
        (tmp_path / "config.yaml").write_text(configuration + connection)
        (port,) = free_ports(1)
        server = f"https://127.0.0.1:{port}"
        ours = Process(
            [
                *STOWPLAN,
                f"--config={tmp_path / 'config.yaml'}",
                *("--bind-address=127.0.0.1", f"--secure-port={port}"),
                f"--authentication-kubeconfig={tmp_path / 'kubeconfig'}",
                f"--authorization-kubeconfig={tmp_path / 'kubeconfig'}",
            ],
            tmp_path / "stowplan.log",
            lambda: answers(server, "/readyz"),
        )
        ours.start()
        try:
            create(control_plane, pod("p", schedulerName="stowplan"), pod("q"))
            assert await bound(control_plane, "p") == "n1"
            assert placed(control_plane)["q"] == ""
            assert ask(server, "/metrics", token_of(ADMIN))[0] == 200
            leases = control_plane.request("GET", LEASE.rpartition("/")[0])["items"]
            names = [each["metadata"]["name"] for each in leases]
            # The API server renews a lease of its own, which the wipe before the test deleted.
            assert [name for name in names if not name.startswith("apiserver-")] == ["stowplan"]
            assert "orbidden" not in ours.output
        finally:
            ours.stop()
    finally:
        control_plane.kubectl("delete", f"--filename={tmp_path / 'account.yaml'}")


# Flags


def kubeadm_flags(control_plane: ControlPlane, port: int) -> list[str]:
    """What kubeadm writes into a manifest, but for its paths and its port."""
    kubeconfig = control_plane.kubeconfig(SCHEDULER)
    return [
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=true",
        f"--secure-port={port}",
    ]


async def test_a_manifest_of_kubeadm_needs_only_another_image(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"))
    (port,) = free_ports(1)
    server = f"https://127.0.0.1:{port}"
    ours = Process(
        [Path(sys.executable).parent / "kube-scheduler", *kubeadm_flags(control_plane, port), "--port=0"],
        tmp_path / "kube-scheduler.log",
        lambda: answers(server, "/readyz"),
    )
    ours.start()
    try:
        create(control_plane, pod("p"))
        assert await bound(control_plane, "p") == "n1"
        assert control_plane.request("GET", LEASE)["spec"]["holderIdentity"]
        assert any("--port" in line for line in ours.output.splitlines() if line.startswith("W"))
    finally:
        ours.stop()
    assert ours.exit_status == 0


def answers(server: str, path: str) -> bool:
    try:
        return ask(server, path)[0] == 200
    except OSError:
        return False


async def test_a_policy_is_read_from_its_config_map(control_plane, tmp_path):
    add_nodes(control_plane, node("empty"), node("busy"))
    filler = pod("filler", requests={"cpu": "2", "memory": "4Gi"}, nodeName="busy")
    policy = {
        "kind": "Policy",
        "apiVersion": "v1",
        "predicates": [{"name": "PodFitsResources"}],
        "priorities": [{"name": "MostRequestedPriority", "weight": 1}],
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "old-policy", "namespace": "kube-system"},
        "data": {"policy.cfg": json.dumps(policy)},
    }
    create(control_plane, filler, config_map)
    ours = Process(
        [
            *STOWPLAN,
            f"--kubeconfig={control_plane.kubeconfig(ADMIN)}",
            *("--leader-elect=false", "--secure-port=0", "--policy-configmap=old-policy"),
        ],
        tmp_path / "stowplan.log",
        lambda: bool(lines(ours, "Starting to schedule")),
    )
    try:
        ours.start()
        create(control_plane, pod("p", requests={"cpu": "1", "memory": "1Gi"}))
        assert await bound(control_plane, "p") == "busy"
        ours.send(SIGHUP)
        await eventually(lambda: lines(ours, "Starting to schedule"), lambda found: len(found) == 2)
        create(control_plane, pod("q", requests={"cpu": "500m", "memory": "1Gi"}))
        assert await bound(control_plane, "q") == "busy"
    finally:
        ours.stop()
        control_plane.kubectl("delete", "configmap", "old-policy", "--namespace=kube-system")


async def test_both_write_the_same_configuration(control_plane, tmp_path):
    written = {}
    for name, command in (("ours", STOWPLAN), ("theirs", (str(program("kube-scheduler")),))):
        path = tmp_path / name
        done = run(*kubeadm_flags(control_plane, 0), f"--write-config-to={path}", command=command)
        assert done.returncode == 0, done.stderr
        written[name] = msgspec.yaml.decode(path.read_bytes())
    assert written["ours"] == written["theirs"]


# Bad input


def run(*flags: str, command: tuple[str, ...] = STOWPLAN, seconds: float = 20) -> subprocess.CompletedProcess:
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="missing"),
        pytest.param("clusters: [", "is not YAML", id="not YAML"),
        pytest.param("{}", "current-context", id="empty"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_ends_it(tmp_path, text, message):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    done = run(f"--kubeconfig={path}", "--leader-elect=false", "--secure-port=0")
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("E"))
    assert '"command failed"' in line
    assert str(path) in line
    assert message in line


def other_authority(control_plane: ControlPlane, folder: Path) -> Path:
    """The admin's kubeconfig, but with the certificate of someone who did not sign the API server's."""
    document = json.loads(control_plane.kubeconfig(ADMIN).read_text())
    with control_plane.stowplan() as other:
        certificate = ssl.get_server_certificate(("127.0.0.1", int(other.server.rpartition(":")[2])))
    (folder / "other.crt").write_text(certificate)
    document["clusters"][0]["cluster"]["certificate-authority"] = str(folder / "other.crt")
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("kubeconfig", "messages"),
    [
        pytest.param(
            lambda control_plane, folder: control_plane.kubeconfig(NOBODY),
            [
                'User \\"nobody\\" cannot list resource \\"pods\\"',
                "binding it to the ClusterRoles system:kube-scheduler and system:volume-scheduler",
            ],
            id="missing rights",
        ),
        pytest.param(
            other_authority,
            ["the API server's certificate is not trusted", "set certificate-authority"],
            id="wrong certificate authority",
        ),
    ],
)
async def test_what_may_be_mended_meanwhile_is_said_and_tried_again(
    control_plane, tmp_path, kubeconfig, messages
):
    path = kubeconfig(control_plane, tmp_path)
    ours = Process(
        [*STOWPLAN, f"--kubeconfig={path}", "--leader-elect=false", "--secure-port=0"],
        tmp_path / "stowplan.log",
        lambda: bool(lines(ours, "Watch failed; retrying")),
    )
    ours.start()
    try:
        await eventually(
            lambda: [line for line in lines(ours, "Watch failed; retrying") if 'resource="pods"' in line],
            lambda found: any(all(message in line for message in messages) for line in found),
        )
    finally:
        ours.stop()
    assert ours.exit_status == 0
