"""Credentials that change while we run: token files, certificate files, exec plugins."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from stowplan import log
from stowplan.api.meta import Wire, decode, parse_time
from stowplan.errors import InputError


class Credential(Protocol):
    async def authorization(self) -> str | None:
        """Return the Authorization header, if there is one; reload files that have changed."""
        ...

    async def renew(self) -> bool:
        """Called after a 401; return whether another attempt makes sense."""
        ...


class TokenFile:
    """A token in a file that is replaced from time to time; each request checks the file's times."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._token = _read_token(path)

    async def authorization(self) -> str:
        try:
            if (stamp := _stamp(self._path)) != self._stamp:
                self._token, self._stamp = _read_token(self._path), stamp
        except InputError as error:
            log.warn("Cannot read the token file; using the last token", err=error)
        return f"Bearer {self._token}"

    async def renew(self) -> bool:
        before, self._stamp = self._token, ()
        await self.authorization()
        return self._token != before


class CertificateFiles:
    """A client certificate in files that may be replaced; new connections use the new files."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self._context, self._paths = context, (certificate, key)
        self._stamps = self._load()

    async def authorization(self) -> None:
        try:
            if tuple(map(_stamp, self._paths)) != self._stamps:
                self._stamps = self._load()
        except InputError as error:
            log.warn("Cannot read the client certificate; using the last one", err=error)

    async def renew(self) -> bool:
        return False

    def _load(self) -> tuple[tuple[int, ...], ...]:
        stamps = tuple(map(_stamp, self._paths))
        load_certificate(self._context, *self._paths)
        return stamps


class ExecVariable(Wire, frozen=True):
    name: str = ""
    value: str = ""


class ExecConfig(Wire, frozen=True):
    """The `exec` part of a kubeconfig's user."""

    api_version: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[ExecVariable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class _CredentialStatus(Wire, frozen=True):
    token: str = ""
    expiration_timestamp: str | None = None
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    status: _CredentialStatus | None = None


class ExecPlugin:
    """Runs a program that prints a token or a client certificate, again when that has expired."""

    def __init__(
        self,
        config: ExecConfig,
        *,
        where: str,
        cluster: Mapping[str, object] | None = None,
        context: ssl.SSLContext | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if config.api_version not in (
            "client.authentication.k8s.io/v1",
            "client.authentication.k8s.io/v1beta1",
        ):
            raise InputError(
                f"{config.api_version!r} is not a supported version of exec plugins; "
                "set it to client.authentication.k8s.io/v1",
                where=where,
                field="exec.apiVersion",
            )
        if config.interactive_mode == "Always":
            raise InputError(
                "a scheduler runs without a terminal; use an exec plugin that supports interactiveMode Never",
                where=where,
                field="exec.interactiveMode",
            )
        self._config, self._where, self._cluster = config, where, cluster
        self._context, self._now = context, now
        self._status: _CredentialStatus | None = None
        self._turn = asyncio.Lock()
        self._failure: InputError | None = None
        """The error of the last run that failed."""

    async def authorization(self) -> str | None:
        known = self._failure
        async with self._turn:  # requests that start together need one run of the program
            if self._status is None or self._has_expired(self._status):
                self._raise_new(known)
                self._status = await self._run()
        return f"Bearer {self._status.token}" if self._status.token else None

    async def renew(self) -> bool:
        rejected = self._status
        known = self._failure
        async with self._turn:
            if self._status is rejected:  # and nobody else, rejected at the same time, has run it since
                self._raise_new(known)
                self._status = await self._run()
        return self._status != rejected

    def _has_expired(self, status: _CredentialStatus) -> bool:
        return status.expiration_timestamp is not None and (
            parse_time(status.expiration_timestamp) <= self._now()
        )

    async def _run(self) -> _CredentialStatus:
        try:
            return await self._ask()
        except InputError as error:
            self._failure = error
            raise

    def _raise_new(self, known: InputError | None) -> None:
        """Raise the failure of a run that ended while this request waited for its turn."""
        if self._failure is not None and self._failure is not known:
            raise self._failure

    async def _ask(self) -> _CredentialStatus:
        command = self._config.command
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *self._config.args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env=self._environment(),
            )
        except OSError as error:
            hint = f"; {self._config.install_hint}" if self._config.install_hint else ""
            raise InputError(
                f"exec plugin {command!r} cannot be run: {error.strerror}{hint}", where=self._where
            ) from None
        output, _ = await process.communicate()
        if process.returncode:
            raise InputError(
                f"exec plugin {command!r} failed with exit status {process.returncode}; "
                "see standard error for its output",
                where=self._where,
            )
        return self._parse_status(output)

    def _environment(self) -> dict[str, str]:
        spec: dict[str, object] = {"interactive": False}
        if self._config.provide_cluster_info and self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"kind": "ExecCredential", "apiVersion": self._config.api_version, "spec": spec}
        own = {variable.name: variable.value for variable in self._config.env}
        return os.environ | own | {"KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    def _parse_status(self, output: bytes) -> _CredentialStatus:
        what = f"exec plugin {self._config.command!r}"
        try:
            found = decode(_ExecCredential, output)
        except InputError as error:
            raise InputError(f"{what} did not print an ExecCredential: {error}", where=self._where) from None
        status = found.status
        if found.api_version != self._config.api_version or status is None:
            raise InputError(
                f"{what} must print an ExecCredential of {self._config.api_version} with a status",
                where=self._where,
            )
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise InputError(
                f"{what} returned neither a token nor a client certificate with its key", where=self._where
            )
        if status.client_certificate_data and self._context is not None:
            load_certificate_text(self._context, status.client_certificate_data, status.client_key_data, what)
        return status


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"is not a client certificate with its key ({key}) in PEM: {error.strerror or error}",
            where=str(certificate),
        ) from None


def load_certificate_text(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    """Load a certificate from text; the ssl module only reads files, so it is in one for a moment."""
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "certificate"), Path(folder, "key")
        for path, text in zip(paths, (certificate, key), strict=True):
            path.write_text(text)
        try:
            load_certificate(context, *paths)
        except InputError:
            raise InputError(
                "its client certificate and key are not PEM, or do not belong together", where=where
            ) from None


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    if not token:
        raise InputError("contains no token", where=str(path))
    return token
