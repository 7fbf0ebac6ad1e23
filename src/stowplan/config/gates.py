"""Feature gates by Kubernetes minor: their defaults, and what Stowplan does with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stowplan.config.field_errors import join_errors
from stowplan.errors import InputError

GENERIC_WORKLOAD = "GenericWorkload"
GANG_SCHEDULING = "GangScheduling"
TOPOLOGY = "TopologyAwareWorkloadScheduling"
PREEMPTION = "WorkloadAwarePreemption"
WORKLOAD_CLAIMS = "DRAWorkloadResourceClaims"
WORKLOAD_WITH_JOB = "WorkloadWithJob"
DEVICES = "DynamicResourceAllocation"
BINDING_CONDITIONS = "DRADeviceBindingConditions"
EXTENDED_RESOURCE = "DRAExtendedResource"
FILTER_TIMEOUT = "DRASchedulerFilterTimeout"
DECLARED_FEATURES = "NodeDeclaredFeatures"
NODE_NAME_FOR_EXPECTATION = "NominatedNodeNameForExpectation"

DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    GENERIC_WORKLOAD: (),
    GANG_SCHEDULING: (GENERIC_WORKLOAD,),
    TOPOLOGY: (GENERIC_WORKLOAD,),
    PREEMPTION: (GANG_SCHEDULING,),
    WORKLOAD_CLAIMS: (DEVICES, GENERIC_WORKLOAD),
    WORKLOAD_WITH_JOB: (GENERIC_WORKLOAD,),
}
"""The gates of pod groups, all off by default, each with those that it needs."""

MIN_MINOR, RELEASE_MINOR, MAX_KNOWN_MINOR = 33, 36, 37
"""The oldest minor that can be emulated, the one that is matched by default, and the last in the table."""

_TABLE = """
gate                                           1.33 1.34 1.35 1.36 1.37  Stowplan
ClearingNominatedNodeNameAfterBinding          .    a-   b+   b+   b+    on
ComponentFlagz                                 a-   a-   a-   b+   b+    off
ComponentStatusz                               a-   a-   a-   b+   b+    off
CompositePodGroup                              .    .    .    .    a-    off!
CoordinatedLeaderElection                      b-   b-   b-   b-   b-    off
DRAAdminAccess                                 a-   b+   b+   g=   g=    on!
DRAConsumableCapacity                          .    a-   a-   b+   b+    on!
DRADerivedAttributes                           .    .    .    .    a-    off!
DRADeviceBindingConditions                     .    a-   a-   b+   b+    on!
DRADeviceCompatibilityGroups                   .    .    .    .    a-    off!
DRADeviceTaintRules                            .    .    a-   b-   g=    off!
DRADeviceTaints                                a-   a-   a-   b+   g=    on!
DRAExtendedResource                            .    a-   a-   b+   g=    both
DRAFractionalCapacityRange                     .    .    .    .    b+    off!
DRAListTypeAttributes                          .    .    .    a-   a-    off!
DRANodeAllocatableResources                    .    .    .    a-   a-    off!
DRAOptionalNodeOperations                      .    .    .    .    a-    off!
DRAPartitionableDevices                        a-   a-   a-   b+   b+    on!
DRAPrioritizedList                             a-   b+   b+   g+   g=    on!
DRAResourceClaimDeviceStatus                   b+   b+   b+   b+   g=    on!
DRAResourceClaimGranularStatusAuthorization    .    .    .    b+   b+    on
DRASchedulerFilterTimeout                      .    b+   b+   b+   b+    on
DRAWorkloadResourceClaims                      .    .    .    a-   b-    both
DynamicResourceAllocation                      b-   g+   g=   g=   g=    both
GangScheduling                                 .    .    a-   a-   .     both
GenericWorkload                                .    .    a-   a-   b-    both
InPlacePodLevelResourcesVerticalScaling        .    .    a-   b+   b+    on!
InPlacePodVerticalScaling                      b+   b+   g=   g=   g=    on!
InPlacePodVerticalScalingSchedulerPreemption   .    .    .    .    a-    off!
InterPodAffinityHostnameFastPath               .    .    .    .    a-    off
MatchLabelKeysInPodAffinity                    g=   g=   g=   g=   g=    on
MatchLabelKeysInPodTopologySpread              b+   b+   b+   b+   b+    on!
MatchLabelKeysInPodTopologySpreadSelectorMerge .    b+   b+   b+   b+    on
MutableCSINodeAllocatableCount                 a-   b-   b+   g=   g=    on
NodeDeclaredFeatures                           .    .    a-   b+   g=    both
NodeInclusionPolicyInPodTopologySpread         g=   g=   g=   g=   g=    on!
NominatedNodeNameForExpectation                .    a-   b+   b+   b+    both
OpportunisticBatching                          .    .    b+   b+   b+    on
PodGroupPreemptionPolicy                       .    .    .    .    a-    off!
PodLevelResources                              a-   b+   b+   b+   b+    on!
PodObservedGenerationTracking                  a-   b+   g=   g=   g=    on
PodSchedulingReadiness                         g=   g=   g=   g=   g=    on!
SchedulerAsyncAPICalls                         .    b-   b-   b-   b-    off
SchedulerAsyncPreemption                       b+   b+   b+   b+   b+    on
SchedulerPopFromBackoffQ                       b+   b+   b+   b+   b+    on
SchedulerPreQueueingHints                      .    .    .    .    a-    off
SchedulerQueueingHints                         b+   g=   g=   g=   .     on
SidecarContainers                              g=   g=   g=   g=   .     on!
StorageCapacityScoring                         a-   a-   a-   a-   b+    off!
TaintTolerationComparisonOperators             .    .    a-   a-   a-    off!
TopologyAwareWorkloadScheduling                .    .    .    a-   a-    both
VolumeAttributesClass                          b-   g+   g+   g=   g=    on!
VolumeLimitScaling                             .    .    a-   a-   b+    off!
WorkloadAwarePreemption                        .    .    .    a-   .     both
WorkloadWithJob                                .    .    .    a-   a-    both
"""
"""The gates of the scheduler and of what it reads, by minor: a, b and g are alpha, beta and GA; + and - are
on and off by default, = is on and locked; a dot means that the minor does not have the gate.

