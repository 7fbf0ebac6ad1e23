"""NetworkTraffic in `stowplan run`, on a real control plane and with Debian's real Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from deployed import process_of
from traffic import Exporter, Prometheus, prometheus

from controlplane.control_plane import ADMIN, SCHEDULER, ControlPlane, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

ADDRESSES = {"quiet": "127.0.1.1", "sending": "127.0.1.2", "busy": "127.0.1.3"}
STALE = "stowplan_network_traffic_stale_total"
WITHOUT_DATA = "stowplan_network_traffic_nodes_without_data_total"
BOTH = "rate(node_network_receive_bytes_total[1m]) + rate(node_network_transmit_bytes_total[1m])"
KUBEADM = Path(__file__).parent / "kubeadm-kube-scheduler.yaml"
PRINTED = Path(__file__).parents[1] / "tutorials" / "printed_1" / "networktraffic-config.yaml"


def addressed(name: str, address: str) -> dict[str, Any]:
    made = node(name)
    made["status"] = made["status"] | {"addresses": [{"type": "InternalIP", "address": address}]}
    return made


def profile(server: Prometheus, **args: Any) -> dict[str, Any]:
    args = {"prometheusAddress": server.server, "timeRangeInMinutes": 1, "refreshSeconds": 0.2} | args
    return {
        "plugins": {"score": {"enabled": [{"name": "NetworkTraffic"}], "disabled": [{"name": "*"}]}},
        "pluginConfig": [{"name": "NetworkTraffic", "args": args}],
    }


async def scraped(server: Prometheus, exporters: Mapping[str, Exporter]) -> None:
    """Until there is a rate of every node, once for each of the two interfaces."""
    await eventually(lambda: server.count(BOTH), lambda series: series == 2 * len(exporters))


def readings(scheduler: Process) -> int:
    return scheduler.output.count('"Read network traffic of nodes"')


async def reading(scheduler: Process) -> None:
    await eventually(lambda: scheduler.output, lambda said: '"Reading network traffic of nodes"' in said)


async def where(control_plane: ControlPlane, name: str) -> str:
    """The node that a new pod of that name gets."""
    create(control_plane, pod(name))
    return (await eventually(lambda: placed(control_plane), lambda each: bool(each[name])))[name]


def counted(scheduler: Process, counter: str) -> float:
    _, page = ask(scheduler.server, "/metrics", token_of(ADMIN))
    found = re.search(rf"^{counter} (\S+)$", page, re.MULTILINE)
    assert found is not None, f"no {counter} in /metrics"
    return float(found[1])


async def test_pods_go_where_there_is_least_traffic_and_anywhere_without_prometheus(control_plane, tmp_path):
    exporters = {
        "quiet": Exporter(ADDRESSES["quiet"], receive=2_000, transmit=1_000),
        "sending": Exporter(ADDRESSES["sending"], receive=10, transmit=50_000),
        "busy": Exporter(ADDRESSES["busy"], receive=900_000, transmit=900_000),
    }
    add_nodes(control_plane, *(addressed(*each) for each in ADDRESSES.items()), node("unknown"))
    with prometheus(tmp_path, exporters) as server:
        await scraped(server, exporters)
        with control_plane.stowplan("-v=5", profiles=[profile(server, staleAfterSeconds=1)]) as scheduler:
            await reading(scheduler)
            assert [await where(control_plane, name) for name in ("a", "b")] == ["quiet", "quiet"]
            scores = dict(re.findall(r'pod="default/a" .* node="(\S+)" score=(\d+)', scheduler.output))
            assert scores["busy"] == "0"
            assert int(scores["unknown"]) < int(scores["quiet"])
            assert counted(scheduler, WITHOUT_DATA) >= 1
            assert counted(scheduler, STALE) == 0

            exporters["quiet"].receive = 30_000_000
            await eventually(lambda: server.count(f"{BOTH} > 2e6"), lambda series: series == 1)
            before = readings(scheduler)
            await eventually(lambda: readings(scheduler), lambda now: now > before + 1)
            assert await where(control_plane, "c") == "sending"

            server.stop()
            await eventually(lambda: counted(scheduler, STALE), lambda refreshes: refreshes > 0)
            assert await where(control_plane, "d") in {*ADDRESSES, "unknown"}
            assert scheduler.output.count('"Cannot read network traffic of nodes"') == 1


async def test_compat_goes_by_all_that_was_ever_received(control_plane, tmp_path):
    exporters = {
        "quiet": Exporter(ADDRESSES["quiet"], receive=0, transmit=0, since=5e12),
        "sending": Exporter(ADDRESSES["sending"], receive=5_000, transmit=5e9, since=1e6),
    }
    add_nodes(control_plane, node("quiet"), node("sending"))
    with prometheus(tmp_path, exporters) as server:
        totals = 'node_network_receive_bytes_total{device="ens192"}'
        await eventually(lambda: server.count(totals), lambda series: series == len(exporters))
        with control_plane.stowplan(profiles=[profile(server, compat=True)]) as scheduler:
            await reading(scheduler)
            assert await where(control_plane, "a") == "sending"


async def test_the_tutorials_configuration_in_kubeadms_manifest(control_plane, tmp_path):
    folder = tmp_path / "kubernetes"
    folder.mkdir()
    # Configurations of v1beta1 get the query of their time, which sums the receive counter.
    exporters = {name: Exporter(address, receive=1e6, transmit=1) for name, address in ADDRESSES.items()}
    exporters["quiet"].receive, exporters["quiet"].transmit = 1, 1e6
    add_nodes(control_plane, *(addressed(*each) for each in ADDRESSES.items()))
    with prometheus(tmp_path, exporters) as server:
        config = PRINTED.read_text().replace("<address of Prometheus>", server.server)
        (folder / "networktraffic-config.yaml").write_text(config.replace("/etc/kubernetes", str(folder)))
        (folder / "scheduler.conf").write_bytes(control_plane.kubeconfig(SCHEDULER).read_bytes())
        (container,) = yaml.safe_load(KUBEADM.read_text())["spec"]["containers"]
        scheduler = process_of(container, {"/etc/kubernetes": folder}, tmp_path)
        await scraped(server, exporters)
        scheduler.start()
        try:
            await reading(scheduler)
            assert await where(control_plane, "a") == "quiet"
        finally:
            scheduler.stop()
