"""Network traffic to look at: Debian's Prometheus, scraping exporters whose counters grow as a test says."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from controlplane.control_plane import free_ports
from controlplane.process import Process

SCRAPE = "250ms"
INTERFACE = "ens192"


class Exporter:
    """What node_exporter says of one network interface; `receive` and `transmit` are bytes a second."""

    def __init__(self, address: str, *, receive: float, transmit: float, since: float = 0) -> None:
        self.receive, self.transmit = receive, transmit
        self._received = self._transmitted = since
        self._at = time.monotonic()
        exporter = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.page().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Page)
        self.target = f"{address}:{self._server.server_port}"

    def page(self) -> str:
        """The counters as they are now; a rate that was set meanwhile holds from the last look on."""
        now = time.monotonic()
        self._received += self.receive * (now - self._at)
        self._transmitted += self.transmit * (now - self._at)
        self._at = now
        return "".join(
            f"# TYPE node_network_{way}_bytes_total counter\n"
            f'node_network_{way}_bytes_total{{device="{INTERFACE}"}} {value}\n'
            f'node_network_{way}_bytes_total{{device="lo"}} 1e15\n'
            for way, value in (("receive", self._received), ("transmit", self._transmitted))
        )

    def __enter__(self) -> Exporter:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Prometheus(Process):
    """A Prometheus that scrapes these exporters, by the name of their node."""

    def __init__(self, folder: Path, exporters: Mapping[str, Exporter]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise FileNotFoundError(
                "prometheus is not on PATH; Debian has it: apt-get install --no-install-recommends prometheus"
            )
        (port,) = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        targets = [
            {"targets": [exporter.target], "labels": {"kubernetes_node": name}}
            for name, exporter in exporters.items()
        ]
        config = {
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE},
            "scrape_configs": [{"job_name": "node-exporter", "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML too
        command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        super().__init__(command, folder / "prometheus.log", lambda: _get(f"{url}/-/ready") is not None)
        self.server = url

    def count(self, query: str) -> int:
        """How many series the query gives."""
        text = _get(f"{self.server}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        return len(json.loads(text or "")["data"]["result"])


def _get(url: str) -> str | None:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


@contextmanager
def prometheus(folder: Path, exporters: Mapping[str, Exporter]) -> Iterator[Prometheus]:
    with ExitStack() as stack:
        for exporter in exporters.values():
            stack.enter_context(exporter)
        running = Prometheus(folder, exporters)
        stack.callback(running.stop)
        running.start(seconds=30)
        yield running
