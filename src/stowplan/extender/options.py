"""The options of `stowplan extender`, and the configuration that makes kube-scheduler call it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from stowplan.config import ExtenderConfig, KubeSchedulerConfiguration
from stowplan.config.duration import Duration
from stowplan.config.types import V1, ExtenderTLS, ManagedResource
from stowplan.errors import InputError
from stowplan.extender.functions import Function
from stowplan.framework.profile import Profile
from stowplan.framework.resolve import ResolvedProfile

VERBS = ("filter", "prioritize", "preempt", "bind")
POINTS = {
    "filter": ("preFilter", "filter"),
    "prioritize": ("preScore", "score"),
    "preempt": ("preFilter", "filter"),
    "bind": ("reserve", "permit", "preBind", "bind", "postBind"),
}
"""The extension points that each verb runs."""
PATHS = {verb: f"/{{profile}}/{verb}" for verb in VERBS}


class ExtenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    config: KubeSchedulerConfiguration | None = None
    """Without one, no plugins are served, and the cluster is followed only if `is_following` is set."""
    functions: tuple[Function, ...] = ()
    verbs: tuple[str, ...] = ()
    """The verbs to serve; all if empty."""
    paths: dict[str, str] = msgspec.field(default_factory=lambda: dict(PATHS))
    """Paths by verb; `{profile}` stands for the profile's schedulerName."""
    max_score: int = 10
    kubeconfig: str = ""
    """The cluster to follow."""
    is_following: bool = False
    """Whether to follow the cluster that this runs in, even to serve only functions."""
    address: str = "0.0.0.0"
    port: int = 8888
    health_port: int = 0
    """A second port for health and metrics, over plain HTTP; 0 for none."""
    budget: float = 4.0
    max_body: int = 100 * 2**20
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    client_ca_file: str = ""

    def routes_of(self, profile: str) -> Iterator[tuple[str, str]]:
        """Yield each verb with its path."""
        for verb in self.verbs or VERBS:
            yield verb, self.paths[verb].replace("{profile}", profile)


def check_paths(options: ExtenderOptions, profiles: Sequence[str]) -> None:
    """Raise an InputError for a path that is invalid or used twice."""
    taken: dict[str, str] = {}
    wanted = [(path, f"{verb} of {name}") for name in profiles for verb, path in options.routes_of(name)]
    wanted += [(each.path, each.name) for each in options.functions if each.kind != "background"]
    for path, what in wanted:
        if not path.startswith("/"):
            raise InputError(f"{path!r} does not start with /", what=what)
        if path in taken:
            raise InputError(
                f"{path} is the path of {taken[path]} too; {{profile}} tells them apart", what=what
            )
        taken[path] = what


def find_unreached(profile: Profile, verbs: Sequence[str]) -> list[str]:
    """Find plugins with extension points that none of the verbs runs."""
    reached = {point for verb in verbs or VERBS for point in POINTS[verb]}
    names = {name for point in reached for name in profile.points.get(point, ())}
    return [name for name in profile.plugins if name not in names]


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
            verb = {"predicate": "filter", "priority": "prioritize", "preemption": "preempt"}[each.kind]
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
