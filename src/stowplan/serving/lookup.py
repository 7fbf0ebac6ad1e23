"""The CA of client certificates, where only the cluster knows it."""

from __future__ import annotations

from typing import Any, Protocol

from stowplan.errors import InputError, StowplanError
from stowplan.log import warn

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
ADVICE = (
    f"let this account read it, by a RoleBinding in {NAMESPACE} to the Role "
    "extension-apiserver-authentication-reader, or give --client-ca-file or --authentication-skip-lookup"
)


class JsonReader(Protocol):
    async def get_json(self, path: str) -> Any: ...


async def cluster_client_ca(api: JsonReader, *, tolerate_failure: bool = True) -> str:
    """The certificates in PEM; empty where the cluster has none, or, if that is tolerated, does not tell."""
    try:
        found = await api.get_json(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}")
    except StowplanError as error:
        if not tolerate_failure:
            raise InputError(f"{error}; {ADVICE}", where=f"ConfigMap {NAMESPACE}/{NAME}") from error
        warn("Client certificates are not accepted: their CA cannot be read", err=error, advice=ADVICE)
        return ""
    return str((found.get("data") or {}).get("client-ca-file", ""))
