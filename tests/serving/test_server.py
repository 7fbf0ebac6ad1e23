"""The server itself: its certificates, its port, and clients that mean it no good."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from pathlib import Path

import pytest
from asking import HOST, Authority, ask, common_name, free_port, serving, trusting_anyone

from stowplan.errors import InputError
from stowplan.serving import Limits, NamedCertificate, Server, ServingOptions
from stowplan.serving.certificates import ServerCertificates


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HOST, port, ssl=trusting_anyone())


async def shown_name(port: int, server_name: str | None = None) -> str:
    """The name in the certificate that clients see who ask for that host."""
    _, writer = await asyncio.open_connection(
        HOST, port, ssl=trusting_anyone(), server_hostname=server_name or ""
    )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return common_name(shown)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() is not None
    except ConnectionError:
        return True


async def test_a_certificate_of_its_own():
    async with serving() as running:
        name = await shown_name(running.port)
    assert name.startswith("localhost@")


async def test_its_own_certificate_is_for_localhost(tmp_path: Path):
    async with serving(cert_dir=str(tmp_path)) as running:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "kube-scheduler.crt"))
        assert (await ask(running.port, "/healthz", context=trusting)).text == "ok"


async def test_its_own_certificate_is_kept(tmp_path: Path):
    directory = tmp_path / "made" / "here"
    names = []
    for _ in range(2):
        async with serving(cert_dir=str(directory)) as running:
            names.append(await shown_name(running.port))
            before = (directory / "kube-scheduler.crt").read_bytes()
    assert names[0] == names[1]
    assert before == (directory / "kube-scheduler.crt").read_bytes()
    assert stat.S_IMODE((directory / "kube-scheduler.key").stat().st_mode) == 0o600


async def test_given_certificates(tmp_path: Path):
    authority = Authority(tmp_path)
    default = authority.issue("default")
    options = {
        "tls_cert_file": str(default[0]),
        "tls_private_key_file": str(default[1]),
        "tls_sni_cert_key": (
            NamedCertificate(*map(str, authority.issue("named")), names=("one.example",)),
            NamedCertificate(*map(str, authority.issue("own", hosts=["two.example", "*.three.example"]))),
        ),
    }
    async with serving(**options) as running:
        shown = {
            name: await shown_name(running.port, name)
            for name in (None, "one.example", "two.example", "x.three.example", "other.example")
        }
    assert shown == {
        None: "default",
        "one.example": "named",
        "two.example": "own",
        "x.three.example": "own",
        "other.example": "default",
    }


def test_rotated_certificates_are_read_again(tmp_path: Path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    certificates = ServerCertificates(ServingOptions(tls_cert_file=str(cert), tls_private_key_file=str(key)))
    assert shown_by(certificates) == "server"
    renewed = authority.issue("renewed")
    cert.write_bytes(b"half of")
    certificates.refresh()
    assert shown_by(certificates) == "server"
    for old, new in zip((cert, key), renewed, strict=True):
        old.write_bytes(new.read_bytes())
        os.utime(old, ns=(1, 1))
    certificates.refresh()
    assert shown_by(certificates) == "renewed"


def shown_by(certificates: ServerCertificates) -> str:
    """The name in the certificate, by a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificates.context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting_anyone().wrap_bio(to_client, to_server)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return common_name(client.getpeercert(binary_form=True))


@pytest.mark.parametrize(
    ("minimum", "refused"),
    [
        pytest.param("", False, id="1.2 by default"),
        pytest.param("VersionTLS12", False, id="1.2"),
        pytest.param("VersionTLS13", True, id="1.3"),
    ],
)
async def test_lowest_tls_version(minimum: str, refused: bool):
    old = trusting_anyone()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(tls_min_version=minimum) as running:
        try:
            answer = await ask(running.port, "/healthz", context=old)
        except OSError:
            assert refused
        else:
            assert not refused
            assert answer.text == "ok"


