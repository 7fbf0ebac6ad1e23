"""The web page: the cluster, the queue and every decision, live. Nothing on it changes anything.

async with serve_page(service, port=8080) as link:
    print(link)
"""

from stowplan.web.local import answer_by_name, make_page_server, relay, serve_locally, serve_page
from stowplan.web.pages import make_pages, mount
from stowplan.web.source import Source, make_source

__all__ = [
    "Source",
    "answer_by_name",
    "make_page_server",
    "make_pages",
    "make_source",
    "mount",
    "relay",
    "serve_locally",
    "serve_page",
]
