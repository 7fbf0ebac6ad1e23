"""Kinds that Kubernetes does not bring along, declared as structs: custom resources, or any other resource.

class ClusterScopedResource(CustomResource, frozen=True):
    definition: ClassVar = Definition("scheduling.sigs.k8s.io", "v1alpha1", "clusterscopedresources", ...)
    spec: Spec = Spec()
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from stowplan.api.meta import Object


class Column(msgspec.Struct, frozen=True):
    """A column that `kubectl get` prints: its heading, and where the value is (`.spec.replicas`)."""

    name: str
    path: str
    type: str = "string"


def keyed_by(*fields: str) -> msgspec.Meta:
    """For lists whose items are identified by these fields: `Annotated[tuple[Zone, ...], keyed_by("name")]`.

    Several writers can then each own some of the items (server-side apply), and no two may be alike.
    """
    return msgspec.Meta(
        extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(fields)}
    )


class Definition(msgspec.Struct, frozen=True):
    """Names a kind on the API server, and what its CustomResourceDefinition says besides the schema."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    """What `kubectl get` shows between name and age."""
    label_selector: str = ""
    """Label selector for the objects to watch; empty for all."""
    has_status: bool = True
    """Whether its status is a subresource. Without one, `api.update_status` writes the object itself."""
    installed_by: str = ""
    """The project that installs the definition, if ours does not have all of it: `stowplan manifests` leaves
    it out."""
    approval: str = ""
    """URL of the kind's API review; only needed for groups under k8s.io and kubernetes.io."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """Path of the collection across all namespaces."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}/{self.plural}"

    @property
    def event_resource(self) -> str:
        """How cluster events name it: `foos.v1.example.com`."""
        return ".".join(part for part in (self.plural, self.version, self.group) if part)


class CustomResource(Object, frozen=True):
    """The base class of custom resources. Fields of an object that the struct does not have are ignored."""

    definition: ClassVar[Definition]
    describes_node: ClassVar[bool] = False
    """Whether an object is about the node of its name. Plugins whose answers are kept, since they read nodes
    alone (`Reads.NODE`), may read such objects too: the answer for a node is renewed with its object."""
    missing_advice: ClassVar[str] = ""
    """What to do if the API server does not serve the kind; by default, to install its definition."""
    is_optional: ClassVar[bool] = False
    """Whether it is no surprise that the API server does not serve the kind: the log hardly mentions it."""
