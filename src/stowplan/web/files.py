"""The page's own files: plain HTML, CSS and modules that a browser takes as they are."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

from stowplan.serving.pages import Page

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing from elsewhere, nothing inline, and no text ever becomes markup: a pod may be called anything."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def file_pages() -> dict[str, Page]:
    """By name; the empty one is the page itself."""
    found = {}
    for each in files(__package__).joinpath("static").iterdir():
        found["" if each.name == "index.html" else each.name] = _page(each.name, each.read_bytes())
    return found


def content_type(name: str) -> str:
    """Of a file, or of an answer, by its name."""
    return next((kind for suffix, kind in TYPES.items() if name.endswith(suffix)), "application/json")


def _page(name: str, body: bytes) -> Page:
    return lambda _: web.Response(
        body=body, content_type=content_type(name), charset="utf-8", headers=HEADERS
    )
