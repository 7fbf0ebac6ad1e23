"""What the flags of kube-scheduler say about its HTTPS server."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class NamedCertificate(NamedTuple):
    """Files for clients that ask for one of these host names; without names, for those in the certificate."""

    cert_file: str
    key_file: str
    names: tuple[str, ...] = ()


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Each field is the flag of its name; paths and names may be empty where a flag may be missing."""

    bind_address: str = "0.0.0.0"
    secure_port: int = 10259
    """0 disables the server."""
    cert_dir: str = ""
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    tls_sni_cert_key: tuple[NamedCertificate, ...] = ()
    tls_cipher_suites: tuple[str, ...] = ()
    tls_min_version: str = ""
    client_ca_file: str = ""
    permit_port_sharing: bool = False
    permit_address_sharing: bool = False
    authentication_token_webhook_cache_ttl: float = 10
    authorization_always_allow_paths: tuple[str, ...] = ("/healthz", "/readyz", "/livez")
    authorization_webhook_cache_authorized_ttl: float = 10
    authorization_webhook_cache_unauthorized_ttl: float = 10