The last column says what Stowplan does: `both` follows the gate; `on` and `off` are fixed, with `!` where the
gate changes which node a pod gets, so that setting it differently is an error and not just a warning.
"""

BALANCE_BY_IMPROVEMENT = "BalanceByImprovement"
CHANGES = {
    BALANCE_BY_IMPROVEMENT: (
        36,
        "NodeResourcesBalancedAllocation scores how much a pod improves the balance of a node; before, it "
        "scored the balance that results",
    ),
}
"""Changes of decisions without a gate, with the minor that made them.

kube-scheduler keeps them when it emulates an older version, so they are undone only for an older API server.
"""


class Gate(NamedTuple):
    name: str
    stages: tuple[str, ...]
    """As in the table, from MIN_MINOR on."""
    handling: str

    def stage(self, minor: int) -> str:
        return self.stages[minor - MIN_MINOR]

    def is_on(self, minor: int) -> bool:
        """Whether the gate is on by default in a minor."""
        return self.stage(minor)[-1] in "+="

    @property
    def is_fixed(self) -> bool:
        return self.handling != "both"

    @property
    def is_always_on(self) -> bool:
        return self.handling.startswith("on")

    @property
    def decides(self) -> bool:
        """Whether Stowplan would place pods differently than kube-scheduler if it ignored the gate."""
        return self.handling.endswith("!")


def _read_table() -> Iterator[Gate]:
    for line in _TABLE.split("\n")[2:-1]:
        name, *stages, handling = line.split()
        yield Gate(name, tuple(stages), handling)


GATES: Mapping[str, Gate] = {gate.name: gate for gate in _read_table()}
MAX_DIGITS = 19
"""How many digits a number in a version may have."""
_CLASSES = {"AllAlpha": "a", "AllBeta": "b"}

FeatureGates = frozenset[str]
NO_GATES: FeatureGates = frozenset()


class Features(NamedTuple):
    """The feature gates that differ from the defaults of kube-scheduler 1.36."""

    enabled: FeatureGates = NO_GATES
    disabled: FeatureGates = NO_GATES


def enabled_gates(given: Mapping[str, bool]) -> FeatureGates:
    """The gates of pod groups that are on. Raises InputError if one needs another that is off."""
    found = frozenset(gate for gate, is_on in given.items() if is_on and gate in DEPENDENCIES)
    for gate in sorted(found):
        missing = [
            each
            for each in DEPENDENCIES[gate]
            if (each not in found if each in DEPENDENCIES else given.get(each) is False)
        ]
        if missing:
            raise InputError(
                f"{gate} is enabled, but depends on features that are disabled: [{' '.join(missing)}]",
                what="--feature-gates",
            )
    return found


def choose_features(given: Mapping[str, bool], minor: int, server: int | None = None) -> Features:
    """The features of a minor, with the gates that are given.

    `server` is the API server's minor, whose defaults apply if it is older; gates are still checked against
    `minor`. Raises InputError for a gate that cannot be set so.
    """
    if faults := list(_gate_faults(given, minor)):
        raise InputError(join_errors(faults))
    given = _expand(given, minor)
    followed = minor if server is None else max(MIN_MINOR, min(minor, server))
    disabled = frozenset(
        gate.name
        for gate in GATES.values()
        if gate.is_on(RELEASE_MINOR) and not given.get(gate.name, gate.is_on(followed))
    )
    undone = {name for name, (since, _) in CHANGES.items() if server is not None and followed < since}
    off = dict.fromkeys(disabled & {DEVICES}, False)
    if DEVICES not in given and followed < minor:  # off only because of the server: so is what needs it
        given = {name: is_on and name not in _needing_devices(followed) for name, is_on in given.items()}
    return Features(enabled_gates({**off, **given}), disabled | undone)


def unserved_gates(given: Mapping[str, bool], server: int | None) -> list[str]:
    """The gates that are on but have no effect, because the API server lacks the devices that they need."""
    if server is None or DEVICES in given:
        return []
    return sorted(name for name in _needing_devices(max(MIN_MINOR, server)) if given.get(name))


def _needing_devices(minor: int) -> list[str]:
    """The gates that cannot be on in a minor that has dynamic resource allocation off by default."""
    if GATES[DEVICES].is_on(minor):
        return []
    return [name for name, needed in DEPENDENCIES.items() if DEVICES in needed]


def _expand(given: Mapping[str, bool], minor: int) -> dict[str, bool]:
    """The gates with those that AllAlpha and AllBeta set; single gates override these."""
    expanded = {
        gate.name: given[whole]
        for whole, stage in _CLASSES.items()
        if whole in given
        for gate in GATES.values()
        if gate.stage(minor)[0] == stage
    }
    return expanded | {name: is_on for name, is_on in given.items() if name not in _CLASSES}


def _gate_faults(given: Mapping[str, bool], minor: int) -> Iterator[str]:
    for name, is_on in given.items():
        if (gate := GATES.get(name)) is None:
            continue
        text, stage = str(is_on).lower(), gate.stage(minor)
        if stage.endswith("=") and not is_on:
            yield f"cannot set feature gate {name} to {text}, feature is locked to true"
        elif stage == "." and minor < RELEASE_MINOR and gate.stage(RELEASE_MINOR) != ".":
            yield (
                f"cannot set feature gate {name} to {text}, feature is PreAlpha at emulated version "
                f"1.{minor}, min compatibility version 1.{max(minor - 1, MIN_MINOR)}"
            )
    for value in (True, False):
        names = [
            name
            for name, is_on in _expand(given, minor).items()
            if is_on is value
            and (gate := GATES.get(name)) is not None
            and (gate.is_fixed and gate.decides and gate.is_always_on is not value)
            and gate.is_on(minor) is not value
            and not gate.stage(minor).endswith("=")
        ]
        if names:
            what = "does not implement" if value else "always enables"
            yield (
                f"cannot set feature gate {', '.join(names)} to {str(value).lower()}: Stowplan {what} it, "
                "and would place pods differently than kube-scheduler"
            )


def gate_warnings(given: Mapping[str, bool]) -> Iterator[str]:
    """A warning for every gate that has no effect."""
    for name, is_on in given.items():
        prefix = f"--feature-gates: {name}={str(is_on).lower()} has no effect"
        gate = GATES.get(name)
        if gate is None and name not in _CLASSES:
            yield f"{prefix}: kube-scheduler 1.{RELEASE_MINOR} has no such scheduling feature gate"
        elif gate is not None and gate.is_fixed and is_on != gate.is_always_on:
            what = "always enables it" if gate.is_always_on else "does not implement it"
            yield f"{prefix}: Stowplan {what}"


def kept_features(minor: int, given: Iterable[str] = ()) -> list[str]:
    """What an older minor has off by default and Stowplan keeps on, though it changes decisions."""
    return [
        gate.name
        for gate in GATES.values()
        if gate.decides and gate.is_always_on and not gate.is_on(minor) and gate.name not in given
    ]


def missing_features(minor: int) -> list[str]:
    """What is on by default in a minor, changes decisions, and is not implemented."""
    return [
        gate.name
        for gate in GATES.values()
        if gate.decides and not gate.is_always_on and gate.is_on(min(minor, MAX_KNOWN_MINOR))
    ]


def read_versions(emulated: Sequence[str], compatible: Sequence[str]) -> int | None:
    """The minor that --emulated-version names, if any; with --min-compatibility-version it is only checked.

    Raises InputError with the texts of kube-scheduler.
    """
    wanted = _read_version(emulated)
    version = wanted or (1, RELEASE_MINOR)
    oldest = (1, MIN_MINOR)
    least = _read_version(compatible) or max(oldest, (version[0], version[1] - 1))
    faults = []
    if not oldest <= version <= (1, RELEASE_MINOR):
        faults.append(
            f"emulation version {_text(version)} is not between [1.{MIN_MINOR}, 1.{RELEASE_MINOR}.0]"
        )
    if not oldest <= least <= version:
        bounds = f"[1.{MIN_MINOR}, {_text(version)}]"
        faults.append(f"minCompatibilityVersion version {_text(least)} is not between {bounds}")
    if faults:
        raise InputError(join_errors(faults))
    return wanted and wanted[1]


def read_server_minor(answer: bytes) -> int | None:
    """The minor that an API server emulates or is of, from its /version.

    None if that is not 1.x, or if the answer is something else, such as a proxy's page.
    """
    try:
        found = msgspec.json.decode(answer)
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return None
    for major, minor in (("emulationMajor", "emulationMinor"), ("major", "minor")):
        digits = re.match(r"[0-9]{1,4}", str(found.get(minor, "")))  # some providers write 35+
        if digits and found.get(major) == "1":
            return int(digits[0])
    return None


def _read_version(given: Sequence[str]) -> tuple[int, int] | None:
    """The version in a list of COMPONENT=VERSION, where `kube` is the only component and the default."""
    found: dict[str, tuple[int, int]] = {}
    for each in given:
        component, separator, text = each.partition("=")
        component, text = (component.strip(), text.strip()) if separator else ("kube", each)
        matched = re.match(r"\s*v?([0-9]+(?:\.[0-9]+)*)", text)
        if matched is None:
            raise InputError(f'could not parse "{text}" as version')
        numbers = matched[1].split(".")
        if len(numbers) < 2:
            raise InputError(f'illegal version string "{text}"')
        if numbers[0].startswith("0") and numbers[0] != "0":
            raise InputError(f'illegal zero-prefixed version component "{numbers[0]}" in "{text}"')
        if wrong := next((number for number in numbers if len(number) > MAX_DIGITS), None):
            raise InputError(
                f'illegal non-numeric version component "{wrong}" in "{text}": '
                f'strconv.ParseUint: parsing "{wrong}": value out of range'
            )
        major, minor, *rest = map(int, numbers)
        if rest and rest[0]:
            raise InputError(f"patch version not allowed, got: {component}={'.'.join(numbers)}")
        if component in found:
            raise InputError(
                f"duplicate version flag, {component}={_text(found[component])} and "
                f"{component}={major}.{minor}"
            )
        found[component] = major, minor
    for component in found:
        if component != "kube":
            raise InputError(f"component not registered: {component}")
    return found.get("kube")


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
