"""What makes kube-scheduler use an extender: the `extenders:` of its configuration, or the legacy Policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from stowplan.config import ExtenderConfig
from stowplan.config.duration import Duration
from stowplan.config.types import V1, ExtenderTLS, ManagedResource
from stowplan.errors import InputError
from stowplan.extender.options import POINTS, ExtenderOptions
from stowplan.framework.resolve import ResolvedProfile


class StanzaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`url` is where kube-scheduler reaches the extender; what it has of a path, every path begins with."""

    url: str
    weight: int = 1
    managed_resources: tuple[str, ...] = ()
    ignored_by_scheduler: bool = False
    ignorable: bool = False
    timeout: float = 5.0
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


def extenders(
    options: ExtenderOptions, stanza: StanzaOptions, profiles: Sequence[ResolvedProfile]
) -> Iterator[ExtenderConfig]:
    """One for each profile, with the verbs that its plugins have something to say to; one for each function.

    bind is among them only if it was asked for: it takes the binding of pods away from kube-scheduler. Whole
    nodes are only asked for where the extender follows no cluster: with them, kube-scheduler 1.33 and later
    forgets what runs on the nodes that filter gives back (kubernetes#141781).
    """
    for profile in profiles:
        used = {point for point, entries in profile.points.items() if entries}
        verbs = {
            verb: path
            for verb, path in options.routes_of(profile.scheduler_name)
            if used & {*POINTS[verb]} and (verb != "bind" or "bind" in options.verbs)
        }
        yield _extender(stanza, verbs, True)
    for each in options.functions:
        if each.kind != "background":
            verb = "filter" if each.kind == "predicate" else "prioritize"
            is_cached = bool(profiles or options.kubeconfig or options.is_following)
            yield _extender(stanza, {verb: each.path}, is_cached)


def configuration(found: Sequence[ExtenderConfig]) -> dict[str, Any]:
    plain = msgspec.json.decode(msgspec.json.encode(found, enc_hook=str))
    return {"apiVersion": V1, "kind": "KubeSchedulerConfiguration", "extenders": plain}


def policy(found: Sequence[ExtenderConfig]) -> dict[str, Any]:
    """For kube-scheduler up to 1.22, which spelt two fields otherwise."""
    entries = configuration(found)["extenders"]
    for entry, extender in zip(entries, found, strict=True):
        entry["httpTimeout"] = round(extender.http_timeout * 10**9)
        if entry.pop("enableHTTPS", False):
            entry["enableHttps"] = True
    return {"kind": "Policy", "apiVersion": "v1", "extenders": entries}


def _extender(stanza: StanzaOptions, verbs: dict[str, str], is_cached: bool) -> ExtenderConfig:
    prefix = stanza.url.rstrip("/")
    within = {verb: _within(path, urlsplit(prefix).path) for verb, path in verbs.items()}
    return ExtenderConfig(
        url_prefix=prefix,
        filter_verb=within.get("filter", ""),
        prioritize_verb=within.get("prioritize", ""),
        preempt_verb=within.get("preempt", ""),
        bind_verb=within.get("bind", ""),
        weight=stanza.weight if "prioritize" in within else 0,
        enable_https=prefix.startswith("https:"),
        tls_config=_tls(stanza) if prefix.startswith("https:") else None,
        http_timeout=Duration(stanza.timeout),
        node_cache_capable=is_cached,
        managed_resources=tuple(
            ManagedResource(name, stanza.ignored_by_scheduler) for name in stanza.managed_resources
        ),
        ignorable=stanza.ignorable,
    )


def _tls(stanza: StanzaOptions) -> ExtenderTLS:
    return ExtenderTLS(ca_file=stanza.ca_file, cert_file=stanza.cert_file, key_file=stanza.key_file)


def _within(path: str, folder: str) -> str:
    """The path as a verb: what follows the URL."""
    if not path.startswith(f"{folder}/"):
        raise InputError(f"the path {path} does not start with {folder}", what="--url")
    return path.removeprefix(f"{folder}/")
