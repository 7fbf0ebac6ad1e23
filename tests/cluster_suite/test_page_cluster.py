"""`stowplan page` on a `stowplan run` of a real control plane: with the rights it needs, and without."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from controlplane.control_plane import ADMIN, NOBODY
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

PAGE = (sys.executable, "-m", "stowplan.cli", "page", "--no-open", "--insecure-skip-tls-verify")


@contextmanager
def page(server: str, kubeconfig: Path, log: Path) -> Iterator[str]:
    """The link that it prints."""
    found: list[str] = []

    def is_ready() -> bool:
        found[:] = re.findall(r"http://127\.0\.0\.1:\S+", process.output)
        return bool(found)

    process = Process([*PAGE, f"--server={server}", f"--kubeconfig={kubeconfig}"], log, is_ready)
    process.start()
    try:
        yield found[0]
    finally:
        process.stop()


def refused(*flags: str) -> str:
    found = subprocess.run([*PAGE, *flags], capture_output=True, text=True, timeout=30)
    assert found.returncode == 1
    return found.stderr


def asked(link: str, door: str, body: object = None) -> tuple[int, object]:
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        with urlopen(Request(link + door, data, headers), timeout=30) as response:
            return response.status, json.loads(response.read())
    except HTTPError as refusal:
        with refusal:
            return refusal.code, json.loads(refusal.read())


async def test_the_page_through_a_local_port(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"))
    create(control_plane, pod("p"))
    with control_plane.stowplan() as ours:
        await eventually(lambda: placed(control_plane), lambda each: bool(each.get("p")))
        on = placed(control_plane)["p"]
        with page(ours.server, control_plane.kubeconfig(ADMIN), tmp_path / "page.log") as link:
            with urlopen(link, timeout=30) as response:
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert response.headers["Content-Type"] == "text/html; charset=utf-8"
            _, live = asked(link, "api/live")
            assert [(each["pod"], each["node"]) for each in live["decisions"]] == [("default/p", on)]
            _, told = asked(link, "api/decisions?pod=default%2Fp")
            assert told["decision"]["node"] == on
            _, found = asked(link, "api/what-if", {"lose": [on]})
            assert [(each["pod"], each["outcome"]) for each in found["pods"]] == [("default/p", "gone")]
        said = refused(f"--server={ours.server}", f"--kubeconfig={control_plane.kubeconfig(NOBODY)}")
        assert 'cannot get path "/page/"; the page requires a role' in said
        said = refused("--server=https://127.0.0.1:1", f"--kubeconfig={control_plane.kubeconfig(ADMIN)}")
        assert "is a scheduler there?" in said
    assert placed(control_plane) == {"p": on}
