"""What is to be deployed: a configuration and plugin files, found fit to run in a pod."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from stowplan.api import quantity
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.config.document import parse_all
from stowplan.config.types import V1
from stowplan.errors import ConfigError, InputError, QuantityError
from stowplan.framework.handle import Handle
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry, files_in
from stowplan.framework.resolve import resolve_profiles
from stowplan.yaml_nesting import find_alias_fault, is_too_deep

CONFIG = "config.yaml"
PORT = 10259
MAX_CONFIG_MAP_BYTES = 1 << 20
JOURNAL_SIZE = "1Gi"
_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")
Mode = Literal["scheduler", "replacement", "extender", "shadow", "recorder"]
REPLICATED: tuple[Mode, ...] = ("scheduler", "replacement")
"""Modes in which replicas stand by; extenders all answer, and there is one of the others."""
Name = Annotated[str, Meta(pattern=f"^({_LABEL.pattern})?$", max_length=63)]
Size = Annotated[str, Meta(pattern=r"^([0-9]+(\.[0-9]+)?([EPTGMk]|[EPTGMK]i)?)?$")]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    """The file of the configuration, for messages."""
    config: KubeSchedulerConfiguration
    files: dict[str, str]
    """What the pod finds in its folder, by name: the configuration and the plugin files."""
    plugins: tuple[Plugin, ...]
    """Plugins of all profiles, built as in the scheduler: what they watch may depend on their arguments."""
    warnings: tuple[str, ...]

    @property
    def has_plugin_files(self) -> bool:
        return len(self.files) > 1


def read_setup(file: Path, plugin_dirs: Sequence[Path] = ()) -> Setup:
    """Read configuration and plugins, or raise an error that says what is wrong."""
    registry = Registry.installed(plugin_dirs)
    config, warnings, policy_config_map = load(file, registry)
    if policy_config_map:
        raise ConfigError(
            f"its Policy is in ConfigMap {policy_config_map}, which cannot be read here: write it into the "
            "file first, with `stowplan config convert --policy`",
            where=str(file),
        )
    try:
        profiles = [Profile(each, Handle(Cluster())) for each in resolve_profiles(config, registry)]
    except ConfigError as error:
        raise ConfigError(error.message, stage=error.stage, where=str(file)) from None
    if faults := list(_paths_of_this_machine(config)):
        raise ConfigError("; ".join(faults), stage="validate", where=str(file))
    plugins = tuple(plugin for profile in profiles for plugin in profile.plugins.values())
    files = {path.name: path.read_text() for folder in plugin_dirs for path in files_in(folder)}
    return Setup(
        where=str(file),
        config=config,
        files={CONFIG: _as_v1(file, config), **files},
        plugins=plugins,
        warnings=(*warnings, *_missing_in_the_image(plugins, files)),
    )


def _as_v1(file: Path, config: KubeSchedulerConfiguration) -> str:
    """The file unchanged, including comments; other kinds or versions are converted to v1."""
    text = file.read_text()
    match parse_all(text):
        case [{"apiVersion": version, "kind": config.kind}] if version == V1:
            return text
    return yaml.safe_dump(config.without_defaults(), sort_keys=False, allow_unicode=True)


def _paths_of_this_machine(config: KubeSchedulerConfiguration) -> Iterator[str]:
    for index, extender in enumerate(config.extenders):
        for field in ("certFile", "keyFile", "caFile"):
            path = msgspec.to_builtins(extender.tls_config or {}).get(field)
            if path:
                yield (
                    f"extenders[{index}].tlsConfig.{field}: the pod does not have the file {path}: set its "
                    f"contents as {field.removesuffix('File')}Data"
                )


def _missing_in_the_image(plugins: Sequence[Plugin], files: dict[str, str]) -> Iterator[str]:
    ours = {"stowplan", *(name.removesuffix(".py") for name in files)}
    for plugin in dict.fromkeys(map(type, plugins)):
        if plugin.__module__.partition(".")[0] not in ours:
            where = sys.modules[plugin.__module__].__file__
            yield (
                f"{plugin.__name__} is in the module {plugin.__module__} ({where}), which the image must "
                "contain: install it there, or pass its folder with --plugin-dir"
            )


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a values file."""


