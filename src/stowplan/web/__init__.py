"""The page: the cluster, the queue and every decision as they come. Nothing on it can change anything.

async with page_of(service, port=8080) as link:
    print(link)
"""

from stowplan.web.local import by_name, page_of, served_locally
from stowplan.web.pages import mounted, pages
from stowplan.web.source import Source, source_of

__all__ = ["Source", "by_name", "mounted", "page_of", "pages", "served_locally", "source_of"]
