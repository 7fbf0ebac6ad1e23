"""Health checks while the event loop hangs: another thread answers them."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time

from asking import HOST, serving, trusting_anyone


def fetched(port: int, path: str, found: list[tuple[int, str]]) -> None:
    connection = http.client.HTTPSConnection(HOST, port, context=trusting_anyone(), timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        found.append((answer.status, answer.read().decode()))
    except OSError:
        found.append((0, ""))
    finally:
        connection.close()


def test_paths_of_health_checks_are_answered():
    for path, answer in (
        ("/livez", (500, "[-]plugins failed: reason withheld\nlivez check failed\n")),
        ("/readyz?verbose", (500, "[-]plugins failed: reason withheld\nreadyz check failed\n")),
        ("/metrics", (0, "")),
    ):
        assert asked_while_it_hangs(path) == answer


def asked_while_it_hangs(path: str) -> tuple[int, str]:
    async def main() -> tuple[int, str]:
        async with serving() as running:
            found: list[tuple[int, str]] = []
            client = threading.Thread(target=fetched, args=(running.port, path, found))
            client.start()
            ends = time.monotonic() + 10
            while client.is_alive() and time.monotonic() < ends:  # without a turn for anyone else
                running.server.answer_waiting("plugins")
                time.sleep(0.01)
            client.join()
            return found[0]

    return asyncio.run(main())


async def test_afterwards_the_server_answers_itself():
    async with serving() as running:
        running.server.answer_waiting("plugins")
        found: list[tuple[int, str]] = []
        await asyncio.to_thread(fetched, running.port, "/livez", found)
        assert found == [(200, "ok")]
