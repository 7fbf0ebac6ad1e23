"""A TCP proxy before the API server whose connections can be made half-open: they stand, but carry nothing.

It does not look into what it passes on, so that TLS and HTTP/2 work as they would without it.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import urlsplit

from controlplane.control_plane import SCHEDULER, ControlPlane

Way = Literal["both", "down", "up"]
"""What is lost: all, what the API server sends, or what its client sends."""
WAYS: dict[Way, frozenset[str]] = {
    "both": frozenset({"up", "down"}),
    "down": frozenset({"down"}),
    "up": frozenset({"up"}),
}


class _Pair:
    """A connection of a client, with ours to the API server; `lost` says what does not get through."""

    def __init__(self, client: socket.socket, server: socket.socket, lost: frozenset[str]) -> None:
        self.client, self.server, self.lost, self.is_over = client, server, lost, False
        for source, target, way in ((client, server, "up"), (server, client, "down")):
            threading.Thread(target=self._pump, args=(source, target, way), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                if way not in self.lost:
                    target.sendall(data)
        except OSError:
            pass
        if not self.lost or way == "up":  # the end of a half-open connection does not reach the client
            self.end()

    def end(self) -> None:
        self.is_over = True
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class TcpProxy:
    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._pairs: list[_Pair] = []
        self._lost_at_first: frozenset[str] = frozenset()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for pair in self._pairs:
            pair.end()

    def kubeconfig(self, user: str = SCHEDULER) -> Path:
        document = json.loads(self._control_plane.kubeconfig(user).read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._port}"
        path = self._control_plane.folder / f"tcp-{self._port}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    def make_half_open(self, way: Way = "both", *, new_ones_too: bool = False) -> int:
        """From now on the connections that stand lose what they carry, and nobody tells; how many."""
        for pair in self._pairs:
            pair.lost = WAYS[way]
        if new_ones_too:
            self._lost_at_first = WAYS[way]
        return len(self._pairs)

    def heal_new_ones(self) -> None:
        """Connections made from now on work again; those that are half-open stay so."""
        self._lost_at_first = frozenset()

    def _accept(self) -> None:
        to = urlsplit(self._control_plane.server)
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((to.hostname or "", to.port or 443))
            except OSError:  # it is down just now
                client.close()
                continue
            self._pairs = [pair for pair in self._pairs if not pair.is_over]
            self._pairs.append(_Pair(client, server, self._lost_at_first))
