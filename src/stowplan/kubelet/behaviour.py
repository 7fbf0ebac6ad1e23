"""How simulated containers behave: how long they take to start, how long they run, how they end."""

from __future__ import annotations

import hashlib
import math
import random
import re
import shlex
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from stowplan.api import quantity
from stowplan.api.meta import ObjectMeta, Wire, decode
from stowplan.api.pod import Container, Pod, PodObject, PodSpec
from stowplan.errors import QuantityError

START_SECONDS = "kubelet.stowplan/start-seconds"
RUN_SECONDS = "kubelet.stowplan/run-seconds"
STOP_SECONDS = "kubelet.stowplan/stop-seconds"
EXIT_CODE = "kubelet.stowplan/exit-code"
"""The exit code of all containers, or, with `.NAME` appended, of the container with that name."""
START_ERROR = "kubelet.stowplan/start-error"
"""Why containers do not start, such as ImagePullBackOff."""
READY = "kubelet.stowplan/ready"
"""`false` while the pod is not to be ready."""
LOGS = "kubelet.stowplan/logs"
EXEC = "kubelet.stowplan/exec"
CPU_USAGE, MEMORY_USAGE = "kubelet.stowplan/cpu-usage", "kubelet.stowplan/memory-usage"
IDLE_CPU, IDLE_MEMORY = 10, 20 * 1024 * 1024
"""Made usage of a pod that requests nothing, in thousandths of a CPU and bytes."""

SERVERS = ("agnhost", "httpd", "nginx", "pause", "redis")
"""Images that run until they are stopped, unless they are given a command."""


class SleepAction(Wire, frozen=True):
    seconds: float = 0


class Handler(Wire, frozen=True):
    sleep: SleepAction | None = None


class Lifecycle(Wire, frozen=True):
    pre_stop: Handler | None = None


class BoundContainer(Container, frozen=True):
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    lifecycle: Lifecycle | None = None


class BoundPodSpec(PodSpec, frozen=True):
    """With what matters to a kubelet alone."""

    restart_policy: str = "Always"
    containers: tuple[BoundContainer, ...] = ()
    ephemeral_containers: tuple[BoundContainer, ...] = ()


class BoundMeta(ObjectMeta, frozen=True):
    finalizers: tuple[str, ...] = ()
    deletion_grace_period_seconds: float = 0


class BoundPod(PodObject, frozen=True):
    metadata: BoundMeta = BoundMeta()
    spec: BoundPodSpec = BoundPodSpec()


class EndingPod(Pod, frozen=True, gc=False, eq=False):
    """A pod that is being deleted."""

    finalizers: tuple[str, ...] = ()
    grace_seconds: float = 0.0


def decode_pod(data: bytes) -> Pod:
    wire = decode(BoundPod, data)
    pod, meta = Pod.of(wire), wire.metadata
    if meta.deletion_timestamp is None:
        return pod
    known = {name: getattr(pod, name) for name in Pod.__struct_fields__}
    grace = float(meta.deletion_grace_period_seconds)
    return EndingPod(**known, finalizers=meta.finalizers, grace_seconds=grace)


def pod_of(item: dict[str, Any]) -> Pod:
    """A pod from plain data."""
    return Pod.of(decode(BoundPod, item))


def containers_of(pod: Pod) -> tuple[Container, ...]:
    """The containers that run at the same time, ephemeral ones included."""
    spec = pod.spec
    return (
        (*spec.containers, *spec.ephemeral_containers) if isinstance(spec, BoundPodSpec) else spec.containers
    )


def deadline_of(pod: Pod) -> float | None:
    """When the pod must have ended, in seconds since 1970, if there is such a time."""
    seconds = pod.spec.active_deadline_seconds if isinstance(pod.spec, BoundPodSpec) else None
    return None if seconds is None or pod.start_time is None else pod.start_time + seconds


def restarts(pod: Pod) -> str:
    """Always, OnFailure or Never."""
    return pod.spec.restart_policy if isinstance(pod.spec, BoundPodSpec) else "Always"


class Script(NamedTuple):
    """What a container's command does, where it is simple enough to tell."""

    seconds: float
    exit_code: int
    output: str


MAX_SCRIPT = 4096
"""Characters of a command that is understood: reading takes time, and what was read is kept."""


def read_script(words: tuple[str, ...]) -> Script | None:
    """Understand `sleep`, `echo`, `exit` and the like, lists and endless loops of them; None for all else."""
    return _read_script(words) if words and sum(map(len, words)) <= MAX_SCRIPT else None


