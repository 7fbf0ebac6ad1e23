"""The minimum permissions of a scheduler and its plugins, as RBAC objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stowplan.api.meta import Json
from stowplan.client.api import RESOURCES, WatchedResource, custom
from stowplan.framework.plugin import Plugin, Right

RBAC = "rbac.authorization.k8s.io"
EVERY_SCHEDULER = (
    Right("pods", ("get",)),  # whether a binding whose answer got lost was made
    Right("pods/status", ("patch",)),
    Right("events", ("create", "patch"), "events.k8s.io"),
    Right("events", ("create", "patch")),  # of leader election, and all of them where the API server is old
    # To find out who asks its HTTPS server, and whether they may.
    Right("tokenreviews", ("create",), "authentication.k8s.io"),
    Right("subjectaccessreviews", ("create",), "authorization.k8s.io"),
)
"""Besides watching. Plugins bind, evict and allocate volumes and devices, and declare these rights."""
GROUP_CONTROLLERS = (
    Right("customresourcedefinitions", ("list", "watch"), "apiextensions.k8s.io"),  # which are installed
    Right("pods", ("list", "watch")),
    Right("podgroups", ("list", "watch"), "scheduling.x-k8s.io"),
    Right("podgroups/status", ("patch",), "scheduling.x-k8s.io"),
    Right("elasticquotas", ("list", "watch"), "scheduling.x-k8s.io"),
    Right("elasticquotas/status", ("patch",), "scheduling.x-k8s.io"),
    Right("podgroups", ("list", "patch", "watch"), "scheduling.volcano.sh"),  # without status subresource
    Right("queues", ("create", "get", "list", "watch"), "scheduling.volcano.sh"),  # it creates `default`
    Right("queues/status", ("patch",), "scheduling.volcano.sh"),
    Right("events", ("create", "patch"), "events.k8s.io"),
    Right("events", ("create", "patch")),
)
"""What `stowplan controllers` needs all over the cluster."""
READING = ("get", "list", "watch")
SEEN = ("/page", "/page/*", "/debug/decisions", "/metrics", "/metrics/*")
"""Not /configz: a configuration may hold the keys to extenders."""
ASKED = "/page/api/what-if"
"""The page's form is sent there, and changes nothing."""


def scheduler_rights(plugins: Iterable[Plugin]) -> Iterator[Right]:
    """All over the cluster."""
    yield from (_watch_right(resource) for resource in RESOURCES)
    yield from EVERY_SCHEDULER
    yield from plugin_rights(plugins)


def shadow_rights(plugins: Iterable[Plugin]) -> Iterator[Right]:
    """What a scheduler and its plugins read, and nothing that changes the cluster."""
    reviews = [each for each in EVERY_SCHEDULER if each.resource in ("tokenreviews", "subjectaccessreviews")]
    yield from (_watch_right(resource) for resource in RESOURCES)
    yield from reviews
    yield from reading_rights(plugins)


def reading_rights(plugins: Iterable[Plugin]) -> Iterator[Right]:
    for right in plugin_rights(plugins):
        if verbs := tuple(verb for verb in right.verbs if verb in READING):
            yield Right(right.resource, verbs, right.group)


def plugin_rights(plugins: Iterable[Plugin]) -> Iterator[Right]:
    for plugin in plugins:
        yield from (_watch_right(custom(kind)) for kind in plugin.watches)
        yield from plugin.rights


def lease_rules(name: str) -> list[Json]:
    """Rules in the lease's namespace. RBAC cannot limit `create` to a name."""
    return [
        *rules([Right("leases", ("create",), "coordination.k8s.io")]),
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [name],
            "verbs": ["get", "update"],
        },
    ]


def rules(rights: Iterable[Right]) -> list[Json]:
    """Return as few rules as possible: resources of a group with the same verbs share a rule."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), set()).update(right.verbs)
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), found in sorted(verbs.items()):
        together.setdefault((group, tuple(sorted(found))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(found)}
        for (group, found), resources in together.items()
    ]


def viewer(name: str) -> Json:
    """Read access for people. The cluster's administrator decides whom to bind it to."""
    allowed = [
        {"nonResourceURLs": list(SEEN), "verbs": ["get"]},
        {"nonResourceURLs": [ASKED], "verbs": ["post"]},
    ]
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": allowed}


def render_role(
    name: str, allowed: list[Json], subjects: list[Json], namespace: str | None = None
) -> Iterator[Json]:
    """Return a role and its binding, in a namespace or for the cluster."""
    kind = "ClusterRole" if namespace is None else "Role"
    meta = {"name": name} | ({} if namespace is None else {"namespace": namespace})
    yield {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "rules": allowed}
    yield make_role_binding(name, kind, name, subjects, namespace)


def make_role_binding(name: str, kind: str, role: str, subjects: list[Json], namespace: str | None) -> Json:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding" if namespace is None else "RoleBinding",
        "metadata": {"name": name} | ({} if namespace is None else {"namespace": namespace}),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": subjects,
    }


def _watch_right(resource: WatchedResource) -> Right:
    return Right(resource.name, ("list", "watch"), resource.api_version.rpartition("/")[0])
