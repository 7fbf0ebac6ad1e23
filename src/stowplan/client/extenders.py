"""Calls to HTTP extenders: filter, prioritize, preempt and bind over the network.

Names go in, names come out; what they mean for a decision is the host's business. Whatever goes wrong with a
call is an ExtenderError that says which extender it was and why.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Raw

from stowplan.api import extender as wire
from stowplan.api.pod import Pod
from stowplan.client.connection import HttpPool, proxy_of_environment, tls_context
from stowplan.client.credentials import load_certificate_text
from stowplan.client.errors import Unreachable
from stowplan.config.types import ExtenderConfig, ExtenderTLS
from stowplan.errors import ConfigError, InputError, StowplanError
from stowplan.http11.client import BrokenError, Reply, TooLargeError

TIMEOUT_SECONDS = 5.0
"""For a configuration that sets none."""
MAX_RESPONSE_BYTES = 32 << 20
"""The default of --extender-max-response-bytes."""

MAX_TEXT = 1024
"""Characters of an error, or of the reason why a node is rejected."""

T = TypeVar("T")
WholeNode = Callable[[str], Raw]
"""A node as the API server wrote it, by its name."""


class ExtenderError(StowplanError):
    """A call that failed. `is_unknown`: there was no complete response, so it may have taken effect."""

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


class Extender:
    """An extender; connections to it are opened on demand and kept until `close`."""

    def __init__(
        self, config: ExtenderConfig, where: str, max_response_bytes: int = MAX_RESPONSE_BYTES
    ) -> None:
        self.config = config
        parts = _parts(config.url_prefix, f"{where}.urlPrefix")
        self._managed = frozenset(resource.name for resource in config.managed_resources)
        self.timeout = config.http_timeout or TIMEOUT_SECONDS
        host = parts.netloc.rpartition("@")[2]
        self.url = parts._replace(netloc=host).geturl()
        """For messages: without the password."""
        self._path = parts.path.rstrip("/")
        self._headers = [("User-Agent", "stowplan/scheduler"), ("Content-Type", "application/json")]
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers.append(("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        tls = config.tls_config or ExtenderTLS()
        server = f"{parts.scheme}://{host}"
        self._pool = HttpPool(
            server,
            ssl_context=_tls_of(tls, config.enable_https, f"{where}.tlsConfig")
            if parts.scheme == "https"
            else None,
            server_hostname=tls.server_name or None,
            proxy=proxy_of_environment(server),
            max_body_bytes=max_response_bytes,
        )

    @property
    def filters(self) -> bool:
        return bool(self.config.filter_verb)

    @property
    def prioritizes(self) -> bool:
        return bool(self.config.prioritize_verb)

    @property
    def preempts(self) -> bool:
        return bool(self.config.preempt_verb)

    @property
    def binds(self) -> bool:
        return bool(self.config.bind_verb)

    @property
    def wants_whole_nodes(self) -> bool:
        return not self.config.node_cache_capable and (self.filters or self.prioritizes)

    @property
    def wants_whole_victims(self) -> bool:
        return not self.config.node_cache_capable and self.preempts

    def is_interested(self, pod: Pod) -> bool:
        """Whether to call it for this pod: with managed resources, only if the pod names one of them."""
        return not self._managed or any(
            not self._managed.isdisjoint((*container.resources.requests, *container.resources.limits))
            for container in (*pod.spec.containers, *pod.spec.init_containers)
        )

    async def filter(
        self, pod: Raw, names: Sequence[str], whole: WholeNode
    ) -> tuple[list[str], wire.ExtenderFilterResult]:
        """Return the names of the nodes that fit, and the whole response."""
        answer = await self._send(
            self.config.filter_verb, self._args(pod, names, whole), wire.ExtenderFilterResult
        )
        if answer.error:
            raise ExtenderError(f'extender "{self.url}": {shorten(answer.error)}')
        left: list[str] = []
        if self.config.node_cache_capable and answer.node_names is not None:
            left = answer.node_names
        elif answer.nodes is not None:
            left = self._names(answer.nodes)
        known = set(names)
        for name in left:
            if name not in known:
                raise ExtenderError(
                    f'extender "{self.url}" claims a filtered node "{name}" which is not found in the input '
                    "node list"
                )
        return left, answer

    async def prioritize(self, pod: Raw, names: Sequence[str], whole: WholeNode) -> dict[str, int]:
        """Return its scores by node, unweighted; nodes that it does not name have none."""
        args = self._args(pod, names, whole)
        answer = await self._send(self.config.prioritize_verb, args, list[wire.HostPriority])
        scores: dict[str, int] = {}
        for each in answer:  # parity: a node that is named twice gets the sum, which wraps around as in Go
            scores[each.host] = wire.wrap_int64(scores.get(each.host, 0) + each.score)
        return scores

    async def preempt(
        self, pod: Raw, victims: Mapping[str, wire.MetaVictims], whole_pod: Callable[[str], Raw]
    ) -> Mapping[str, wire.MetaVictims]:
        """Return the victims that it accepts, by node, as uids."""
        if self.config.node_cache_capable:
            args = wire.ExtenderPreemptionArgs(pod=pod, node_name_to_meta_victims=dict(victims))
        else:
            whole = {
                name: wire.Victims(
                    pods=[whole_pod(each.uid) for each in found.pods],
                    num_pdb_violations=found.num_pdb_violations,
                )
                for name, found in victims.items()
            }
            args = wire.ExtenderPreemptionArgs(pod=pod, node_name_to_victims=whole)
        answer = await self._send(self.config.preempt_verb, args, wire.ExtenderPreemptionResult)
        return answer.node_name_to_meta_victims

    async def bind(self, pod: Pod, node_name: str) -> None:
        args = wire.ExtenderBindingArgs(
            pod_name=pod.name, pod_namespace=pod.namespace, pod_uid=pod.uid, node=node_name
        )
        answer = await self._send(self.config.bind_verb, args, wire.ExtenderBindingResult)
        if answer.error:
            raise ExtenderError(f'extender "{self.url}": {shorten(answer.error)}')

    async def close(self) -> None:
        await self._pool.close()

    def _args(self, pod: Raw, names: Sequence[str], whole: WholeNode) -> wire.ExtenderArgs:
        if self.config.node_cache_capable:
            return wire.ExtenderArgs(pod=pod, node_names=list(names))
        return wire.ExtenderArgs(pod=pod, nodes=wire.NodeList(items=[whole(name) for name in names]))

    async def _send(self, verb: str, message: wire.Message, kind: type[T]) -> T:
        url = f"{self.url.rstrip('/')}/{verb}"
        body = wire.write(message)
        try:
            async with asyncio.timeout(self.timeout):
                reply = await self._exchange(verb, body)
        except TimeoutError:
            raise self._no_answer(url, TimeoutError()) from None
        except Unreachable as error:
            raise self._no_answer(url, error.__cause__) from error
        if reply.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {reply.status}")
        try:
            return wire.read(kind, reply.data)
        except InputError as error:
            raise ExtenderError(
                f'cannot decode the response of the extender at URL "{url}": {error}', is_unknown=True
            ) from None

    async def _exchange(self, verb: str, body: bytes) -> Reply:
        """Send a request, and once more if the connection breaks: servers close idle connections."""
        for is_last in (verb == self.config.bind_verb, True):
            try:
                return await self._pool.request(
                    "POST", f"{self._path}/{verb}", self._headers, body, timeout=self.timeout
                )
            except Unreachable as error:
                if is_last or not isinstance(error.__cause__, (BrokenError, ConnectionResetError)):
                    raise
        raise AssertionError

    def _names(self, nodes: wire.NodeList) -> list[str]:
        try:
            return nodes.names()
        except (InputError, ValueError, RecursionError) as error:
            raise ExtenderError(f'extender "{self.url}" returned invalid nodes: {error}') from None

    def _no_answer(self, url: str, error: BaseException | None) -> ExtenderError:
        return ExtenderError(f'Post "{url}": {_in_words(error, self.timeout)}', is_unknown=True)


def extenders_of(
    configs: Iterable[ExtenderConfig], max_response_bytes: int = MAX_RESPONSE_BYTES
) -> tuple[Extender, ...]:
    """Return the extenders in calling order: those that may be ignored come last. Raises ConfigError."""
    made = [
        Extender(config, f"extenders[{index}]", max_response_bytes) for index, config in enumerate(configs)
    ]
    return tuple(sorted(made, key=lambda extender: extender.config.ignorable))


def _parts(url: str, where: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or of brackets that do not match
        is_right = False
    if not is_right:
        raise ConfigError(f"{where}: {url!r} is not a URL; expected one like http://10.0.0.1:8080/scheduler")
    return parts


def shorten(text: str) -> str:
    """Shorten a text of an extender: logs, events and conditions have a limited size."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


