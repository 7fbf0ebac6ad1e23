"""How simulated containers behave: how long they take to start, how long they run, how they end."""

from __future__ import annotations

import hashlib
import random

import msgspec

from stowplan.api.meta import decode
from stowplan.api.pod import Container, Pod, PodObject, PodSpec

RUN_SECONDS = "kubelet.stowplan/run-seconds"
EXIT_CODE = "kubelet.stowplan/exit-code"


class BoundPodSpec(PodSpec, frozen=True):
    """With what matters to a kubelet alone."""

    restart_policy: str = "Always"


class BoundPod(PodObject, frozen=True):
    spec: BoundPodSpec = BoundPodSpec()


def decode_pod(data: bytes) -> Pod:
    return Pod.of(decode(BoundPod, data))


def restarts(pod: Pod) -> str:
    """Always, OnFailure or Never."""
    return pod.spec.restart_policy if isinstance(pod.spec, BoundPodSpec) else "Always"


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Default for all pods; the annotations kubelet.stowplan/run-seconds and …/exit-code override it."""

    start_seconds: float = 0.0
    """From when a pod is taken until it runs."""
    run_seconds: float | None = None
    """How long a run lasts; by default pods that are to end do after a second, and others run on."""
    fail_rate: float = 0.0
    """The share of runs that end in failure."""
    image_bytes: int | None = None
    """Size of every image; by default each image has a fixed size of its own, some hundred MB."""

    def run_time(self, pod: Pod) -> float | None:
        """How long the pod runs from its start; None for ever."""
        try:
            return max(float(pod.annotations[RUN_SECONDS]), 0.0)
        except (KeyError, ValueError):
            pass
        if self.run_seconds is not None:
            return self.run_seconds
        return None if restarts(pod) == "Always" else 1.0

    def exit_code(self, pod: Pod, draw: random.Random) -> int:
        said = pod.annotations.get(EXIT_CODE, "")
        if said.isdecimal():
            return int(said)
        return 1 if draw.random() < self.fail_rate else 0

    def image_size(self, image: str) -> int:
        if self.image_bytes is not None:
            return self.image_bytes
        number = int.from_bytes(hashlib.sha256(image.encode()).digest()[:4], "big")
        return (20 + number % 480) * 1024 * 1024


def images_of(pod: Pod) -> list[str]:
    """The names as a node lists them: with a registry and a tag."""
    containers: tuple[Container, ...] = (*pod.spec.init_containers, *pod.spec.containers)
    return sorted({full_name(each.image) for each in containers if each.image})


def full_name(image: str) -> str:
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif "." not in first and ":" not in first and first != "localhost":
        image = f"docker.io/{image}"
    last = image.rpartition("/")[2]
    return image if ":" in last or "@" in last else f"{image}:latest"
