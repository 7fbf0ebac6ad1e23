"""How far an HTTP extender is trusted, and what shows it who we are."""

from __future__ import annotations

import ssl
from pathlib import Path

from stowplan.client.connection import tls_context
from stowplan.client.credentials import load_certificate_text
from stowplan.config.types import ExtenderTLS
from stowplan.errors import ConfigError, InputError


def tls_of(tls: ExtenderTLS, enable_https: bool, where: str) -> ssl.SSLContext:
    """Data goes before files. ConfigError names what cannot be used."""
    authority = _text(tls.ca_data, tls.ca_file, f"{where}.caFile")
    certificate = _text(tls.cert_data, tls.cert_file, f"{where}.certFile")
    key = _text(tls.key_data, tls.key_file, f"{where}.keyFile")
    if tls.insecure and authority:
        raise ConfigError(
            f"{where}: specifying a root certificates file with the insecure flag is not allowed"
        )
    if bool(certificate) != bool(key):
        raise ConfigError(f"{where}: a client certificate and its key go together; one of them is missing")
    # parity: HTTPS asked for without an authority trusts everyone
    insecure = tls.insecure or (enable_https and not authority)
    try:
        context = tls_context(authority_text=authority, insecure=insecure, where=where)
        if certificate:
            load_certificate_text(context, certificate, key, where)
    except InputError as error:
        raise ConfigError(str(error)) from None
    return context


def _text(data: bytes, path: str, where: str) -> str:
    try:
        return (data or (Path(path).read_bytes() if path else b"")).decode("latin-1")
    except OSError as error:
        raise ConfigError(f"{where}: {path}: {error.strerror}") from None
