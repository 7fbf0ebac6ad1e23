"""Alerts, recording rules and the dashboard, with the real Prometheus and promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from controlplane.control_plane import ADMIN, ControlPlane, free_ports, token_of
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually
from stowplan.deploy.manifests import MONITORING

UNIT_TESTS = Path(__file__).parents[1] / "deploy/alerts.yaml"
RULES = MONITORING / "rules.yaml"
ALWAYS_SHOWN = {
    "Nodes",
    "Attempts by result",
    "Pending pods by queue",
    "Decision",
    "Memory",
    "Requests by code",
}
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(
            f"{name} is not on PATH; Debian has it: apt-get install --no-install-recommends prometheus"
        )
    return found


def test_the_alerts_pass_their_unit_tests():
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(UNIT_TESTS)]):
        done = subprocess.run([tool("promtool"), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


def query(url: str, path: str, **parameters: str) -> Any:
    address = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with OPENER.open(address, timeout=10) as answer:
        return json.load(answer)["data"]


def prometheus(folder: Path, target: str, port: int) -> Process:
    token = folder / "token"
    token.write_text(token_of(ADMIN))
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "stowplan",
                "scheme": "https",
                "tls_config": {"insecure_skip_verify": True},
                "authorization": {"credentials_file": str(token)},
                "static_configs": [{"targets": [target]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    url = f"http://127.0.0.1:{port}"
    command = [
        tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    return Process(command, folder / "prometheus.log", lambda: is_ready(url))


def is_ready(url: str) -> bool:
    try:
        with OPENER.open(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def shown_panels(url: str) -> set[str]:
    """Titles of the panels that show something; a query that Prometheus rejects is an error."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    found = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*")
            if query(url, "query", query=text)["result"]:
                found.add(panel["title"])
    return found


async def test_prometheus_evaluates_the_rules_and_every_query_of_the_dashboard(
    control_plane: ControlPlane, tmp_path: Path
):
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with control_plane.stowplan() as ours:
        server = prometheus(tmp_path, ours.server.removeprefix("https://"), port)
        server.start()
        try:
            add_nodes(control_plane, node("n1"))
            create(control_plane, pod("p"), pod("too-large", requests={"cpu": "1000"}))
            await eventually(lambda: placed(control_plane), lambda found: found["p"] == "n1")
            await eventually(
                lambda: query(
                    url, "query", query='job_queue:scheduler_pending_pods:sum{queue="unschedulable"} == 1'
                ),
                lambda found: bool(found["result"]),
            )
            groups = query(url, "rules")["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            await eventually(
                lambda: [
                    rule["health"] for group in query(url, "rules")["groups"] for rule in group["rules"]
                ],
                lambda found: set(found) == {"ok"},
            )
            assert len(rules) == RULES.read_text().count("expr:")
            # StowplanDown is pending until alerts are evaluated after the first scrape.
            await eventually(
                lambda: {each["labels"]["alertname"] for each in query(url, "alerts")["alerts"]},
                lambda found: found <= {"StowplanUnschedulablePods"},
            )
            # A rate needs two samples, so it is there a moment later.
            await eventually(lambda: shown_panels(url), lambda found: found >= ALWAYS_SHOWN)
            (job,) = query(
                url, "label/job/values", **{"match[]": 'kubernetes_build_info{git_version=~".*stowplan.*"}'}
            )
            assert job == "stowplan"
        finally:
            server.stop()
