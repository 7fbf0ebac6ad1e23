"""TLS on a connection, in half the steps of asyncio's own and without a buffer for each connection."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Protocol

READ_BYTES = 256 * 1024


class Transport(Protocol):
    """As much of a transport as is needed here."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def set_protocol(self, protocol: Any) -> None: ...


class TlsStream(asyncio.Protocol):
    """Stands between a transport and a protocol, for which it is the transport once `ready` has a result."""

    def __init__(self, inner: asyncio.Protocol, tls: ssl.SSLContext, server_hostname: str) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # For the one inside

    def write(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self._break(error)
        else:
            self._send()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._inner = protocol

    def start(self, transport: Transport) -> None:
        """Shakes hands over a connection that stands."""
        self._transport = transport
        transport.set_protocol(self)
        self._shake_hands()

    # For the one outside

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self.ready.done():
            self._shake_hands()
        elif self._decrypt():
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("closed by the other side"))
        self._inner.connection_lost(error)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
        except ssl.SSLError as error:  # certificates that are not trusted, too
            self._send()  # what tells the other side why
            self._break(error)
        else:
            self._send()
            self.ready.set_result(None)
            if self._decrypt():
                self._send()

    def _decrypt(self) -> bool:
        """Hands on what has come; whether the connection still stands."""
        try:
            while plain := self._tls.read(READ_BYTES):
                self._inner.data_received(plain)
                if not self._incoming.pending and not self._tls.pending():
                    return True  # asked for more, it would raise
        except ssl.SSLWantReadError:
            return True
        except ssl.SSLError as error:
            self._break(error)
            return False
        self._transport.close()
        return False

    def _send(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _break(self, error: ssl.SSLError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        self._transport.abort()