@lru_cache(maxsize=1024)
def _read_script(words: tuple[str, ...]) -> Script | None:
    name = words[0].rpartition("/")[2]
    if name in ("sh", "bash", "ash") and len(words) > 2 and words[1] in ("-c", "-ec"):
        return _read_list(words[2])
    return _read_list(shlex.join(words)) if name in _COMMANDS else None


def _read_list(text: str) -> Script | None:
    whole = text.rstrip("; \n")
    loops = list(_LOOP.finditer(whole)) if whole.endswith("done") else []
    if len(loops) == 1:
        loop = loops[0]
        first, body = (_read_list(part) for part in (whole[: loop.start()], whole[loop.end() : -len("done")]))
        if first is None or body is None:
            return None
        return Script(math.inf, 0, first.output + body.output)
    if any(character in text for character in "$`|<>(){}*?[]") or "||" in text:
        return None
    lexer = shlex.shlex(text.replace("\n", ";"), posix=True, punctuation_chars=";&")
    lexer.whitespace_split = True
    try:
        tokens = [*lexer, ";"]
    except ValueError:
        return None
    seconds, code, output, statement = 0.0, 0, "", list[str]()
    for token in tokens:
        if token not in (";", "&&", ";;"):
            statement.append(token)
            continue
        if statement:
            done = _COMMANDS.get(statement[0].rpartition("/")[2], _no_script)(statement[1:])
            if done is None:
                return None
            seconds, code, output = seconds + done.seconds, done.exit_code, output + done.output
            if statement[0] == "exit" or math.isinf(seconds):
                return Script(seconds, code, output)
        statement = []
        if token == "&&" and code:
            break
    return Script(seconds, code, output)


def _no_script(words: list[str]) -> Script | None:
    return None


def _sleep(words: list[str]) -> Script | None:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    total = 0.0
    for word in words:
        number, unit = (word[:-1], units[word[-1]]) if word[-1:] in units else (word, 1)
        try:
            total += float(number) * unit
        except ValueError:
            return None
    return Script(total, 0, "") if total >= 0 else None


def _exit(words: list[str]) -> Script | None:
    code = words[0] if words else "0"
    return Script(0.0, int(code) & 255, "") if code.isdecimal() else None


_LOOP = re.compile(r"(?:^|[;\n])\s*while\s+(?:true|:)\s*[;\n]\s*do\s")


def _at_once(words: list[str]) -> Script | None:
    return Script(0.0, 0, "")


_COMMANDS: dict[str, Callable[[list[str]], Script | None]] = {
    "sleep": _sleep,
    "exit": _exit,
    **dict.fromkeys(
        ("true", ":", "date", "env", "hostname", "mkdir", "rm", "set", "touch", "trap"), _at_once
    ),
    "false": lambda words: Script(0.0, 1, ""),
    "echo": lambda words: Script(0.0, 0, " ".join(words) + "\n"),
    "pause": lambda words: Script(math.inf, 0, ""),
}


def script_of(container: Container) -> Script | None:
    args: tuple[str, ...] = ()
    if isinstance(container, BoundContainer):
        if container.command:
            return read_script(container.command + container.args)
        args = container.args
        if (
            script := read_script(args)
        ) is not None:  # as images without an entrypoint, such as busybox, run it
            return script
    image = container.image.rpartition("/")[2].partition(":")[0].partition("@")[0]
    is_server = image in SERVERS and (not args or args[0] == "pause")
    return Script(math.inf, 0, "") if is_server else None


