"""image_score: prefers the nodes that hold most of a pod's images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.extender.functions import Node, priority


@priority(path="/my_scheduler_extension/my_new_priorities/image_score")
def image_score(
    pod: Pod, node: Node, *, match: Literal["substring", "reference"] = "substring", scale: bool = False
) -> int:
    """How many of the pod's containers find their image on the node; with `scale`, 10 if all of them do.

    By substring `nginx:1.7.9` is found in `docker.io/nginx:1.7.9-alpine` too. By reference both names are
    completed (docker.io/library, latest) and must be the same image.
    """
    held = [name for image in node.images for name in image.names]
    wanted, found = pod.spec.containers, 0
    for container in wanted:
        name = _find(held, container.image, match)
        if name is None:
            continue
        found += 1
        if log.is_verbose(6):
            log.log(
                6,
                "Image on node matches image of container",
                pod=pod,
                container=container.name,
                containerImage=container.image,
                nodeImage=name,
                node=node.name,
            )
    return (20 * found + len(wanted)) // (2 * len(wanted)) if scale and wanted else found


def _find(held: Iterable[str], image: str, match: str) -> str | None:
    """The first of the node's image names that matches."""
    if match == "substring":
        return next((name for name in held if image in name), None)
    reference = Reference.of(image)
    return next((name for name in held if reference.is_named_by(Reference.of(name))), None)


class Reference(NamedTuple):
    """An image's name with all that is left out of it by habit."""

    repository: str
    tag: str
    digest: str

    @classmethod
    def of(cls, name: str) -> Reference:
        rest, _, digest = name.partition("@")
        head, slash, last = rest.rpartition("/")
        last, _, tag = last.partition(":")
        registry, has_path, path = f"{head}{slash}{last}".partition("/")
        if not has_path:
            registry, path = "docker.io", f"library/{registry}"
        elif not ("." in registry or ":" in registry or registry == "localhost"):
            registry, path = "docker.io", f"{registry}/{path}"
        return cls(f"{registry}/{path}", tag or ("" if digest else "latest"), digest)

    def is_named_by(self, other: Reference) -> bool:
        """A digest says more than a tag, so it alone counts where the pod gives one."""
        if self.repository != other.repository:
            return False
        return self.digest == other.digest if self.digest else self.tag == other.tag
