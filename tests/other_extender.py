"""An HTTP extender that is none of ours: a plain server in a thread, which says what a test tells it to."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Says = Callable[[dict[str, Any]], Any]


class Raw(NamedTuple):
    """An answer as it is, whatever it is."""

    status: int
    body: bytes


class OtherExtender:
    """`says` has a function for each verb: the request's body in, the answer out, as plain data or Raw."""

    def __init__(self, url: str, says: dict[str, Says]) -> None:
        self.url, self.says = url, says
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Verb and body of every request, in order."""
        self.headers: list[dict[str, str]] = []

    def bodies(self, verb: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.asked if asked == verb]


@contextmanager
def other_extender(*, context: ssl.SSLContext | None = None, **says: Says) -> Iterator[OtherExtender]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body go in two writes

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            verb = self.path.removeprefix("/of-others/")
            found.headers.append(dict(self.headers))
            found.asked.append((verb, body))
            answer = found.says[verb](body) if verb in found.says else Raw(404, b"no such verb")
            status, data = answer if isinstance(answer, Raw) else (200, json.dumps(answer).encode())
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the other side has given up

    server = Server(("127.0.0.1", 0), Handler)
    scheme = "http"
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    found = OtherExtender(f"{scheme}://127.0.0.1:{server.server_address[1]}/of-others", dict(says))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
