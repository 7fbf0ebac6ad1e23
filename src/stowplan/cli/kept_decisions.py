"""Asks a running scheduler for the decisions that it keeps, and what would change them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from stowplan.client import kubeconfig as kubeconfigs
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection, tls_context
from stowplan.client.credentials import TokenFile
from stowplan.client.errors import (
    ApiError,
    Forbidden,
    NotFound,
    Unauthorized,
    Unreachable,
    unreachable_scheduler,
)
from stowplan.client.reading import checked
from stowplan.errors import InputError
from stowplan.explain.changes import ChangesAnswer, Printed

EXPLAIN, CHANGES = "/page/api/explain", "/page/api/changes"
SECONDS = 10.0
"""How long an answer may take; one that has to be worked out is ready after one or two."""
T = TypeVar("T")
_printed = msgspec.json.Decoder(Printed).decode
_changes = msgspec.json.Decoder(ChangesAnswer).decode


def scheduler_at(
    server: str,
    *,
    kubeconfig: str | None,
    context: str | None,
    token_file: str | None,
    authority: str | None,
    insecure: bool,
) -> Connection:
    """How to ask a scheduler: with the token, or else with what the kubeconfig's user has."""
    if token_file:
        connection = Connection(server, ssl_context=tls_context(), credentials=[TokenFile(Path(token_file))])
    else:
        connection = kubeconfigs.load(kubeconfig, context=context, master=server)
    trust = connection.ssl_context
    assert trust is not None
    if authority:
        try:
            trust.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"no CA certificates: {error}", where=authority) from None
    if insecure:
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    return connection


def ask(
    connection: Connection, pods: tuple[str, ...], *, node: str | None, as_data: bool, all_nodes: bool
) -> list[Printed]:
    """What the scheduler says of its decisions."""
    query = {"output": "json" if as_data else "text", "allNodes": "true" if all_nodes else "false"}
    query |= {} if node is None else {"node": node}
    try:
        return asyncio.run(_ask(connection, EXPLAIN, _printed, [{"pod": pod, **query} for pod in pods]))
    except ApiError as error:
        raise InputError(_why(error), where=connection.server) from None


def ask_changes(connection: Connection, pod: str) -> ChangesAnswer:
    """The smallest changes, which the scheduler looks for meanwhile. ApiError says why there are none."""
    (answer,) = asyncio.run(_ask(connection, CHANGES, _changes, [{"pod": pod}]))
    return answer


def _why(error: ApiError) -> str:
    """What keeps a scheduler from telling its decisions, and what to do about it."""
    match error, error.__cause__:
        case Unreachable(), TimeoutError():
            return f"no answer within {SECONDS:g} s; is a scheduler there?"
        case Unreachable(), _:
            return unreachable_scheduler(error)
        case Unauthorized(), _:
            return (
                f"{error}; it does not accept who asks: check the token of --token-file, or the token or "
                "certificate of the kubeconfig's user, and whether it has expired"
            )
        case Forbidden(), _:
            return (
                f'{error}; that takes a role with nonResourceURLs "/page/*" and the verb get: bind the '
                'ClusterRole whose name ends in ":viewer", which `stowplan manifests` prints'
            )
        case NotFound(), _:
            return (
                f"there is no {EXPLAIN}; is it Stowplan's scheduler, and not another one, or the API server?"
            )
    return str(error)


async def _ask(
    connection: Connection, path: str, decoder: Callable[[bytes], T], queries: list[dict[str, str]]
) -> list[T]:
    async with ApiClient(connection, user_agent="stowplan/explain", timeout=SECONDS) as api:
        asked = [api.request("GET", path, query=query) for query in queries]
        return [checked(decoder, answer.data) for answer in await asyncio.gather(*asked)]
