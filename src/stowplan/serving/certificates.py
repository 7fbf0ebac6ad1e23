"""The server's TLS: its certificate, given or self-signed, and the CAs of client certificates."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from stowplan.errors import InputError
from stowplan.log import warn
from stowplan.serving.options import NamedCertificate, ServingOptions

PAIR_NAME = "kube-scheduler"
"""How the files in --cert-dir are named, before .crt and .key."""
VALID_DAYS = 365
_CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
_ALWAYS_ON = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Suites of TLS 1.3, which cannot be configured."""


class ServerCertificates:
    """The context to listen with; `refresh` reads files again that changed, as rotated ones do."""

    def __init__(self, options: ServingOptions, client_ca: str = "") -> None:
        self._options, self._client_ca = options, client_ca
        cert, key = options.tls_cert_file, options.tls_private_key_file
        if bool(cert) != bool(key):
            raise InputError("give both --tls-cert-file and --tls-private-key-file, or neither")
        if not cert and options.cert_dir:
            cert, key = _kept_pair(Path(options.cert_dir))
        self._files: dict[tuple[str, str], ssl.SSLContext] = {}
        self._read: dict[tuple[str, str], tuple[int, int]] = {}
        self.context = self._context_of(cert, key)
        self._by_name = {
            name: self._context_of(named.cert_file, named.key_file)
            for named in options.tls_sni_cert_key
            for name in named.names or _names_in(named)
        }
        if self._by_name:
            self.context.sni_callback = self._choose

    def refresh(self) -> None:
        """Reload files that have changed; half-written ones are retried next time."""
        for (cert, key), context in self._files.items():
            try:
                written = _modification_times(cert, key)
                if written != self._read[cert, key]:
                    context.load_cert_chain(cert, key)
                    self._read[cert, key] = written
            except (OSError, ssl.SSLError) as error:
                warn(
                    "Cannot reload the certificate; using the last one", err=error, certificate=cert, key=key
                )

    def _context_of(self, cert: str, key: str) -> ssl.SSLContext:
        context = _empty_context(self._options, self._client_ca)
        if not cert:
            _load_self_signed(context)
            return context
        try:
            self._read[cert, key] = _modification_times(cert, key)
            context.load_cert_chain(cert, key)
        except OSError as error:  # what OpenSSL says is an OSError too
            raise InputError(
                f"cannot load the certificate and its key: {error}", where=f"{cert}, {key}"
            ) from error
        self._files[cert, key] = context
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name is not None:
            wildcard = "*." + name.partition(".")[2]
            connection.context = self._by_name.get(name) or self._by_name.get(wildcard) or self.context


def _empty_context(options: ServingOptions, client_ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.tls_min_version == "VersionTLS13":
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    elif options.tls_min_version not in ("", "VersionTLS12"):
        warn("TLS versions below 1.2 are not supported", tlsMinVersion=options.tls_min_version)
    if suites := [suite for suite in options.tls_cipher_suites if suite not in _ALWAYS_ON]:
        context.set_ciphers(":".join(map(_cipher, suites)))
    if options.client_ca_file or client_ca:
        _accept_clients(context, options.client_ca_file, client_ca)
    return context


def _accept_clients(context: ssl.SSLContext, file: str, data: str) -> None:
    try:
        context.load_verify_locations(cafile=file or None, cadata=None if file else data)
    except OSError as error:
        where = file or "the cluster's CA of client certificates"
        raise InputError(f"cannot load CA certificates: {error}", where=where) from error
    context.verify_mode = ssl.CERT_OPTIONAL


def _cipher(suite: str) -> str:
    try:
        return _CIPHERS[suite]
    except KeyError:
        known = ", ".join(_CIPHERS)
        raise InputError(f"--tls-cipher-suites: {suite!r} is unknown or insecure (known: {known})") from None


def _names_in(named: NamedCertificate) -> list[str]:
    try:
        certificate = x509.load_pem_x509_certificate(Path(named.cert_file).read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise InputError(
            f"cannot read the host names of the certificate: {error}", where=named.cert_file
        ) from error
    return names.get_values_for_type(x509.DNSName)


def _modification_times(*files: str) -> tuple[int, int]:
    first, second = (os.stat(file).st_mtime_ns for file in files)
    return first, second


def _load_self_signed(context: ssl.SSLContext) -> None:
    # The ssl module reads certificates from files alone.
    with tempfile.TemporaryDirectory() as directory:
        context.load_cert_chain(*_write_pair(Path(directory)))


def _kept_pair(directory: Path) -> tuple[str, str]:
    """The pair in --cert-dir, made if it is not there."""
    cert, key = directory / f"{PAIR_NAME}.crt", directory / f"{PAIR_NAME}.key"
    try:
        if not (cert.exists() and key.exists()):
            directory.mkdir(parents=True, exist_ok=True)
            return _write_pair(directory)
    except OSError as error:
        raise InputError(
            f"cannot write a certificate to this directory: {error}", where=str(directory)
        ) from error
    return str(cert), str(key)


def _write_pair(directory: Path) -> tuple[str, str]:
    cert, key = self_signed(datetime.datetime.now(datetime.UTC))
    names = (str(directory / f"{PAIR_NAME}.crt"), str(directory / f"{PAIR_NAME}.key"))
    _write(names[0], cert, 0o644)
    _write(names[1], key, 0o600)
    return names


def _write(path: str, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)


def self_signed(now: datetime.datetime) -> tuple[bytes, bytes]:
    """Certificate and key in PEM, for localhost and 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"localhost@{int(now.timestamp())}")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), plain_key
