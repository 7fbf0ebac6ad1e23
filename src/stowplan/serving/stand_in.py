"""Answers health checks in the place of a server whose event loop hangs, from another thread.

Without it a probe would time out, which fails it as well, but says nothing.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress

SECONDS = 2.0
"""What a client may take: others wait for it."""
LONGEST_REQUEST = 8192
ANSWER = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b"
)


def answer_waiting(listeners: Iterable[socket.socket], context: ssl.SSLContext, check: str) -> None:
    """Answers whoever has connected by now: the check of that name has failed."""
    ready, _, _ = select.select(list(listeners), [], [], 0)
    for listener in ready:
        with suppress(OSError):  # also what TLS refuses, or a client that left
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(SECONDS)
                with context.wrap_socket(connection, server_side=True) as channel:
                    _answer(channel, check)


def _answer(channel: ssl.SSLSocket, check: str) -> None:
    request = b""
    while b"\r\n\r\n" not in request and len(request) < LONGEST_REQUEST:
        data = channel.recv(LONGEST_REQUEST)
        if not data:
            return
        request += data
    path = request.split(b" ", 2)[1].partition(b"?")[0].strip(b"/").decode(errors="replace")
    if path in ("livez", "healthz", "readyz"):
        text = f"[-]{check} failed: reason withheld\n{path} check failed\n".encode()
        channel.sendall(ANSWER % (len(text), text))
