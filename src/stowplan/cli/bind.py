"""`stowplan bind`: bind a pod to a node by hand."""

from __future__ import annotations

import asyncio
import sys

import click

from stowplan.api.pod import Pod
from stowplan.client import kubeconfig
from stowplan.client.api import PODS, ApiClient
from stowplan.client.connection import Connection
from stowplan.client.watch import read_cluster
from stowplan.cluster import Cluster
from stowplan.explain.explainer import find_objections


@click.command()
@click.argument("pod")
@click.argument("node")
@click.option("-n", "--namespace", help="Namespace of the pod (default: that of the kubeconfig context).")
@click.option("--kubeconfig", "path", help="Kubeconfig file (default: $KUBECONFIG, or ~/.kube/config).")
@click.option("--context", help="Kubeconfig context to use.")
@click.option("--force", is_flag=True, help="Bind the pod even if it does not fit.")
def bind(
    pod: str, node: str, namespace: str | None, path: str | None, context: str | None, force: bool
) -> None:
    """Bind a pod to a node by creating a Binding, as a scheduler does.

    The API server checks that the pod exists, has no node and is not being deleted. It does not check that
    the node exists and the pod fits: this command does, with the filters of the default profile.

    POD is a name or namespace/name. The exit status is 1 if the pod was not bound.
    """
    connection = kubeconfig.load(path, context=context)
    found, _, name = pod.rpartition("/")
    asyncio.run(_bind(connection, namespace or found or connection.namespace, name, node, force))


async def _bind(connection: Connection, namespace: str, name: str, node: str, force: bool) -> None:
    async with ApiClient(connection, user_agent="stowplan/bind") as api:
        pod = Pod.decode((await api.request("GET", PODS.item(namespace, name))).data)
        # The API server rejects a pod that has a node.
        against = [] if pod.node_name else await _objections(api, pod, node)
        for each in against:
            click.echo(f"pod {pod.key} does not fit {node}: {each}", err=True)
        if against and not force:
            click.echo("not bound; use --force to bind it anyway", err=True)
            sys.exit(1)
        await api.create_binding(pod, node)
        click.echo(f"pod {pod.key} bound to {node}")


async def _objections(api: ApiClient, pod: Pod, node: str) -> list[str]:
    found = await read_cluster(api)
    for fault in found.faults:
        click.echo(f"{fault}; ignoring it", err=True)
    return find_objections(Cluster.of(found.objects), pod, node)
