"""Asks a running scheduler to explain its decisions."""

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
from stowplan.client.watch import decode_checked
from stowplan.errors import InputError
from stowplan.explain.changes import ChangesAnswer, Printed
from stowplan.explain.group_report import GroupReport

EXPLAIN, CHANGES, GROUP = "/page/api/explain", "/page/api/changes", "/page/api/group"
SECONDS = 10.0
"""How long to wait for an answer; one that must be computed takes one or two seconds."""
T = TypeVar("T")
_printed = msgspec.json.Decoder(Printed).decode
_changes = msgspec.json.Decoder(ChangesAnswer).decode
_group = msgspec.json.Decoder(GroupReport).decode


def scheduler_at(
    server: str,
    *,
    kubeconfig: str | None,
    context: str | None,
    token_file: str | None,
    authority: str | None,
    insecure: bool,
) -> Connection:
    """Connect to a scheduler with the token, or with the credentials of the kubeconfig's user."""
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
            raise InputError(f"cannot read CA certificates: {error}", where=authority) from None
    if insecure:
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    return connection


def ask(
    connection: Connection, pods: tuple[str, ...], *, node: str | None, as_data: bool, all_nodes: bool
) -> list[Printed]:
    """Ask for explanations of decisions."""
    try:
        return _explanations(connection, pods, node, as_data, all_nodes)
    except ApiError as error:
        raise InputError(_with_advice(error), where=connection.server) from None


def ask_if_there(
    connection: Connection, pods: tuple[str, ...], *, node: str | None, as_data: bool, all_nodes: bool
) -> list[Printed] | str:
    """Ask an API server that also answers for its scheduler, as that of `stowplan up`; or say why not."""
    try:
        found = _explanations(connection, pods, node, as_data, all_nodes)
    except Unreachable as error:  # then the cluster cannot be read from there either
        late = f"no answer within {SECONDS:g} s; is the API server running?"
        why = late if isinstance(error.__cause__, TimeoutError) else str(error)
        raise InputError(why, where=connection.server) from None
    except ApiError:
        return "no Stowplan scheduler answers here"
    return next((each.fault for each in found if each.fault), found)


def _explanations(
    connection: Connection, pods: tuple[str, ...], node: str | None, as_data: bool, all_nodes: bool
) -> list[Printed]:
    query = {"output": "json" if as_data else "text", "allNodes": "true" if all_nodes else "false"}
    query |= {} if node is None else {"node": node}
    return asyncio.run(_ask(connection, EXPLAIN, _printed, [{"pod": pod, **query} for pod in pods]))


def ask_changes(connection: Connection, pod: str) -> ChangesAnswer:
    """Ask for the smallest changes that would alter the outcome. An ApiError says why there are none."""
    (answer,) = asyncio.run(_ask(connection, CHANGES, _changes, [{"pod": pod}]))
    return answer


def ask_group(connection: Connection, group: str, *, changes: bool) -> GroupReport:
    """Ask why a pod group waits. An InputError says why it is not known."""
    query = {"group": group, "changes": "true" if changes else "false"}
    try:
        (report,) = asyncio.run(_ask(connection, GROUP, _group, [query]))
    except NotFound as error:
        said = str(error)
        known = f"{GROUP} not found; is this a Stowplan scheduler of this version?"
        raise InputError(said if group in said else known, where=connection.server) from None
    except ApiError as error:
        raise InputError(_with_advice(error), where=connection.server) from None
    return report


def group_or_none(connection: Connection, group: str, *, changes: bool) -> GroupReport | None:
    """The same; None if no Stowplan scheduler answers here, or it does not know the group."""
    try:
        return ask_group(connection, group, changes=changes)
    except InputError:
        return None


def _with_advice(error: ApiError) -> str:
    """The error with advice on how to solve it."""
    match error, error.__cause__:
        case Unreachable(), TimeoutError():
            return f"no answer within {SECONDS:g} s; is a scheduler there?"
        case Unreachable(), _:
            return unreachable_scheduler(error)
        case Unauthorized(), _:
            return (
                f"{error}; the credentials were not accepted: check that the token of --token-file, "
                "or the token or certificate of the kubeconfig's user, is valid and has not expired"
            )
        case Forbidden(), _:
            return (
                f'{error}; this requires a role with nonResourceURLs "/page/*" and verb get: bind the '
                'ClusterRole whose name ends in ":viewer", which `stowplan manifests` prints'
            )
        case NotFound(), _:
            return (
                f"{EXPLAIN} not found; is this a Stowplan scheduler, and not another one or the API server?"
            )
    return str(error)


async def _ask(
    connection: Connection, path: str, decoder: Callable[[bytes], T], queries: list[dict[str, str]]
) -> list[T]:
    async with ApiClient(connection, user_agent="stowplan/explain", timeout=SECONDS) as api:
        requests = [api.request("GET", path, query=query) for query in queries]
        return [decode_checked(decoder, answer.data) for answer in await asyncio.gather(*requests)]
