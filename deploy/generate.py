"""Write the Helm chart and the kustomize bases from what `stowplan manifests` renders: `make chart`."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast, get_args

import msgspec
import yaml

from stowplan.cluster import Cluster
from stowplan.deploy.manifests import MONITORING, definitions_of, manifests, render
from stowplan.deploy.rights import plugin_rights, reading_rights, rules, scheduler_rights, shadow_rights
from stowplan.deploy.setup import Mode, Values, read_setup
from stowplan.deploy.template import Symbol, as_yaml
from stowplan.framework.args import PluginArgs
from stowplan.framework.handle import Handle
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry

HERE = Path(__file__).parent
PROFILE = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: {name}
"""
HELPERS = """\
{{- define "stowplan.config" -}}
{{- if .Values.config }}{{ .Values.config }}{{ else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: {{ if eq .Values.mode "scheduler" }}stowplan{{ else }}default-scheduler{{ end }}
{{ end }}
{{- end }}

{{- /* What the plugins that the configuration names need besides the default ones, as JSON. */}}
{{- define "stowplan.plugins" -}}
{{- $found := list }}{{- $config := include "stowplan.config" . }}
{{- range $plugin, $needed := (.Files.Get "files/permissions.yaml" | fromYaml).plugins }}
{{- if regexMatch (printf "name[\\"']?\\\\s*:\\\\s*[\\"']?%s\\\\b" $plugin) $config }}
{{- $found = append $found $needed }}
{{- end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* Rules as JSON: of the values, or of the default plugins and others that the configuration names. */}}
{{- define "stowplan.rules" -}}
{{- $root := index . 0 }}{{- $account := index . 1 }}
{{- if $root.Values.rules }}{{ $root.Values.rules | toJson }}{{ else }}
{{- $rules := get ($root.Files.Get "files/permissions.yaml" | fromYaml) $account }}
{{- range include "stowplan.plugins" $root | fromJsonArray }}
{{- $rules = concat $rules (get . $account) }}
{{- end }}
{{- $rules | toJson }}
{{- end }}
{{- end }}
"""
CHECKS = """\
{{- if and (has .Values.mode (list "scheduler" "replacement")) (gt (int .Values.replicas) 1) }}
{{- $is_off := regexMatch "(?m)^[^#\\n]*leaderElect[\\"']?\\\\s*:\\\\s*false" (include "stowplan.config" .) }}
{{- if or $is_off (not .Values.lease.enabled) }}
{{- fail "replicas: without leader election several would schedule the same pods: set replicas to 1" }}
{{- end }}
{{- if .Values.journal.claim }}
{{- fail "journal.claim: replicas cannot share a journal: set replicas to 1, or use journal.enabled" }}
{{- end }}
{{- end }}
"""
DEFINITIONS = """\
{{- /* Helm keeps the definitions when the release is removed: with them all their objects would go. */}}
{{- if or (eq .Values.mode "scheduler") (eq .Values.mode "replacement") }}
{{- $found := .Values.customResourceDefinitions }}
{{- if not .Values.rules }}
{{- range include "stowplan.plugins" . | fromJsonArray }}
{{- $found = concat $found .definitions }}
{{- end }}
{{- end }}
{{- $keep := dict "metadata" (dict "annotations" (dict "helm.sh/resource-policy" "keep")) }}
{{- range $found | uniq }}
---
{{ mergeOverwrite (deepCopy .) $keep | toYaml }}
{{- end }}
{{- end }}
"""
NOTES = """\
Stowplan is installed as {{ .Values.mode }}:
  kubectl -n {{ .Release.Namespace }} get deployment {{ .Values.name | default .Release.Name }}
{{- if eq .Values.mode "replacement" }}
It schedules nothing until kube-scheduler gives up its lease. Keep kube-scheduler as standby.
{{- end }}
"""


class ChartValues(Symbol):
    """Values as the chart's templates see them."""

    def __init__(self, mode: str) -> None:
        super().__init__(".Values")
        self._known: dict[str, Any] = {
            "mode": mode,
            "name": Symbol("(.Values.name | default .Release.Name)"),
            "namespace": Symbol(".Release.Namespace"),
            "image": Symbol(
                '(required "image: set it to the image that you built with `make image`" .Values.image)'
            ),
            "config": Symbol('(include "stowplan.config" .)'),
            "rules": Symbol(f'(include "stowplan.rules" (list . "{_account(mode)}") | fromJsonArray)'),
            "lease": _Lease(mode),
        }

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__["_known"]
        return known[name] if name in known else super().__getattr__(name)


