"""What nodes have that columns cannot hold: host ports in use and images, each found by its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from stowplan.api.node import ContainerImage
from stowplan.api.pod import HostPort
from stowplan.cluster.columns import Mask


class PortIndex:
    """Host ports by protocol and number, then address: the rows where they are taken."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], dict[str, set[int]]] = {}
        self._on: dict[int, set[HostPort]] = {}

    def on(self, row: int) -> Iterable[HostPort]:
        return self._on.get(row, ())

    def add(self, row: int, port: HostPort) -> None:
        self._rows.setdefault((port.protocol, port.port), {}).setdefault(port.ip, set()).add(row)
        self._on.setdefault(row, set()).add(port)

    def remove(self, row: int, port: HostPort) -> None:
        # parity: ports in use are a set, so the first of two pods with the same port frees it
        self._rows[port.protocol, port.port][port.ip].discard(row)
        self._on[row].discard(port)

    def taken(self, wanted: Sequence[HostPort], length: int) -> Mask:
        mask = np.zeros(length, np.bool_)
        for port in wanted:
            by_address = self._rows.get((port.protocol, port.port), {})
            addresses = by_address if port.is_on_every_address else ("0.0.0.0", port.ip)
            for address in addresses:
                mask[list(by_address.get(address, ()))] = True
        return mask

    def move(self, source: int, target: int) -> None:
        for port in tuple(self.on(source)):
            self.remove(source, port)
            self.add(target, port)


def ports_conflict(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> bool:
    return any(
        port.protocol == other.protocol
        and port.port == other.port
        and (port.is_on_every_address or other.is_on_every_address or port.ip == other.ip)
        for port in wanted
        for other in taken
    )


class ImageState(NamedTuple):
    size: int
    """In bytes, as the first node reported it that had the image."""
    rows: set[int]


class ImageIndex(dict[str, ImageState]):
    """Images by every name that nodes know them by."""

    def add(self, row: int, images: Iterable[ContainerImage]) -> None:
        for image in images:
            for name in image.names:
                state = self.get(name)
                if state is None:
                    state = self[name] = ImageState(image.size_bytes, set())
                state.rows.add(row)

    def remove(self, row: int, images: Iterable[ContainerImage]) -> None:
        for image in images:
            for name in image.names:
                state = self.get(name)
                if state is not None:
                    state.rows.discard(row)
                    if not state.rows:
                        del self[name]

    def move(self, source: int, target: int, images: Iterable[ContainerImage]) -> None:
        for image in images:
            for name in image.names:
                self[name].rows.discard(source)
                self[name].rows.add(target)
