"""ResourceQuotas: what the objects of a namespace use of each.

Admission charges new objects at once. This controller sets the limits, sums up what was there before, and
returns what deleted and finished objects have used.
"""

from __future__ import annotations

from functools import partial

from stowplan.api import quota
from stowplan.api.meta import Json
from stowplan.api.quantity import Quantity
from stowplan.controllers.discovery import Discovered
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import QUOTAS, Kind, Known, Plain, PodView
from stowplan.controllers.stores import Stores, by_namespace

_CHANGES = (quota.SERVICES, quota.CLAIMS)
"""Resources whose objects may come to use less without being deleted."""


class Quotas(Controller):
    def __init__(self, stores: Stores, discovered: Discovered) -> None:
        super().__init__(stores)
        self._discovered, self._quotas = discovered, self.store(QUOTAS)
        self._of_namespace = self._quotas.index(by_namespace)
        self._watched: set[str] = set()
        self._quotas.listen(self._on_quota)

    def _on_quota(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and (old is None or new.spec.get("hard") != new.status.get("hard")):
            self.queue.add(new.key)

    async def reconcile(self, key: str) -> None:
        item = self._quotas.get(key)
        if item is None or item.is_terminating:
            return
        hard = item.spec.get("hard") or {}
        used: dict[str, Quantity] = {}
        for resource in sorted(quota.resources_of(hard)):
            kind = await self._find(resource)
            if kind is not None:
                self._watch(resource, kind)
                used |= await self._measure(item, resource, kind)
        status: Json = {"hard": hard, "used": quota.write(used)}
        if any((item.status.get(part) or {}) != status[part] for part in status):
            for part in status:  # a merge patch removes what it names as null
                status[part] = {**dict.fromkeys(item.status.get(part) or {}), **status[part]}
            await self._quotas.patch_status(item, status)

    async def _find(self, resource: str) -> Kind[Known] | None:
        """The kind of a resource such as `deployments.apps`."""
        plural, _, group = resource.partition(".")
        for is_last in (False, True):
            for kind in self._discovered.kinds:
                if kind.plural == plural and kind.api_version.rpartition("/")[0] == group:
                    return kind if kind.namespaced else None
            if not is_last and not await self._discovered.look():
                break
        return None

    def _watch(self, resource: str, kind: Kind[Known]) -> None:
        if resource not in self._watched:
            self._watched.add(resource)
            self.stores.of(kind).listen(partial(self._on_object, resource))

    def _on_object(self, resource: str, old: Known | None, new: Known | None) -> None:
        item = new if new is not None else old
        assert item is not None
        if old is None or not _may_use_less(resource, old, new):
            return
        for each in self._of_namespace.of(item.namespace):
            if quota.counted_names(resource, each.spec.get("hard") or ()):
                self.queue.add(each.key)

    async def _measure(self, item: Plain, resource: str, kind: Kind[Known]) -> quota.Amounts:
        root = kind.path.removesuffix(kind.plural)
        found = await self.stores.api.get_json(f"{root}namespaces/{item.namespace}/{kind.plural}")
        names = quota.counted_names(resource, item.spec.get("hard") or ())
        total = dict.fromkeys(names, Quantity(0))
        for data in found["items"]:
            if quota.matches_scopes(resource, item.spec, data):
                for name, amount in quota.usage_of(resource, data).items():
                    if name in total:
                        total[name] = quota.add(total[name], amount)
        return total


def _may_use_less(resource: str, old: Known, new: Known | None) -> bool:
    if new is None or resource in _CHANGES:
        return True
    return isinstance(new, PodView) and isinstance(old, PodView) and new.is_finished != old.is_finished