class Lease(Section, frozen=True):
    enabled: bool = True
    name: Annotated[str, Meta(pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$", max_length=253)] = ""
    namespace: Name = ""


class Journal(Section, frozen=True):
    enabled: bool = False
    claim: str = ""
    """The PersistentVolumeClaim of a journal that outlives its pod."""
    size: Size = JOURNAL_SIZE
    volume_size: Size = ""
    """The limit of the emptyDir volume, which must exceed `size`."""


class Recorder(Section, frozen=True):
    claim: str = ""
    """The PersistentVolumeClaim of a trace that outlives its pod."""
    volume_size: Size = "10Gi"
    hash_names: bool = False
    hash_images: bool = False
    omit_annotations: bool = False


class ExtenderServer(Section, frozen=True):
    tls_secret: str = ""
    """A Secret with tls.crt, tls.key and ca.crt; clients need a certificate of that CA."""


class Values(Section, frozen=True):
    """How to deploy: the values of the Helm chart, and the file for `stowplan manifests --values`."""

    mode: Mode = "scheduler"
    image: str = ""
    image_pull_secrets: list[dict[str, str]] = []
    name: Name = ""
    namespace: str = ""
    replicas: Annotated[int, Meta(ge=1)] = 2
    verbosity: Annotated[int, Meta(ge=0)] = 0
    extra_args: list[str] = []
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    priority_class_name: str = "system-cluster-critical"
    pod_disruption_budget: bool = True
    service_monitor: bool = False
    prometheus_rule: bool = False
    dashboard: bool = False
    controllers: bool = False
    journal: Journal = Journal()
    recorder: Recorder = Recorder()
    extender: ExtenderServer = ExtenderServer()
    # What follows from a configuration and its plugins: see `with_setup`.
    config: str = ""
    plugin_files: dict[str, str] = {}
    lease: Lease = Lease()
    standby_cache: bool = True
    rules: list[dict[str, Any]] = []
    custom_resource_definitions: list[dict[str, Any]] = []


def read_values(file: Path) -> Values:
    """Read a values file, or raise an error that names the field."""
    try:
        text = file.read_bytes().strip()
        if is_too_deep(text):
            raise InputError("is nested too deeply", where=str(file))
        if fault := find_alias_fault(text):
            raise InputError(fault, where=str(file))
        values = msgspec.yaml.decode(text or b"{}", type=Values)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InputError(message, where=str(file), field=path.strip("`.")) from None
    except (yaml.YAMLError, msgspec.DecodeError) as error:
        raise InputError(f"is not YAML: {' '.join(str(error).split())}", where=str(file)) from None
    _check_resources(values.resources, str(file))
    return values


def _check_resources(resources: dict[str, Any], file: str) -> None:
    """Raise an InputError for requests and limits that no API server accepts."""
    if unknown := resources.keys() - {"requests", "limits", "claims"}:
        found = f"resources.{min(unknown, key=str)}"
        raise InputError("unknown field; expected requests, limits or claims", where=file, field=found)
    amounts: dict[str, dict[str, quantity.Quantity]] = {"limits": {}, "requests": {}}
    for part, parsed in amounts.items():
        given = resources.get(part) or {}
        if not isinstance(given, dict):
            expected = "expected an object, such as {cpu: 500m}"
            raise InputError(expected, where=file, field=f"resources.{part}")
        for resource, text in given.items():
            field = f"resources.{part}.{resource}"
            try:
                parsed[resource] = amount = quantity.parse(str(text))
            except QuantityError as error:
                raise InputError(str(error), where=file, field=field) from None
            if amount < 0:
                raise InputError(f"{text} is negative; must be 0 or greater", where=file, field=field)
            if amount > amounts["limits"].get(resource, amount):
                limit = resources["limits"][resource]
                raise InputError(f"{text} is more than its limit, {limit}", where=file, field=field)


def check_values(values: Values) -> None:
    for option, value in (("--name", values.name), ("--namespace", values.namespace)):
        if not _LABEL.fullmatch(value) or len(value) > 63:
            rule = "needs small letters, digits and -, at most 63, with a letter or digit at both ends"
            raise InputError(f"{value!r} is not a valid Kubernetes name: it {rule}", what=option)
    for option, number, least in (("--replicas", values.replicas, 1), ("--verbosity", values.verbosity, 0)):
        if number < least:
            raise InputError(f"{number} is too small: it must be {least} or more", what=option)
    if not values.image.strip():
        raise InputError(
            "is empty: set it to the image that you built with `make image` and pushed", what="--image"
        )
    if values.journal.claim and values.replicas > 1 and values.mode in REPLICATED:
        raise InputError(
            f"{values.replicas} replicas cannot share a journal: use --replicas=1, or --journal, "
            "which gives each one of its own",
            what="--journal-claim",
        )
    if journal_bytes(values) <= 0:
        raise InputError(f"{values.journal.size} is too small for a journal", what="--journal-size")


def journal_bytes(values: Values) -> int:
    try:
        return quantity.units(quantity.parse(values.journal.size or JOURNAL_SIZE))
    except QuantityError as error:
        raise InputError(str(error), what="--journal-size") from None
