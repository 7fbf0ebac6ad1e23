"""Answers health checks from another thread while the server's event loop hangs.

Without it a probe would time out, which fails it as well, but does not say why.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress

CLIENT_SECONDS = 2.0
"""For one client, while the others wait."""
MAX_REQUEST = 8192
RESPONSE = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b"
)


def answer_waiting(listeners: Iterable[socket.socket], context: ssl.SSLContext, check: str) -> None:
    """Tell every client that has connected by now that this check has failed."""
    ready, _, _ = select.select(list(listeners), [], [], 0)
    for listener in ready:
        with suppress(OSError):  # such as a failed handshake, or a client that left
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(CLIENT_SECONDS)
                with context.wrap_socket(connection, server_side=True) as channel:
                    _answer(channel, check)


def _answer(channel: ssl.SSLSocket, check: str) -> None:
    request = b""
    while b"\r\n\r\n" not in request and len(request) < MAX_REQUEST:
        data = channel.recv(MAX_REQUEST)
        if not data:
            return
        request += data
    path = request.split(b" ", 2)[1].partition(b"?")[0].strip(b"/").decode(errors="replace")
    if path in ("livez", "healthz", "readyz"):
        text = f"[-]{check} failed: reason withheld\n{path} check failed\n".encode()
        channel.sendall(RESPONSE % (len(text), text))
