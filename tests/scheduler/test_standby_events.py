"""Events of plugins about objects that a standby has seen: they are written once it leads, if still true."""

from __future__ import annotations

from typing import Any, ClassVar

from scheduler_staging import Stage, pod, staged
from stowplan.api.meta import decode
from stowplan.framework import CustomResource, Definition, Plugin, Status

CONFIG = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Checks"}]}}}]}


class Shelf(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "shelves", "Shelf", namespaced=False)
    width: int = 0
    status: dict[str, int] = {}


class Checks(Plugin):
    """Holds back all pods, and says so; reports each shelf that is too wide once."""

    watches = (Shelf,)

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.reported: set[tuple[str, int]] = set()

    def pre_enqueue(self, pod: Any) -> Status | None:
        self.handle.record_event(pod, "Warning", "Waits", f"{pod.name} waits")
        for item in self.handle.watched(Shelf):
            if item.width > 5 and (item.metadata.uid, item.width) not in self.reported:
                self.reported.add((item.metadata.uid, item.width))
                self.handle.record_event(item, "Warning", "TooWide", f"{item.name} is {item.width} wide")
        return Status.unschedulable("no")


def shelf(name: str, width: int, uid: str = "1", version: int = 1, **status: int) -> Shelf:
    meta = {"name": name, "uid": f"{name}-{uid}", "resourceVersion": str(version)}
    return decode(Shelf, {"metadata": meta, "width": width, "status": status})


def tell(stage: Stage, old: Shelf | None, new: Shelf | None) -> None:
    kind = "added" if old is None else "modified" if new is not None else "deleted"
    stage.scheduler.handlers.on_event(kind, old, new)
    # A pod comes, so that the plugin looks, and goes.
    stage.see(pod("visitor"))
    stage.change(pod("visitor"), None)


async def test_what_a_standby_has_seen_is_reported_once_when_it_leads():
    async with staged(CONFIG, {"Checks": Checks}) as stage:
        stage.is_leading = False
        tell(stage, None, shelf("wide", 6))
        tell(stage, shelf("wide", 6), shelf("wide", 6, version=2, books=3))
        tell(stage, None, shelf("growing", 7))
        tell(stage, shelf("growing", 7), shelf("growing", 8, version=2))
        stage.see(pod("waiting"))
        await stage.settle()
        assert stage.api.events == []
        stage.is_leading = True
        stage.scheduler.start()
        await stage.settle()
        expected = ["growing is 8 wide", "wide is 6 wide"]
        assert stage.notes("Waits") == ["waiting waits"]
        assert sorted(stage.notes("TooWide")) == expected
        tell(stage, None, shelf("new", 9))
        await stage.settle()
        assert sorted(stage.notes("TooWide")) == sorted([*expected, "new is 9 wide"])


async def test_what_is_no_longer_true_when_it_leads_is_not_reported():
    async with staged(CONFIG, {"Checks": Checks}) as stage:
        stage.is_leading = False
        tell(stage, None, shelf("corrected", 6))
        tell(stage, shelf("corrected", 6), shelf("corrected", 5, version=2))
        tell(stage, None, shelf("deleted", 6))
        tell(stage, shelf("deleted", 6), None)
        tell(stage, None, shelf("another", 6))
        tell(stage, shelf("another", 6), None)
        tell(stage, None, shelf("another", 5, uid="2"))
        stage.see(pod("placed"))
        stage.change(pod("placed"), pod("placed", on="n1"))
        stage.is_leading = True
        stage.scheduler.start()
        await stage.settle()
        assert stage.api.events == []


async def test_a_standby_keeps_a_limited_number_of_events():
    async with staged(CONFIG, {"Checks": Checks}) as stage:
        stage.is_leading = False
        for number in range(3000):
            tell(stage, None, shelf(f"s{number}", 6))
        stage.is_leading = True
        stage.scheduler.start()
        for _ in range(20):
            await stage.settle()
        assert 990 < len(stage.notes("TooWide")) <= 1000
        assert "s2999 is 6 wide" in stage.notes("TooWide")
