"""Pretends to be node_exporter on several nodes: `exporters.py ADDRESS:PORT=BYTES_A_SECOND ...`."""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

started = time.time()


def page_of(bytes_a_second: float) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            for way in ("receive", "transmit"):
                total = bytes_a_second / 2 * (time.time() - started)
                self.wfile.write(f'node_network_{way}_bytes_total{{device="ens192"}} {total}\n'.encode())

        def log_message(self, *_: object) -> None:
            """One line a second and node would be too many."""

    return Page


for word in sys.argv[1:]:
    where, _, rate = word.partition("=")
    host, _, port = where.partition(":")
    server = ThreadingHTTPServer((host, int(port)), page_of(float(rate)))
    threading.Thread(target=server.serve_forever).start()
    print(f"{where}: {rate} bytes a second")
