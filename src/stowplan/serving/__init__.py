"""The HTTPS server: health, metrics and configuration, for authorized clients."""

from stowplan.serving.access import AccessReviewer, TokenReviewer, cluster_client_ca
from stowplan.serving.options import NamedCertificate, ServingOptions
from stowplan.serving.pages import Check, scheduler_pages
from stowplan.serving.server import Limits, Server

__all__ = [
    "AccessReviewer",
    "Check",
    "Limits",
    "NamedCertificate",
    "Server",
    "ServingOptions",
    "TokenReviewer",
    "cluster_client_ca",
    "scheduler_pages",
]
