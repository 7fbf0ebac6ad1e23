"""What is to be deployed: a configuration and plugin files, found fit to run in a pod."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from stowplan.api import quantity
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.config.document import parse
from stowplan.config.types import V1
from stowplan.errors import ConfigError, InputError, QuantityError
from stowplan.framework.handle import Handle
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry, files_in
from stowplan.framework.resolve import resolve_profiles

CONFIG = "config.yaml"
PORT = 10259
MAX_CONFIG_MAP_BYTES = 1 << 20
JOURNAL_SIZE = "1Gi"
_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")


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
    plain = parse(text)
    if isinstance(plain, dict) and (plain.get("apiVersion"), plain.get("kind")) == (V1, config.kind):
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


class DeployOptions(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    name: str = "stowplan"
    namespace: str = "stowplan"
    replicas: int = 2
    verbosity: int = 0
    service_monitor: bool = False
    journal: bool = False
    journal_claim: str = ""
    """The PersistentVolumeClaim of a journal that outlives its pod."""
    journal_size: str = ""

    def __post_init__(self) -> None:
        for option, value in (("--name", self.name), ("--namespace", self.namespace)):
            if not _LABEL.fullmatch(value) or len(value) > 63:
                rule = "needs small letters, digits and -, at most 63, with a letter or digit at both ends"
                raise InputError(f"{value!r} is not a valid Kubernetes name: it {rule}", what=option)
        for option, number, least in (("--replicas", self.replicas, 1), ("--verbosity", self.verbosity, 0)):
            if number < least:
                raise InputError(f"{number} is too small: it must be {least} or more", what=option)
        if not self.image.strip():
            raise InputError(
                "is empty: set it to the image that you built with `make image` and pushed", what="--image"
            )
        if self.journal_claim and self.replicas > 1:
            raise InputError(
                f"{self.replicas} replicas cannot share a journal: use --replicas=1, or --journal, "
                "which gives each one of its own",
                what="--journal-claim",
            )
        if self.journal_bytes <= 0:
            raise InputError(f"{self.journal_size} is too small for a journal", what="--journal-size")

    @property
    def has_journal(self) -> bool:
        return bool(self.journal or self.journal_claim or self.journal_size)

    @property
    def journal_bytes(self) -> int:
        try:
            return quantity.units(quantity.parse(self.journal_size or JOURNAL_SIZE))
        except QuantityError as error:
            raise InputError(str(error), what="--journal-size") from None

    @property
    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "stowplan", "app.kubernetes.io/instance": self.name}

    @property
    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "namespace": self.namespace, "labels": self.labels}

    @property
    def account(self) -> str:
        """Unlike in other namespaces, for objects that are not in this one."""
        return f"{self.namespace}:{self.name}"