def _in_words(error: BaseException | None, timeout: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); set its authority in tlsConfig"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g}s"
    if isinstance(error, TooLargeError):
        return f"{error}; if that is intended, raise --extender-max-response-bytes"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    number = getattr(error, "errno", None) or 0
    return os.strerror(number) if number > 0 else str(error or "the connection broke")


def _tls_of(tls: ExtenderTLS, enable_https: bool, where: str) -> ssl.SSLContext:
    """Make a TLS context; data takes precedence over files. Raises ConfigError."""
    authority = _pem(tls.ca_data, tls.ca_file, f"{where}.caFile")
    certificate = _pem(tls.cert_data, tls.cert_file, f"{where}.certFile")
    key = _pem(tls.key_data, tls.key_file, f"{where}.keyFile")
    if tls.insecure and authority:
        raise ConfigError(
            f"{where}: specifying a root certificates file with the insecure flag is not allowed"
        )
    if bool(certificate) != bool(key):
        raise ConfigError(f"{where}: set both the client certificate and its key, or neither")
    # parity: HTTPS asked for without an authority trusts everyone
    insecure = tls.insecure or (enable_https and not authority)
    try:
        context = tls_context(authority_text=authority, insecure=insecure, where=where)
        if certificate:
            load_certificate_text(context, certificate, key, where)
    except InputError as error:
        raise ConfigError(str(error)) from None
    return context


def _pem(data: bytes, path: str, where: str) -> str:
    try:
        return (data or (Path(path).read_bytes() if path else b"")).decode("latin-1")
    except OSError as error:
        raise ConfigError(f"{where}: {path}: {error.strerror}") from None
