"""SySched: prefers nodes whose pods use the same system calls, so that a pod is exposed to few others.

Which system calls a pod may use is in the SeccompProfiles that it names. Pods that name none count with the
default profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.config.field_errors import child, required
from stowplan.framework import (
    CustomResource,
    CycleState,
    Definition,
    Handle,
    NodeTable,
    PluginArgs,
    Pod,
    Reads,
    Scores,
    Wire,
    scale_to_max,
)
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.log import logger_of

ANNOTATION = "seccomp.security.alpha.kubernetes.io"
ALLOWING = ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG")
MAX_SYSCALLS = 4096
"""More different names are ignored: Linux has about 450."""
MAX_NAMES = 1024
"""Further names of one profile are ignored."""
MAX_KEPT = 10_000
"""So many different sets of profiles that pods name are kept."""
WORD = 64


class SyscallArgument(Wire, frozen=True):
    index: int = 0
    value: int = 0
    value_two: int = 0
    op: str = ""


class Syscalls(Wire, frozen=True):
    names: tuple[str, ...] = ()
    action: str = ""
    errno_ret: int = 0
    args: tuple[SyscallArgument, ...] = ()


class SeccompProfileSpec(Wire, frozen=True):
    default_action: str = ""
    base_profile_name: str = ""
    architectures: tuple[str, ...] = ()
    syscalls: tuple[Syscalls, ...] = ()


class SeccompProfileStatus(Wire, frozen=True):
    status: str = ""
    localhost_profile: str = ""


class SeccompProfile(CustomResource, frozen=True):
    """Which system calls containers may use. The Security Profiles Operator has more fields."""

    definition: ClassVar = Definition(
        "security-profiles-operator.x-k8s.io",
        "v1beta1",
        "seccompprofiles",
        "SeccompProfile",
        short_names=("sp",),
        installed_by="Security Profiles Operator",
    )
    missing_advice: ClassVar = "install the Security Profiles Operator"
    spec: SeccompProfileSpec = SeccompProfileSpec()
    status: Annotated[
        SeccompProfileStatus,
        msgspec.Meta(extra_json_schema={"x-kubernetes-preserve-unknown-fields": True}),
    ] = SeccompProfileStatus()


class SySchedArgs(PluginArgs):
    default_profile_namespace: str = "default"
    default_profile_name: str = "all-syscalls"
    """The SeccompProfile of pods that name none that exists."""

    def validate(self, path: str) -> Iterator[str]:
        if not self.default_profile_namespace:
            yield required(child(path, "defaultProfileNamespace"), "the namespace of a SeccompProfile")
        if not self.default_profile_name:
            yield required(child(path, "defaultProfileName"), "the name of a SeccompProfile")


class Known(NamedTuple):
    """The system calls of all profiles, as bits of whole numbers."""

    number: int
    """Counts the versions."""
    by_profile: Mapping[str, int]
    words: int
    by_names: dict[tuple[str, ...], int]
    """By the profiles that a pod names, filled when asked for."""


class SySched(ExplainingPlugin):
    args: SySchedArgs
    watches = (SeccompProfile,)
    reads = Reads.USAGE

    def __init__(self, args: SySchedArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._profiles = handle.watched(SeccompProfile)
        self._profiles.follow(self._follow)
        self._default = f"{args.default_profile_namespace}/{args.default_profile_name}"
        self._version = 0
        """Counts the changes of profiles."""
        self._known = Known(-1, {}, 0, {})
        self._without = handle.counter(
            "stowplan_sysched_pods_without_profile_total",
            "Pods of which no SeccompProfile is known, each time that scores were worked out.",
        )

    def sign_pod(self, pod: Pod) -> Hashable:
        return self._current().number, self._syscalls(pod)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        """System calls that the pod does not use but others on the node do, and those that other pods there
        do not use but the pod or another one does."""
        wanted = self._syscalls(pod)
        if not wanted:
            self._without[()] += 1
            return np.zeros(len(nodes), np.int64)
        sizes, counts, sums, *words = self._columns(nodes)
        common = np.zeros(len(nodes), np.int64)
        for word, own in zip(words, _words(wanted, len(words)), strict=True):
            if own:
                common += np.bitwise_count(word & own)
        beyond: Scores = sizes - common
        return beyond + counts * (beyond + wanted.bit_count()) - sums

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_max(scores, reverse=True)

    def explain_scores(self, pod: Pod) -> Iterator[str]:
        missing = [name for name in profiles_of(pod) if name not in self._current().by_profile]
        if missing:
            served = "" if self._profiles.is_served else " (the kind SeccompProfile is not served)"
            listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            yield f"SySched finds no SeccompProfile {listed}{served}."
        if not self._syscalls(pod):
            yield (
                "SySched gives every node 100: no system calls of the pod are known, and the default profile "
                f"{self._default} does not exist or is empty."
            )

    # What pods use

    def _syscalls(self, pod: Pod) -> int:
        """The system calls that a pod may use, as bits."""
        names, known = profiles_of(pod), self._current()
        found = known.by_names.get(names)
        if found is None:
            found = 0
            for name in names:
                found |= known.by_profile.get(name, 0)
            if len(known.by_names) >= MAX_KEPT:
                known.by_names.clear()
            found = known.by_names[names] = found or known.by_profile.get(self._default, 0)
        return found

    def _columns(self, nodes: NodeTable) -> tuple[NDArray[np.int64], ...]:
        """By node: how many system calls its pods use, how many pods it has, how many system calls each of
        them uses, added up; then the system calls as bits, in words."""
        known = self._current()

        def compute(part: NodeTable) -> tuple[NDArray[np.int64], ...]:
            used = np.zeros((known.words, len(part)), np.uint64)
            numbers = np.zeros((3, len(part)), np.int64)
            for row in range(len(part)):
                pods = part.pods_on(row)
                host = total = 0
                for each in pods:
                    own = self._syscalls(each)
                    host |= own
                    total += own.bit_count()
                numbers[:, row] = host.bit_count(), len(pods), total
                used[:, row] = _words(host, known.words)
            return (*numbers, *used)

        live: tuple[NDArray[np.int64], ...] = nodes.live.keep(
            (self.serial, known.number), compute, usage=True
        )
        return live if nodes is nodes.live else tuple(column[nodes.rows] for column in live)

    # What profiles say

    def _follow(self, old: SeccompProfile | None, new: SeccompProfile | None) -> None:
        if old is None or new is None or old.spec.syscalls != new.spec.syscalls:  # not for each status
            self._version += 1

    def _current(self) -> Known:
        if self._known.number != self._version:
            names = {item.key: frozenset(islice(allowed(item), MAX_NAMES)) for item in self._profiles}
            bits = {name: place for place, name in enumerate(self._counted(names))}
            by_profile = {key: _bits_of(found, bits) for key, found in names.items()}
            self._known = Known(self._version, by_profile, -(-len(bits) // WORD), {})
        return self._known

    def _counted(self, names: Mapping[str, frozenset[str]]) -> Iterable[str]:
        """The system calls that count, all but in rare cases. If there are too many, those of the default
        profile come first, then those that most namespaces name: made-up names cannot displace others."""
        known = frozenset[str]().union(*names.values())
        if len(known) <= MAX_SYSCALLS:
            return known
        logger_of(self.name).warning(
            "SeccompProfiles name more than %d different system calls; some are ignored", MAX_SYSCALLS
        )
        by_namespace: dict[str, set[str]] = {}
        for key, found in names.items():
            by_namespace.setdefault(key.partition("/")[0], set()).update(found)
        uses = Counter(name for found in by_namespace.values() for name in found)
        default = names.get(self._default, frozenset())
        return sorted(known, key=lambda name: (name not in default, -uses[name], name))[:MAX_SYSCALLS]


def allowed(profile: SeccompProfile) -> Iterator[str]:
    """The system calls that a profile allows, or only logs."""
    for each in profile.spec.syscalls:
        if each.action in ALLOWING:
            yield from each.names


def profiles_of(pod: Pod) -> tuple[str, ...]:
    """The SeccompProfiles that the pod names, as `namespace/name`."""
    found: tuple[str, ...] | None = pod.shape.memo.get("SySched")
    if found is None:
        sidecars = (each for each in pod.spec.init_containers if each.is_sidecar)
        contexts = [each.security_context for each in (*sidecars, *pod.spec.containers)]
        contexts.append(pod.spec.security_context)
        profiles = [each.seccomp_profile for each in contexts if each is not None]
        paths = [each.localhost_profile for each in profiles if each is not None and each.type == "Localhost"]
        found = pod.shape.memo["SySched"] = _profile_names(paths)
    if pod.annotations and any(ANNOTATION in key for key in pod.annotations):
        texts = [text for key, text in pod.annotations.items() if ANNOTATION in key]
        named = _profile_names(text for text in texts if text.startswith("localhost/"))
        return tuple(sorted({*found, *named}))
    return found


def _profile_names(paths: Iterable[str]) -> tuple[str, ...]:
    """From paths such as operator/namespace/name.json; others are left out."""
    found = set()
    for path in paths:
        folder, _, file = path.rpartition("/")
        namespace, name = folder.rpartition("/")[2], file.rpartition(".")[0] or file
        if namespace and name:
            found.add(f"{namespace}/{name}")
    return tuple(sorted(found))


def _bits_of(names: Iterable[str], bits: Mapping[str, int]) -> int:
    found = 0
    for name in names:
        if name in bits:
            found |= 1 << bits[name]
    return found


def _words(number: int, count: int) -> NDArray[np.uint64]:
    return np.frombuffer(number.to_bytes(count * WORD // 8, "little"), "<u8")
