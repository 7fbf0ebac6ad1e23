"""`stowplan explain`: why a pod lands where it does, or nowhere, on what manifests show."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from stowplan.api.custom import CustomResource
from stowplan.cli.plugin_dirs import PLUGIN_DIRS
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.explain.manifests import Manifests, read
from stowplan.explain.offline import Explainer
from stowplan.explain.report import as_json
from stowplan.explain.targets import find_target
from stowplan.explain.text import render
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds


@click.command()
@click.argument("pods", metavar="POD...", nargs=-1, required=True)
@click.option(
    "-f",
    "--filename",
    "files",
    metavar="FILE",
    multiple=True,
    required=True,
    help="Manifests or a dump of `kubectl get … -o yaml|json`: a file, a directory, or - for standard input.",
)
@click.option("-n", "--namespace", default="default", help="Namespace of PODs and manifests that name none.")
@click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration or Policy.")
@click.option(
    "--policy", type=click.Path(path_type=Path), help="The Policy an older configuration refers to."
)
@PLUGIN_DIRS
@click.option("--node", help="Explain this node in full.")
@click.option("--all-nodes", is_flag=True, help="List all nodes, however many there are.")
@click.option("--seed", type=int, help="Draw among equally good nodes at random, with this seed.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Say which kinds of objects were not looked at.")
def explain(
    pods: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    config: Path | None,
    policy: Path | None,
    plugin_dirs: tuple[Path, ...],
    node: str | None,
    all_nodes: bool,
    seed: int | None,
    output: str,
    verbose: bool,
) -> None:
    """Show why a pod lands where it does, or nowhere.

    POD is a name, namespace/name, or a workload such as deployment/web, whose next pod is meant. What
    kube-scheduler would decide is worked out afresh from what the files show; a pod that runs already is
    explained as if it did not. Of several PODs, each is placed before the next is decided.

    With -o json, every POD gets one line: a JSON object.
    """
    registry = Registry.installed(plugin_dirs)
    loaded = _config(config, policy, registry)
    manifests = read(files, sys.stdin.buffer, namespace, _kinds(loaded, registry))
    if manifests.faults:
        for fault in manifests.faults:
            click.echo(f"stowplan: {fault}", err=True)
        sys.exit(1)
    if verbose:
        _echo_ignored(manifests)
    explainer = Explainer(manifests, loaded, registry=registry, seed=seed)
    for number, wanted in enumerate(pods):
        found = explainer.explain(find_target(manifests, wanted), node)
        if output == "json":
            click.echo(json.dumps(as_json(found)))
        else:
            click.echo(("\n\n" if number else "") + render(found, all_nodes=all_nodes))


def _config(
    config: Path | None, policy: Path | None, registry: Registry
) -> KubeSchedulerConfiguration | None:
    if config is None:
        if policy is not None:
            raise click.UsageError("--policy goes with --config; a Policy alone is a --config, too")
        return None
    loaded = load(config, registry, policy=policy)
    for warning in loaded.warnings:
        click.echo(f"{config}: {warning}", err=True)
    if loaded.config.extenders:
        click.echo(f"{config}: its {len(loaded.config.extenders)} extenders are not asked", err=True)
    return loaded.config


def _kinds(config: KubeSchedulerConfiguration | None, registry: Registry) -> tuple[type[CustomResource], ...]:
    """The custom resources that the configured plugins watch."""
    profiles = resolve_profiles(config, registry) if config else ()
    return watched_kinds(plugin for profile in profiles for plugin in profile.classes.values())


def _echo_ignored(manifests: Manifests) -> None:
    ignored = manifests.ignored
    if ignored:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))
        click.echo(f"not looked at, since they do not concern scheduling: {listed}", err=True)
