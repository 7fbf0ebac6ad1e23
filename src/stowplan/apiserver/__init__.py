"""An embedded Kubernetes API server.

    server = ApiServer()                           # in memory; ApiServer(DurableStore(folder)) keeps on disk
    response = await server.handle(Request.of("GET", "/api/v1/nodes"))
    async with serve(server, tls=make_certificate(), token="...") as front:
        ...                                        # at front.host, front.port; trust front.certificate

`ApiServer.handle` is the whole API without a transport; `http.serve` puts it behind HTTPS,
`durable.DurableStore` keeps it on disk. A watch is answered with a Stream, anything else with a Response.
"""

from __future__ import annotations

from stowplan.apiserver.server import ApiServer
from stowplan.apiserver.store import Store
from stowplan.http11.messages import Request, Response, Stream

__all__ = ["ApiServer", "Request", "Response", "Store", "Stream"]
