"""`stowplan bind`: what a scheduler does last, done by hand."""

from __future__ import annotations

import asyncio
import sys

import click

from stowplan.api.pod import Pod
from stowplan.client import kubeconfig
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.listing import list_cluster
from stowplan.client.resources import PODS
from stowplan.explain.explainer import objections


@click.command()
@click.argument("pod")
@click.argument("node")
@click.option(
    "-n", "--namespace", help="Of the pod; without it, the one that the kubeconfig's context names."
)
@click.option("--kubeconfig", "path", help="How to reach the cluster; without it, as kubectl finds it.")
@click.option("--context", help="The context of the kubeconfig to take.")
@click.option("--force", is_flag=True, help="Bind the pod even where it does not fit.")
def bind(
    pod: str, node: str, namespace: str | None, path: str | None, context: str | None, force: bool
) -> None:
    """Bind a pod to a node by creating its Binding, as a scheduler does.

    The API server checks that the pod is there, has no node and is not going away. Whether the node is there
    and the pod fits it does not ask; that is looked at here first, with the filters of the default profile.

    POD is a name or namespace/name. Exit status 1 means that nothing was bound.
    """
    connection = kubeconfig.load(path, context=context)
    found, _, name = pod.rpartition("/")
    asyncio.run(_bind(connection, namespace or found or connection.namespace, name, node, force))


async def _bind(connection: Connection, namespace: str, name: str, node: str, force: bool) -> None:
    async with ApiClient(connection, user_agent="stowplan/bind") as api:
        pod = Pod.decode((await api.request("GET", PODS.item(namespace, name))).data)
        # Of a pod that has a node the API server says so itself; there is nothing to look at.
        against = [] if pod.node_name else objections(await list_cluster(api), pod, node)
        for each in against:
            click.echo(f"pod {pod.key} does not fit {node}: {each}", err=True)
        if against and not force:
            click.echo("nothing was bound; --force binds it all the same", err=True)
            sys.exit(1)
        await api.create_binding(pod, node)
        click.echo(f"pod {pod.key} bound to {node}")
