"""A client for the tests of the HTTPS server, certificates for both sides, and reviews by a table."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from stowplan.api.pod import Pod
from stowplan.metrics import Metrics
from stowplan.serving import Check, Limits, Server, ServingOptions, scheduler_pages
from stowplan.serving.server import LIMITS

HOST = "127.0.0.1"


class Answer(NamedTuple):
    status: int
    text: str
    headers: Mapping[str, str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def trusting_anyone(cert: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if cert:
        context.load_cert_chain(*cert)
    return context


async def ask(
    port: int,
    path: str,
    *,
    token: str = "",
    method: str = "GET",
    context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, f"https://{HOST}:{port}{path}", headers=sent, ssl=context or trusting_anyone()
        ) as response,
    ):
        return Answer(response.status, await response.text(), response.headers)


class Running(NamedTuple):
    port: int
    metrics: Metrics
    server: Server


@asynccontextmanager
async def serving(
    reviews: Reviews | None = None,
    *,
    election: Check | None = lambda: None,
    synced: Check = lambda: None,
    pods: Callable[[], Iterable[Pod]] = tuple,
    client_ca: str = "",
    limits: Limits = LIMITS,
    **options: Any,
) -> AsyncIterator[Running]:
    """A server with a scheduler's pages; other arguments are its options."""
    metrics, port = Metrics(), free_port()
    pages = scheduler_pages(
        metrics,
        lambda: {"kind": "KubeSchedulerConfiguration", "parallelism": 16},
        leader_election=election,
        shutdown=lambda: None,
        handlers_synced=synced,
        pods=pods,
    )
    options = {"bind_address": HOST, "secure_port": port, **options}
    server = Server(
        ServingOptions(**options),
        pages,
        tokens=reviews,
        access=reviews,
        client_ca=client_ca,
        limits=limits,
    )
    async with server:
        yield Running(port, metrics, server)


class ReviewedUser(NamedTuple):
    username: str
    groups: tuple[str, ...] = ()


class Reviews:
    """The API server's part: whose tokens there are, and who may get everything. Keeps what was asked."""

    def __init__(self, tokens: Mapping[str, ReviewedUser], may_get: Sequence[str] = ()) -> None:
        self.tokens, self.may_get = tokens, may_get
        self.asked: list[str] = []
        self.is_down = False
        self.seconds = 0.0

    async def review_token(self, token: str) -> ReviewedUser | None:
        await self._answering(f"token {token}")
        return self.tokens.get(token)

    async def review_access(self, user: str, groups: Sequence[str], path: str, verb: str) -> bool:
        await self._answering(f"{user} ({','.join(groups)}) {verb} {path}")
        return user in self.may_get and verb == "get"

    async def _answering(self, question: str) -> None:
        self.asked.append(question)
        await asyncio.sleep(self.seconds)
        if self.is_down:
            raise ConnectionError("connection refused")


class Authority:
    """A CA that writes certificates with their keys into a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test CA")
        self.file = directory / "ca.crt"
        certificate = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name, groups), self._name, key.public_key())
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        files = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files


def common_name(shown: bytes | None) -> str:
    """The name in a certificate, as the other side showed it."""
    assert shown is not None
    found = x509.load_der_x509_certificate(shown).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value)


def _name(common: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
