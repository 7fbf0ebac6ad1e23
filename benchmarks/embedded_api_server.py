"""Stowplan's embedded API server as a process of its own, without nodes, controllers or scheduler.

python benchmarks/embedded_api_server.py PORT CERTIFICATE-FILE TOKEN
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from stowplan.apiserver import ApiServer
from stowplan.apiserver.http import make_certificate, serve


async def main(port: int, certificate: Path, token: str) -> None:
    pair = make_certificate()
    certificate.parent.mkdir(parents=True, exist_ok=True)
    certificate.write_bytes(pair.certificate)
    async with serve(ApiServer(), port=port, tls=pair, token=token):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
