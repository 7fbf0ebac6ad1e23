"""How to reach one API server: its address, its TLS settings and our credentials."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from stowplan.client.credentials import Credential
from stowplan.client.http import HttpPool, Pool
from stowplan.errors import InputError


class Connection:
    def __init__(
        self,
        server: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        namespace: str = "default",
        credentials: Iterable[Credential] = (),
        fixed_headers: Iterable[tuple[str, str]] = (),
        proxy: str = "",
        server_hostname: str = "",
    ) -> None:
        self.server = _check_url(server).rstrip("/")
        self.ssl_context, self.namespace = ssl_context, namespace
        self.server_hostname = server_hostname or None
        self.proxy = proxy or proxy_of_environment(self.server)
        self._credentials, self._fixed_headers = tuple(credentials), tuple(fixed_headers)
        if self.proxy and urlsplit(self.proxy).scheme not in ("http", "https"):
            raise InputError(f"proxy {self.proxy}: only http and https proxies are supported")

    def open(self) -> Pool:
        """Open a connection pool; call it from the event loop that uses it."""
        return HttpPool(
            self.server,
            ssl_context=self.ssl_context,
            server_hostname=self.server_hostname,
            proxy=self.proxy,
        )

    async def headers(self) -> list[tuple[str, str]]:
        """Return the headers that authenticate us."""
        headers = list(self._fixed_headers)
        for credential in self._credentials:
            authorization = await credential.authorization()
            if authorization is not None:
                headers.append(("Authorization", authorization))
        return headers

    async def renew(self) -> bool:
        """Renew the credentials after a 401; return whether another attempt makes sense."""
        return any([await credential.renew() for credential in self._credentials])


def _check_url(server: str) -> str:
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{server!r} is not the URL of an API server; expected one like https://10.0.0.1:6443"
        )
    return server


def tls_context(*, authority_text: str = "", insecure: bool = False, where: str = "") -> ssl.SSLContext:
    """Make a TLS context that trusts the CAs in the PEM text, or those of the system without one."""
    try:
        context = ssl.create_default_context(cadata=authority_text or None)
    except ssl.SSLError as error:
        raise InputError(
            f"the certificate authority is not PEM: {error.reason or error}", where=where
        ) from None
    # Certificates that Go's TLS is content with must do: without key identifiers, or trusted by themselves.
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def proxy_of_environment(server: str) -> str:
    """Return HTTPS_PROXY or HTTP_PROXY, unless NO_PROXY matches the host or it is a loopback address."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass  # which takes longer to import than many a command

    parts = urlsplit(server)
    host, proxies = parts.hostname or "", getproxies()
    proxy = proxies.get(parts.scheme, "")
    if not proxy or host == "localhost" or proxy_bypass(parts.netloc):
        return ""
    try:
        address = ip_address(host)
    except ValueError:
        return proxy
    excepted = (entry.strip() for entry in proxies.get("no", "").split(",") if "/" in entry)
    return (
        ""
        if address.is_loopback or any(_is_within(address_range, host) for address_range in excepted)
        else proxy
    )


def _is_within(address_range: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(address_range, strict=False)
    except ValueError:
        return False
