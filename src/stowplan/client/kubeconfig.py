"""Reads kubeconfig files, and the account that a pod finds in its own file system."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from stowplan.api.meta import Wire, decode
from stowplan.client.connection import Connection, tls_context
from stowplan.client.credentials import (
    CertificateFiles,
    Credential,
    ExecConfig,
    ExecPlugin,
    TokenFile,
    load_certificate_text,
)
from stowplan.errors import InputError
from stowplan.yaml_nesting import find_alias_fault, is_too_deep

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class Kebab(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """A part of a kubeconfig; most of its field names are kebab-case."""


class Extension(Wire, frozen=True):
    name: str = ""
    extension: Any = None


class ClusterEntry(Kebab, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: tuple[Extension, ...] = ()


class UserEntry(Kebab, frozen=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    acting_as: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = {}
    auth_provider: Any = None
    exec: ExecConfig | None = None


class ContextEntry(Kebab, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(Kebab, frozen=True):
    name: str = ""
    cluster: ClusterEntry = ClusterEntry()


class NamedUser(Kebab, frozen=True):
    name: str = ""
    user: UserEntry = UserEntry()


class NamedContext(Kebab, frozen=True):
    name: str = ""
    context: ContextEntry = ContextEntry()


class Kubeconfig(Kebab, frozen=True):
    current_context: str = ""
    clusters: tuple[NamedCluster, ...] = ()
    users: tuple[NamedUser, ...] = ()
    contexts: tuple[NamedContext, ...] = ()


def load(
    path: str | None,
    *,
    context: str | None = None,
    master: str = "",
    remedy: str = "name one with --kubeconfig or in KUBECONFIG",
) -> Connection:
    """The connection that a kubeconfig describes.

    Without a path the files that KUBECONFIG lists are taken, else the one in the home folder, else the
    account of the pod we run in. `master` is used instead of the kubeconfig's address of the API server.
    `remedy` is what to do where there is none of all that.
    """
    paths = [Path(path)] if path else list(_usual_paths(os.environ))
    if not paths:
        if master:
            return Connection(master, ssl_context=tls_context())
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return in_cluster()
        raise InputError(f"no kubeconfig found; {remedy}")
    where = os.pathsep.join(map(str, paths))
    return _connection(_merge([_read(found) for found in paths]), where, context, master)


def is_in_pod(*, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> bool:
    """Whether we run in a pod with a service account; static pods have none."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (account / "token").is_file()


