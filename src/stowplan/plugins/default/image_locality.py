"""ImageLocality: prefers nodes that have the pod's images, the more so the more nodes have them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from stowplan.framework import MAX_SCORE, CycleState, NodeTable, Plugin, Pod, Reads, Scores

MIB = 2**20
LOWEST = 23 * MIB
HIGHEST_PER_CONTAINER = 1000 * MIB


class ImageLocality(Plugin):
    reads = Reads.NODE

    def sign_pod(self, pod: Pod) -> Hashable:
        """With what the images count for, which changes as other nodes get or lose them."""
        containers, images = _images(pod)
        known = self.handle.cluster.nodes.images
        for image in images:
            if image in known:
                return containers, tuple(self._worth(images))
        return containers, ()

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        containers, images = _images(pod)
        present = np.zeros(len(nodes), np.int64)
        for image, worth in self._worth(images):
            present += worth * nodes.has_image(image)
        highest = HIGHEST_PER_CONTAINER * max(containers, 1)
        return MAX_SCORE * (np.clip(present, LOWEST, highest) - LOWEST) // (highest - LOWEST)

    def _worth(self, images: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Those images that some node has, each with its size, scaled by how many nodes have it."""
        nodes = self.handle.cluster.nodes
        for image in images:
            if (state := nodes.images.get(image)) is not None:
                yield image, int(state.size * (len(state.rows) / len(nodes)))


def _images(pod: Pod) -> tuple[int, tuple[str, ...]]:
    """How many containers the pod has, and the images of containers and volumes."""
    found: tuple[int, tuple[str, ...]] | None = pod.shape.memo.get(ImageLocality)
    if found is None:
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        names = [container.image for container in containers]
        names += [volume.image.reference for volume in pod.spec.volumes if volume.image is not None]
        found = pod.shape.memo[ImageLocality] = len(containers), tuple(map(with_tag, names))
    return found


def with_tag(image: str) -> str:
    """The name under which nodes report an image: `:latest` where there is no tag or digest."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