class _Lease(Symbol):
    def __init__(self, mode: str) -> None:
        super().__init__(".Values.lease")
        own = {"name": '"kube-scheduler"', "namespace": '"kube-system"'}
        if mode != "replacement":
            own = {"name": "(.Values.name | default .Release.Name)", "namespace": ".Release.Namespace"}
        self.name = Symbol(f"(.Values.lease.name | default {own['name']})")
        self.namespace = Symbol(f"(.Values.lease.namespace | default {own['namespace']})")


def _account(mode: str) -> str:
    return "scheduler" if mode in ("scheduler", "replacement") else "reader"


def write_chart(folder: Path) -> None:
    """Write the chart; a folder of that name is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("templates", "files"):
        (folder / name).mkdir(parents=True)
    release = version("stowplan")
    (folder / "Chart.yaml").write_text(
        "# Generated by `make chart` from what `stowplan manifests` renders.\n"
        f"apiVersion: v2\nname: stowplan\ndescription: A Kubernetes scheduler you extend in Python\n"
        f'version: {release}\nappVersion: "{release}"\n'
    )
    (folder / "values.yaml").write_text(_default_values())
    (folder / "values.schema.json").write_text(json.dumps(_schema(), indent=1) + "\n")
    (folder / "templates/_helpers.tpl").write_text(HELPERS)
    (folder / "templates/custom-resource-definitions.yaml").write_text(DEFINITIONS)
    (folder / "templates/checks.yaml").write_text(CHECKS)
    (folder / "templates/NOTES.txt").write_text(NOTES)
    for mode in get_args(Mode):
        body = as_yaml(render(cast("Values", ChartValues(mode))))
        text = f'{{{{- if eq .Values.mode "{mode}" }}}}\n{body}{{{{- end }}}}\n'
        (folder / f"templates/{mode}.yaml").write_text(text)
    for name in ("rules.yaml", "dashboard.json"):
        shutil.copy(MONITORING / name, folder / "files" / name)
    (folder / "files/permissions.yaml").write_text(as_yaml([_permissions()]))


def write_kustomize(folder: Path) -> None:
    """Write a kustomize base for each mode."""
    shutil.rmtree(folder, ignore_errors=True)
    for mode in get_args(Mode):
        base = folder / mode
        base.mkdir(parents=True)
        config = base / "config.yaml"
        config.write_text(PROFILE.format(name="stowplan" if mode == "scheduler" else "default-scheduler"))
        name = "stowplan" if _account(mode) == "scheduler" else f"stowplan-{mode}"
        values = Values(mode=mode, image="stowplan", name=name, namespace="stowplan")
        setup = msgspec.structs.replace(read_setup(config), where="config.yaml")
        config.unlink()
        (base / "stowplan.yaml").write_text(as_yaml(manifests(setup, values)))
        (base / "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- stowplan.yaml\n"
        )


def _default_values() -> str:
    """The chart's values.yaml."""
    shown = msgspec.to_builtins(Values())
    del shown["namespace"]
    return (
        "# Values of the chart. `stowplan manifests --config FILE --print-values` writes those that depend\n"
        "# on a configuration, including the rights of its plugins. docs/deploy.md describes each.\n"
        + yaml.safe_dump(shown, sort_keys=False)
    )


def _schema() -> dict[str, Any]:
    schema = msgspec.json.schema(Values)
    properties = schema["$defs"]["Values"]["properties"]
    del properties["namespace"]
    properties["global"] = {}  # Helm adds it where the chart is part of another
    return schema


def _permissions() -> dict[str, Any]:
    """Rules of the default plugins, and what each other plugin needs besides, with its default arguments."""
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(PROFILE.format(name="stowplan"))
        file.flush()
        default = read_setup(Path(file.name)).plugins
    found: dict[str, Any] = {
        "scheduler": rules(scheduler_rights(default)),
        "reader": rules(shadow_rights(default)),
        "plugins": {},
    }
    registry = Registry.installed()
    for name in registry.names():
        plugin = _make(registry, name)
        if type(plugin) in map(type, default) or not type(plugin).__module__.startswith("stowplan."):
            continue
        needed = {
            "scheduler": rules(plugin_rights([plugin])),
            "reader": rules(reading_rights([plugin])),
            "definitions": definitions_of(plugin.watches),
        }
        if any(needed.values()):
            found["plugins"][name] = needed
    return found


def _make(registry: Registry, name: str) -> Plugin:
    read = registry.read_args(name, None, name)
    return registry.find(name)(read.args if read else PluginArgs(), Handle(Cluster()))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    write_chart(target / "helm" / "stowplan")
    write_kustomize(target / "kustomize")
