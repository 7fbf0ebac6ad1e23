"""Asks a running scheduler for the decisions that it keeps."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import msgspec

from stowplan.client import kubeconfig as kubeconfigs
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection, tls_context
from stowplan.client.credentials import TokenFile
from stowplan.client.errors import Unreachable
from stowplan.client.reading import checked
from stowplan.errors import InputError
from stowplan.journal.shown import PodAnswer

PAGE = "/debug/decisions"
_answer = msgspec.json.Decoder(PodAnswer).decode


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


def ask(connection: Connection, pods: tuple[str, ...]) -> list[PodAnswer]:
    return asyncio.run(_ask(connection, pods))


async def _ask(connection: Connection, pods: tuple[str, ...]) -> list[PodAnswer]:
    try:
        async with ApiClient(connection, user_agent="stowplan/explain") as api:
            asked = [api.request("GET", PAGE, query={"pod": pod}) for pod in pods]
            return [checked(_answer, answer.data) for answer in await asyncio.gather(*asked)]
    except Unreachable as error:
        raise InputError(
            f"{error}; is a scheduler there? Its certificate may be its own: --certificate-authority FILE or "
            "--insecure-skip-tls-verify",
            where=connection.server,
        ) from None