async def test_cipher_suites():
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    old = trusting_anyone()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(tls_cipher_suites=(suite, "TLS_AES_128_GCM_SHA256")) as running:
        _, writer = await asyncio.open_connection(HOST, running.port, ssl=old)
        assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        writer.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"tls_cert_file": "a.crt"}, "give both --tls-cert-file and --tls-private-key-file", id="no key"
        ),
        pytest.param(
            {"tls_cert_file": "/missing/a.crt", "tls_private_key_file": "/missing/a.key"},
            "/missing/a.crt, /missing/a.key: cannot load the certificate and its key: .*No such file",
            id="no such files",
        ),
        pytest.param(
            {"client_ca_file": "/missing/ca.crt"}, "/missing/ca.crt: cannot load CA certificates", id="no CA"
        ),
        pytest.param(
            {"cert_dir": "/dev/null"},
            "/dev/null: cannot write a certificate to this directory",
            id="no directory",
        ),
        pytest.param(
            {"tls_cipher_suites": ("TLS_X",)}, "'TLS_X' is unknown or insecure", id="no such cipher suite"
        ),
        pytest.param(
            {"tls_sni_cert_key": (NamedCertificate("/missing/a.crt", "/missing/a.key"),)},
            "/missing/a.crt: cannot read the host names of the certificate",
            id="no certificate for a name",
        ),
    ],
)
def test_options_that_cannot_be(options, message: str):
    with pytest.raises(InputError, match=message):
        Server(ServingOptions(**options), {})


async def test_a_port_that_is_taken():
    async with serving() as running:
        with pytest.raises(InputError, match=rf"{HOST}:{running.port}: cannot listen: .*--secure-port"):
            async with serving(secure_port=running.port):
                pass


async def test_a_port_can_be_shared():
    port = free_port()
    async with (
        serving(secure_port=port, permit_port_sharing=True),
        serving(secure_port=port, permit_port_sharing=True),
    ):
        assert (await ask(port, "/healthz")).text == "ok"


async def test_port_0_is_no_server():
    async with serving(secure_port=0) as running:
        with pytest.raises(OSError, match="Connect"):
            await ask(running.port, "/healthz")


async def test_a_client_that_says_nothing_is_dropped():
    async with serving(limits=Limits(connection_seconds=0.3)) as running:
        reader, writer = await connect(running.port)
        assert (await ask(running.port, "/healthz")).text == "ok"
        async with asyncio.timeout(5):
            assert await is_closed(reader)
        writer.close()


async def test_a_client_that_speaks_slowly_is_dropped():
    async with serving(limits=Limits(connection_seconds=0.5)) as running:
        reader, writer = await connect(running.port)
        async with asyncio.timeout(5):
            closed = asyncio.create_task(is_closed(reader))
            writer.write(b"GET /healthz HTTP/1.1\r\n")
            while not closed.done():
                writer.write(b"X-A: b\r\n")
                await asyncio.sleep(0.1)
            assert await closed
        writer.close()


async def test_clients_that_do_not_even_shake_hands_hold_up_nobody():
    async with serving(limits=Limits(handshake_seconds=0.5)) as running:
        idle = [await asyncio.open_connection(HOST, running.port) for _ in range(50)]
        assert (await ask(running.port, "/healthz")).text == "ok"
        async with asyncio.timeout(5):
            assert all([await is_closed(reader) for reader, _ in idle])
        for _, writer in idle:
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x00\x01\x02\r\n\r\n", id="no HTTP"),
        pytest.param(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", id="a path without end"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", id="a header without end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 1000 + b"\r\n", id="headers without end"),
    ],
)
async def test_what_is_no_request_is_refused(sent: bytes):
    async with serving() as running:
        reader, writer = await connect(running.port)
        writer.write(sent)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
        writer.close()
        assert (await ask(running.port, "/healthz")).text == "ok"


async def test_a_body_is_not_waited_for():
    async with serving() as running:
        reader, writer = await connect(running.port)
        writer.write(b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_a_connection_serves_one_request():
    async with serving() as running:
        reader, writer = await connect(running.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        async with asyncio.timeout(5):
            said = await reader.read()
        writer.close()
    assert said.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in said


async def test_the_oldest_connections_make_room():
    async with serving(limits=Limits(connection_seconds=60, connections=4)) as running:
        opened = [await connect(running.port) for _ in range(6)]
        async with asyncio.timeout(5):
            assert all([await is_closed(reader) for reader, _ in opened[:2]])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await is_closed(opened[-1][0])
        assert (await ask(running.port, "/healthz")).text == "ok"
        for _, writer in opened:
            writer.close()


async def test_leaving_does_not_wait_for_clients():
    async with asyncio.timeout(1.5):
        async with serving() as running:
            reader, writer = await connect(running.port)
        assert await is_closed(reader)
        writer.close()