class ExecResult(NamedTuple):
    output: str
    error: str = ""
    exit_code: int = 0


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Default for all pods; their annotations kubelet.stowplan/… override it."""

    start_seconds: float = 0.0
    """How long a pod takes to start after the node has accepted it."""
    run_seconds: float | None = None
    """How long a run lasts; by default a second for pods that are expected to end, and forever for others."""
    stop_seconds: float = 0.0
    """How long containers take to end when their pod is deleted; never longer than its grace period."""
    fail_rate: float = 0.0
    """The share of runs that end in failure."""
    image_bytes: int | None = None
    """Size of every image; by default each image has a fixed size of its own, some hundred MB."""
    missing_images: tuple[str, ...] = ()
    """Patterns of images that cannot be pulled, such as `*:broken`."""
    logs: Callable[[Pod, str], str] | None = None
    """Returns what the container of a name has written."""
    exec: Callable[[Pod, str, list[str]], ExecResult] | None = None
    """Answers a command that is run in the container of a name."""

    def start_time(self, pod: Pod) -> float:
        return _seconds(pod, START_SECONDS, self.start_seconds)

    def start_error(self, pod: Pod) -> str:
        """Why the containers of the pod do not start; empty if they do."""
        if said := pod.annotations.get(START_ERROR):
            return said
        for image in (each.image for each in pod.spec.containers):
            if any(fnmatchcase(image, pattern) for pattern in self.missing_images):
                return f'ImagePullBackOff: Back-off pulling image "{image}"'
        return ""

    def run_time(self, pod: Pod) -> float | None:
        """How long the pod runs from its start; None for ever."""
        said = _seconds(pod, RUN_SECONDS, -1.0)
        if said >= 0:
            return said
        if self.run_seconds is not None:
            return self.run_seconds
        scripts = [script_of(each) for each in pod.spec.containers]
        default = math.inf if restarts(pod) == "Always" else 1.0
        longest = max((default if each is None else each.seconds for each in scripts), default=default)
        return None if math.isinf(longest) else longest

    def stop_time(self, pod: Pod) -> float:
        """How long the pod takes to stop, once it is deleted."""
        hooks = [
            each.lifecycle.pre_stop.sleep.seconds
            for each in pod.spec.containers
            if isinstance(each, BoundContainer)
            and each.lifecycle is not None
            and each.lifecycle.pre_stop is not None
            and each.lifecycle.pre_stop.sleep is not None
        ]
        wanted = max(hooks, default=0.0) + _seconds(pod, STOP_SECONDS, self.stop_seconds)
        return min(wanted, pod.grace_seconds) if isinstance(pod, EndingPod) else wanted

    def exit_code(self, pod: Pod, draw: random.Random) -> int:
        """The code that all containers exit with whose own is not known."""
        said = pod.annotations.get(EXIT_CODE, "")
        if said.isdecimal():
            return int(said)
        return 1 if draw.random() < self.fail_rate else 0

    def exit_codes(self, pod: Pod, draw: random.Random) -> dict[str, int]:
        code, found = self.exit_code(pod, draw), {}
        is_said = code or pod.annotations.get(EXIT_CODE, "").isdecimal()
        for container in pod.spec.containers:
            own = pod.annotations.get(f"{EXIT_CODE}.{container.name}", "")
            script = script_of(container)
            default = code if script is None or is_said else script.exit_code
            found[container.name] = int(own) if own.isdecimal() else default
        return found

    def log_of(self, pod: Pod, container: str) -> str:
        if self.logs is not None:
            return self.logs(pod, container)
        said = pod.annotations.get(f"{LOGS}.{container}", pod.annotations.get(LOGS))
        if said is not None:
            return said if said.endswith("\n") or not said else f"{said}\n"
        script = next((script_of(each) for each in containers_of(pod) if each.name == container), None)
        return script.output if script is not None else ""

    def answer(self, pod: Pod, container: str, command: list[str]) -> ExecResult | None:
        """The result of a command run in a container; None if it is not set."""
        if self.exec is not None:
            return self.exec(pod, container, command)
        said = pod.annotations.get(f"{EXEC}.{container}", pod.annotations.get(EXEC))
        if said is not None:
            return ExecResult(said if said.endswith("\n") or not said else f"{said}\n")
        script = read_script(tuple(command))
        return ExecResult(script.output, "", script.exit_code) if script is not None else None

    def usage(self, pod: Pod) -> dict[str, int]:
        """Made usage: half of what a pod requests, in thousandths of a CPU and bytes."""
        cpu = pod.requests.get("cpu", 0) // 2 or IDLE_CPU
        memory = pod.requests.get("memory", 0) // 2 or IDLE_MEMORY
        return {
            "cpu": _amount(pod, CPU_USAGE, cpu, quantity.milli_units),
            "memory": _amount(pod, MEMORY_USAGE, memory, quantity.units),
        }

    def image_size(self, image: str) -> int:
        if self.image_bytes is not None:
            return self.image_bytes
        number = int.from_bytes(hashlib.sha256(image.encode()).digest()[:4], "big")
        return (20 + number % 480) * 1024 * 1024


def _seconds(pod: Pod, annotation: str, default: float) -> float:
    try:
        return max(float(pod.annotations[annotation]), 0.0)
    except (KeyError, ValueError):
        return default


def _amount(pod: Pod, annotation: str, default: int, scale: Callable[[int], int]) -> int:
    try:
        return scale(quantity.parse(pod.annotations[annotation]))
    except (KeyError, QuantityError):
        return default


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
