"""ControllerRevisions: the templates that a StatefulSet or DaemonSet has had, and the name of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from stowplan.api.meta import Json
from stowplan.client.errors import Conflict
from stowplan.controllers.deployments import hash_of
from stowplan.controllers.kinds import Kind, Plain, Revision
from stowplan.controllers.owned_pods import owner_of
from stowplan.controllers.stores import Store, encode_sorted, owner_keys

HASH_LABEL = "controller-revision-hash"


class Templates(NamedTuple):
    """The newest template by its name, and those before it that are still known."""

    update: str
    by_name: dict[str, Json]


class Revisions:
    def __init__(self, kind: Kind[Plain], store: Store[Revision]) -> None:
        self._kind, self._store = kind, store
        self._owned = store.index(owner_keys)

    async def sync(self, owner: Plain, in_use: Iterable[str]) -> Templates:
        """Create a revision of the current template, and delete the oldest unused ones beyond the limit."""
        known = sorted(self._owned.of(owner.uid), key=lambda each: each.revision)
        template = owner.spec["template"]
        last = known[-1].revision if known else 0
        newest = next((each for each in known if template_in(each) == template), None)
        if newest is None:
            newest = await self._create(owner, template, last + 1)
            known.append(newest)
        elif newest.revision < last:  # rolled back
            known.remove(newest)
            newest = await self._store.patch(newest, {"revision": last + 1})
            known.append(newest)
        idle = [each for each in known if each is not newest and each.name not in set(in_use)]
        for item in idle[: max(len(idle) - owner.spec.get("revisionHistoryLimit", 10), 0)]:
            await self._store.delete(item)
        return Templates(newest.name, {each.name: template_in(each) for each in known})

    async def _create(self, owner: Plain, template: Json, revision: int) -> Revision:
        name = f"{owner.name}-{hash_of(template)}"
        labels = (template.get("metadata") or {}).get("labels") or {}
        body = {
            "metadata": {
                "name": name,
                "labels": {**labels, HASH_LABEL: name.rpartition("-")[2]},
                "ownerReferences": [owner_of(self._kind, owner)],
            },
            # With its keys in order, as clients that compare it byte for byte make it.
            "data": msgspec.json.decode(
                encode_sorted({"spec": {"template": {**template, "$patch": "replace"}}})
            ),
            "revision": revision,
        }
        try:
            return await self._store.create(owner.namespace, body)
        except Conflict:
            known = await self._store.read(owner.namespace, name)
            owned = known.metadata.controller()
            if owned is None or owned.uid != owner.uid:
                raise  # its owner was deleted: the garbage collector deletes it
            return known


def template_in(revision: Revision) -> Json:
    template = (revision.data.get("spec") or {}).get("template") or {}
    return {name: value for name, value in template.items() if name != "$patch"}