def in_cluster(*, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Connection:
    """The service account of the pod we run in; its token is renewed in its file."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise InputError(
            "not running in a pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set); "
            "set --kubeconfig"
        )
    authority = account / "ca.crt"
    namespace = account / "namespace"
    return Connection(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ssl_context=tls_context(authority_text=_text(authority), where=str(authority)),
        namespace=_text(namespace).strip() if namespace.exists() else "default",
        credentials=[TokenFile(account / "token")],
    )


def _usual_paths(environ: Mapping[str, str]) -> Iterator[Path]:
    listed = environ.get("KUBECONFIG", "").split(os.pathsep)
    paths = [Path(entry) for entry in listed if entry] or [Path.home() / ".kube" / "config"]
    return (path for path in paths if path.exists())


def _read(path: Path) -> Kubeconfig:
    where, text = str(path), _text(path)
    if is_too_deep(text):
        raise InputError("is nested too deeply", where=where)
    try:
        if fault := find_alias_fault(text):
            raise InputError(fault, where=where)
        plain = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML: {' '.join(str(error).split())}", where=where) from None
    if not isinstance(plain, dict):
        raise InputError("is not a kubeconfig: it needs clusters, users and contexts", where=where)
    try:
        return _with_whole_paths(decode(Kubeconfig, plain), path.parent)
    except InputError as error:
        raise InputError(error.message, where=where, field=error.field) from None


def _with_whole_paths(config: Kubeconfig, folder: Path) -> Kubeconfig:
    """Resolve paths relative to the kubeconfig that contains them."""

    def whole(item: T, *fields: str) -> T:
        named = {field: getattr(item, field) for field in fields}
        found = {field: str(folder.absolute() / name) for field, name in named.items() if name}
        return msgspec.structs.replace(item, **found)

    def user(entry: UserEntry) -> UserEntry:
        plugin = entry.exec
        if plugin is not None and os.sep in plugin.command:
            plugin = whole(plugin, "command")
        entry = msgspec.structs.replace(entry, exec=plugin)
        return whole(entry, "client_certificate", "client_key", "token_file")

    return msgspec.structs.replace(
        config,
        clusters=tuple(
            NamedCluster(name=named.name, cluster=whole(named.cluster, "certificate_authority"))
            for named in config.clusters
        ),
        users=tuple(NamedUser(name=named.name, user=user(named.user)) for named in config.users),
    )


T = TypeVar("T", bound=msgspec.Struct)


def _merge(configs: list[Kubeconfig]) -> Kubeconfig:
    """Merge several kubeconfigs; the first file that sets a value wins."""
    return Kubeconfig(
        current_context=next((config.current_context for config in configs if config.current_context), ""),
        clusters=tuple(named for config in configs for named in config.clusters),
        users=tuple(named for config in configs for named in config.users),
        contexts=tuple(named for config in configs for named in config.contexts),
    )


def _connection(config: Kubeconfig, where: str, context_name: str | None, master: str) -> Connection:
    context = _chosen_context(config, where, context_name)
    named_cluster = _find_by_name(config.clusters, context.cluster, "cluster", where)
    cluster = named_cluster.cluster if named_cluster else ClusterEntry()
    named_user = _find_by_name(config.users, context.user, "user", where)
    user = named_user.user if named_user else UserEntry()
    place = f"user {context.user!r}"
    server = master or cluster.server
    if not server:
        raise InputError("has no server", where=where, what=f"cluster {context.cluster!r}")
    tls = _tls_context(cluster, where, f"cluster {context.cluster!r}")
    try:
        return Connection(
            server,
            ssl_context=tls,
            namespace=context.namespace or "default",
            credentials=list(_credentials(user, cluster, tls, f"{where}: {place}")),
            fixed_headers=list(_fixed_headers(user)),
            proxy=cluster.proxy_url,
            server_hostname=cluster.tls_server_name,
        )
    except InputError as error:
        raise error if error.where else InputError(error.message, where=where) from None


def _chosen_context(config: Kubeconfig, where: str, name: str | None) -> ContextEntry:
    wanted = name or config.current_context
    if not wanted and len(config.contexts) != 1:
        raise InputError("has no current-context; choose one of its contexts", where=where)
    found = _find_by_name(config.contexts, wanted, "context", where) if wanted else config.contexts[0]
    return found.context if found else ContextEntry()


N = TypeVar("N", NamedCluster, NamedUser, NamedContext)


def _find_by_name(entries: tuple[N, ...], name: str, what: str, where: str) -> N | None:
    if not name:
        return None
    for entry in entries:
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in entries) or "none"
    raise InputError(f"has no {what} {name!r}; there are: {known}", where=where)


def _tls_context(cluster: ClusterEntry, where: str, what: str) -> ssl.SSLContext:
    place, text = f"{where}: {what}", ""
    if cluster.certificate_authority_data:
        text = _decode_base64(cluster.certificate_authority_data, place, "certificate-authority-data")
    elif cluster.certificate_authority:
        place = cluster.certificate_authority
        text = _text(Path(place))
    return tls_context(authority_text=text, insecure=cluster.insecure_skip_tls_verify, where=place)


def _credentials(
    user: UserEntry, cluster: ClusterEntry, tls: ssl.SSLContext, where: str
) -> Iterator[Credential]:
    if user.auth_provider is not None:
        raise InputError(
            "auth-provider is no longer supported; use the exec plugin of your provider instead",
            where=where,
        )
    if user.client_certificate_data or user.client_certificate:
        yield from _certificate(user, tls, where)
    if user.token_file:
        yield TokenFile(Path(user.token_file))
    elif user.exec is not None and not user.token and not user.username:
        yield ExecPlugin(user.exec, where=where, cluster=_cluster_info(cluster), context=tls)


def _certificate(user: UserEntry, tls: ssl.SSLContext, where: str) -> Iterator[Credential]:
    if not (user.client_key_data or user.client_key):
        raise InputError("has a client certificate but no client-key or client-key-data", where=where)
    if user.client_certificate_data or user.client_key_data:
        certificate = (
            _decode_base64(user.client_certificate_data, where, "client-certificate-data")
            if user.client_certificate_data
            else _text(Path(user.client_certificate))
        )
        key = (
            _decode_base64(user.client_key_data, where, "client-key-data")
            if user.client_key_data
            else _text(Path(user.client_key))
        )
        load_certificate_text(tls, certificate, key, where)
    else:
        yield CertificateFiles(tls, Path(user.client_certificate), Path(user.client_key))


def _cluster_info(cluster: ClusterEntry) -> dict[str, object]:
    """The cluster information for an exec plugin that asks for it."""
    authority = cluster.certificate_authority_data
    if not authority and cluster.certificate_authority:
        authority = base64.b64encode(_text(Path(cluster.certificate_authority)).encode()).decode()
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": authority,
        "proxy-url": cluster.proxy_url,
        "config": next((item.extension for item in cluster.extensions if item.name == EXEC_EXTENSION), None),
    }
    return {field: value for field, value in info.items() if value}


def _fixed_headers(user: UserEntry) -> Iterable[tuple[str, str]]:
    if user.token and not user.token_file:
        yield "Authorization", f"Bearer {user.token}"
    elif user.username and not user.token_file:
        pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        yield "Authorization", f"Basic {pair}"
    if user.acting_as:
        yield "Impersonate-User", user.acting_as
    if user.as_uid:
        yield "Impersonate-Uid", user.as_uid
    for group in user.as_groups:
        yield "Impersonate-Group", group
    for key, values in user.as_user_extra.items():
        for value in values:
            yield f"Impersonate-Extra-{key}", value


def _decode_base64(data: str, where: str, field: str) -> str:
    try:
        return base64.b64decode("".join(data.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InputError("is not base64 of PEM text", where=where, field=field) from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("cannot be read: it is not text", where=str(path)) from None
