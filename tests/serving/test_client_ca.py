"""The cluster's CA of client certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asking import Authority, ask, serving, trusting_anyone

from stowplan.errors import InputError, StowplanError
from stowplan.serving import cluster_client_ca


class Cluster:
    def __init__(self, found: Any) -> None:
        self.found = found

    async def get_json(self, path: str) -> Any:
        assert path == "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "certificates"),
    [
        pytest.param({"data": {"client-ca-file": "PEM"}}, "PEM", id="there"),
        pytest.param({"data": {"requestheader-client-ca-file": "PEM"}}, "", id="only a proxy's"),
        pytest.param({}, "", id="nothing in it"),
        pytest.param(StowplanError("forbidden"), "", id="may not be read"),
    ],
)
async def test_lookup(found: Any, certificates: str):
    assert await cluster_client_ca(Cluster(found)) == certificates


async def test_a_failure_that_is_not_tolerated():
    with pytest.raises(InputError, match="forbidden; let this account read it, by a RoleBinding"):
        await cluster_client_ca(Cluster(StowplanError("forbidden")), tolerate_failure=False)


async def test_client_certificates_of_the_cluster(tmp_path: Path):
    authority = Authority(tmp_path)
    client = trusting_anyone(authority.issue("root", groups=["system:masters"]))
    async with serving(client_ca=authority.file.read_text()) as running:
        assert (await ask(running.port, "/metrics", context=client)).status == 200


async def test_certificates_that_are_none():
    with pytest.raises(
        InputError, match="the cluster's CA of client certificates: cannot load CA certificates"
    ):
        async with serving(client_ca="nonsense"):
            pass
