"""Which kinds an API server has, custom ones included: asked now and then."""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan import log
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.controllers.kinds import CUSTOM_TYPES, Kind, Known

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
NEEDED = {"delete", "list", "watch"}
IGNORED = {"events"}
"""Not watched: there are many of them, they have no owner, and they expire after an hour."""


async def kinds_of(api: ApiClient) -> list[Kind[Known]]:
    """All kinds that can be watched and deleted, each in the version that the server prefers."""
    found: list[Kind[Known]] = []
    for root in ("/api", "/apis"):
        answer = msgspec.json.decode((await api.request("GET", root, accept=AGGREGATED)).data)
        for group in answer.get("items", ()):
            found += _kinds_in(group)
    return found


def _kinds_in(group: Any) -> list[Kind[Known]]:
    name = (group.get("metadata") or {}).get("name", "")
    known: dict[str, Kind[Known]] = {}
    for version in group.get("versions", ()):
        api_version = f"{name}/{version['version']}" if name else version["version"]
        for resource in version.get("resources", ()):
            plural = resource["resource"]
            if plural not in known and plural not in IGNORED and set(resource["verbs"]) >= NEEDED:
                kind, namespaced = resource["responseKind"]["kind"], resource["scope"] == "Namespaced"
                path = Kind(api_version, kind, plural, Known).path
                known[plural] = Kind(api_version, kind, plural, CUSTOM_TYPES.get(path, Known), namespaced)
    return list(known.values())


class Discovered:
    """The kinds as they were last seen."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.kinds: list[Kind[Known]] = []

    async def look(self) -> bool:
        """Whether it could be asked."""
        try:
            self.kinds = await kinds_of(self._api)
        except ApiError as error:
            log.warn("Cannot discover API kinds; retrying", err=error.message)
            return False
        return True

    def find(self, api_version: str, name: str) -> Kind[Known] | None:
        """A kind of this group and name; an owner may be named by any version."""
        group = api_version.rpartition("/")[0]
        return next(
            (
                each
                for each in self.kinds
                if each.name == name and each.api_version.rpartition("/")[0] == group
            ),
            None,
        )
