"""`stowplan run` where a pod finds its account, and without any kubeconfig."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from deployed import answers, applied, rendered

from controlplane.control_plane import ADMIN, NOBODY, free_ports, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
profiles: [{schedulerName: in-a-pod}]
"""
ENTER = """
mount -t tmpfs tmpfs /var/run
mkdir -p /var/run/secrets/kubernetes.io
cp -r "$1" /var/run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"
"""
"""In a file system of its own, so that nobody else sees the account."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program a file system of its own")
async def test_its_account_schedules_and_says_who_may_look(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"))
    (tmp_path / "config.yaml").write_text(CONFIG)
    (port,) = free_ports(1)
    server = f"https://127.0.0.1:{port}"
    text = rendered(tmp_path / "config.yaml", "--replicas=1")
    with applied(control_plane, text, tmp_path):
        cluster = json.loads(control_plane.kubeconfig(ADMIN).read_text())["clusters"][0]["cluster"]
        account = tmp_path / "account"
        account.mkdir()
        (account / "ca.crt").write_bytes(Path(cluster["certificate-authority"]).read_bytes())
        token = control_plane.kubectl("create", "token", "stowplan", "--namespace=stowplan").strip()
        (account / "token").write_text(token)
        address = urlsplit(cluster["server"])
        ours = Process(
            [
                *("unshare", "--mount", "sh", "-ec", ENTER, "sh", account),
                *("env", f"KUBERNETES_SERVICE_HOST={address.hostname}"),
                f"KUBERNETES_SERVICE_PORT={address.port}",
                *(sys.executable, "-m", "stowplan.cli", "run", f"--config={tmp_path / 'config.yaml'}"),
                *("--bind-address=127.0.0.1", f"--secure-port={port}"),
            ],
            tmp_path / "stowplan.log",
            lambda: answers(server, "/readyz"),
        )
        ours.start()
        try:
            create(control_plane, pod("p", schedulerName="in-a-pod"))
            await eventually(lambda: placed(control_plane), lambda found: found["p"] == "n1")
            asked = {who: ask(server, "/metrics", token_of(who))[0] for who in (ADMIN, NOBODY)}
            assert asked == {ADMIN: 200, NOBODY: 403}
            assert ask(server, "/metrics", "wrong")[0] == 401
        finally:
            ours.stop()
        assert ours.exit_status == 0
