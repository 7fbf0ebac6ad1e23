"""A scheduler's HTTPS server in a thread, for commands that ask one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from stowplan.serving import Server, ServingOptions
from stowplan.serving.pages import Page

TOKEN, BAD_TOKEN = "sesame", "forged"


class User(NamedTuple):
    username: str
    groups: tuple[str, ...] = ()


class Reviewer:
    """Knows one token, whose owner may get some paths; remembers which ones it was asked about. All others
    but the bad one are somebody's."""

    def __init__(self, *paths: str) -> None:
        self.paths, self.asked = paths, []

    async def review_token(self, token):
        return None if token == BAD_TOKEN else User("me" if token == TOKEN else "somebody")

    async def review_access(self, user, groups, path, verb):
        self.asked.append(path)
        return (user, verb) == ("me", "get") and path in self.paths


class Served(NamedTuple):
    url: str
    token: Path
    reviewer: Reviewer

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--server", self.url, "--token-file", str(self.token), "--insecure-skip-tls-verify")


@contextmanager
def served(
    folder: Path, opened: AbstractAsyncContextManager[Mapping[str, Page]], *may_get: str
) -> Iterator[Served]:
    """Serves the pages that `opened` gives, which is entered in the event loop of the server."""
    loop, stopping, is_up, port = asyncio.new_event_loop(), asyncio.Event(), threading.Event(), free_port()
    options = ServingOptions(bind_address="127.0.0.1", secure_port=port, cert_dir=str(folder))
    reviewer = Reviewer(*may_get)

    async def serve():
        async with opened as pages, Server(options, pages, tokens=reviewer, access=reviewer):
            is_up.set()
            await stopping.wait()

    (folder / "token").write_text(TOKEN)
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert is_up.wait(10)
    yield Served(f"https://127.0.0.1:{port}", folder / "token", reviewer)
    loop.call_soon_threadsafe(stopping.set)
    thread.join()
    loop.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
