"""Pages that a scheduler serves, as anyone may ask for them."""

from __future__ import annotations

import urllib.request
from urllib.error import HTTPError

from controlplane.control_plane import careless_context


def ask(server: str, path: str, token: str | None = None) -> tuple[int, str]:
    """Status and text of a page, whatever the certificate."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=careless_context())
    )
    try:
        with opener.open(urllib.request.Request(server + path, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
