"""Arguments of the default profile's plugins: their fields, defaults and rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec

from stowplan.api.meta import NodeSelectorRequirement, NodeSelectorTerm
from stowplan.api.pod import NodeAffinity, TopologySpreadConstraint
from stowplan.api.selectors import as_int64
from stowplan.config.duration import Duration
from stowplan.config.field_errors import (
    child,
    duplicate,
    forbidden,
    invalid,
    label_name_faults,
    required,
    unsupported,
)
from stowplan.config.gates import BINDING_CONDITIONS, FILTER_TIMEOUT
from stowplan.framework.args import PluginArgs

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"
REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"


class ResourceSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A resource and how much it counts; no weight is one."""

    name: str = ""
    weight: int = 1

    def __post_init__(self) -> None:
        if self.weight == 0:
            msgspec.structs.force_setattr(self, "weight", 1)


CPU_AND_MEMORY = (ResourceSpec("cpu"), ResourceSpec("memory"))


class ShapePoint(msgspec.Struct, frozen=True, rename="camel"):
    """A node used to `utilization` percent gets `score` of ten."""

    utilization: int = 0
    score: int = 0


class RequestedToCapacityRatio(msgspec.Struct, frozen=True, rename="camel"):
    shape: tuple[ShapePoint, ...] = ()


class ScoringStrategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    resources: tuple[ResourceSpec, ...] = CPU_AND_MEMORY
    requested_to_capacity_ratio: RequestedToCapacityRatio | None = None

    def __post_init__(self) -> None:
        if not self.resources:
            msgspec.structs.force_setattr(self, "resources", CPU_AND_MEMORY)


class DefaultPreemptionArgs(PluginArgs):
    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100

    def validate(self, path: str) -> Iterator[str]:
        percentage, absolute = self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute
        percentage_path = child(path, "minCandidateNodesPercentage")
        absolute_path = child(path, "minCandidateNodesAbsolute")
        if not 0 <= percentage <= 100:
            yield invalid(percentage_path, percentage, "not in valid range [0, 100]")
        if absolute < 0:
            yield invalid(absolute_path, absolute, "not in valid range [0, inf)")
        if percentage == absolute == 0:
            together = "cannot be zero at the same time as"
            yield invalid(percentage_path, 0, f"{together} minCandidateNodesAbsolute")
            yield invalid(absolute_path, 0, f"{together} minCandidateNodesPercentage")


class InterPodAffinityArgs(PluginArgs):
    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False

    def validate(self, path: str) -> Iterator[str]:
        weight = self.hard_pod_affinity_weight
        if not 0 <= weight <= 100:
            yield invalid(child(path, "hardPodAffinityWeight"), weight, "not in valid range [0, 100]")


class NodeAffinityArgs(PluginArgs):
    added_affinity: NodeAffinity | None = None

    def validate(self, path: str) -> Iterator[str]:
        if self.added_affinity is None:
            return
        path = child(path, "addedAffinity")
        required_terms = self.added_affinity.required_during_scheduling_ignored_during_execution
        preferred_terms = self.added_affinity.preferred_during_scheduling_ignored_during_execution
        if required_terms is not None:
            where = f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
            for index, term in enumerate(required_terms.node_selector_terms):
                yield from _term_faults(f"{where}[{index}]", term)
        where = f"{path}.preferredDuringSchedulingIgnoredDuringExecution"
        for index, preferred in enumerate(preferred_terms or ()):
            yield from _term_faults(f"{where}[{index}].preference", preferred.preference)


class NodeResourcesBalancedAllocationArgs(PluginArgs):
    resources: tuple[ResourceSpec, ...] = CPU_AND_MEMORY

    def __post_init__(self) -> None:
        self.resources = self.resources or CPU_AND_MEMORY

    def validate(self, path: str) -> Iterator[str]:
        seen: set[str] = set()
        for index, resource in enumerate(self.resources):
            where = f"{child(path, 'resources')}[{index}]"
            if resource.name in seen:
                yield duplicate(f"{where}.name", resource.name)
            seen.add(resource.name)
            if resource.weight != 1:
                yield invalid(f"{where}.weight", resource.weight, "must be 1")


class NodeResourcesFitArgs(PluginArgs):
    checked_late: ClassVar[bool] = True

    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    scoring_strategy: ScoringStrategy = ScoringStrategy(LEAST_ALLOCATED)

    def validate(self, path: str) -> Iterator[str]:
        for index, name in enumerate(self.ignored_resources):
            yield from _label_faults(f"{child(path, 'ignoredResources')}[{index}]", name)
        for index, group in enumerate(self.ignored_resource_groups):
            where = f"{child(path, 'ignoredResourceGroups')}[{index}]"
            if "/" in group:
                yield invalid(where, group, "resource group name can't contain '/'")
            yield from _label_faults(where, group)
        yield from _strategy_faults(child(path, "scoringStrategy"), self.scoring_strategy)


class PodTopologySpreadArgs(PluginArgs):
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    defaulting_type: str = "System"

    def __post_init__(self) -> None:
        self.defaulting_type = self.defaulting_type or "System"

    def validate(self, path: str) -> Iterator[str]:
        where = child(path, "defaultingType")
        if self.defaulting_type not in ("System", "List"):
            yield unsupported(where, self.defaulting_type, ("System", "List"))
        elif self.defaulting_type == "System" and self.default_constraints:
            yield invalid(where, "System", "when .defaultConstraints are not empty")
        seen: set[tuple[str, str]] = set()
        for index, constraint in enumerate(self.default_constraints):
            where = f"{child(path, 'defaultConstraints')}[{index}]"
            yield from _constraint_faults(where, constraint)
            pair = (constraint.topology_key, constraint.when_unsatisfiable)
            if pair in seen:
                yield duplicate(where, f"{{{', '.join(pair)}}}")
            seen.add(pair)


class VolumeBindingArgs(PluginArgs):
    bind_timeout_seconds: int = 600
    shape: tuple[ShapePoint, ...] | None = None

    def validate(self, path: str) -> Iterator[str]:
        if self.bind_timeout_seconds < 0:
            detail = "invalid BindTimeoutSeconds, should not be a negative value"
            yield invalid(child(path, "bindTimeoutSeconds"), self.bind_timeout_seconds, detail)
        if self.shape is not None:
            detail = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"
            yield invalid(child(path, "shape"), self.shape, detail)


class DynamicResourcesArgs(PluginArgs):
    gated_fields: ClassVar[Mapping[str, str]] = {
        BINDING_CONDITIONS: "bindingTimeout",
        FILTER_TIMEOUT: "filterTimeout",
    }

    filter_timeout: Duration = Duration(10)
    binding_timeout: Duration = Duration(600)

    def validate(self, path: str) -> Iterator[str]:
        if self.filter_timeout < 0:
            yield invalid(child(path, "filterTimeout"), self.filter_timeout, "must be zero or positive")
        if self.binding_timeout < 1:
            where = child(path, "bindingTimeout")
            yield invalid(where, self.binding_timeout, "must be at least 1 second")


def _label_faults(path: str, name: str) -> Iterator[str]:
    return (invalid(path, name, detail) for detail in label_name_faults(name))


def _strategy_faults(path: str, strategy: ScoringStrategy) -> Iterator[str]:
    kinds = (LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO)
    if strategy.type not in kinds:
        yield unsupported(f"{path}.type", strategy.type, kinds)
    for index, resource in enumerate(strategy.resources):
        if not 0 < resource.weight <= 100:
            detail = f"resource weight of {resource.name} not in valid range (0, 100]"
            yield invalid(f"{path}.resources[{index}].weight", resource.weight, detail)
    where = f"{path}.requestedToCapacityRatio"
    ratio = strategy.requested_to_capacity_ratio
    if strategy.type != REQUESTED_TO_CAPACITY_RATIO:
        if ratio is not None:
            yield forbidden(where, "must be nil when type is not RequestedToCapacityRatio")
    elif ratio is None:
        yield required(where, "must be specified when type is RequestedToCapacityRatio")
    else:
        yield from _shape_faults(f"{where}.shape", ratio.shape)


def _shape_faults(path: str, shape: tuple[ShapePoint, ...]) -> Iterator[str]:
    if not shape:
        yield required(path, "at least one point must be specified")
    for index in range(1, len(shape)):
        if shape[index - 1].utilization >= shape[index].utilization:
            where = f"{path}[{index}].utilization"
            yield invalid(where, shape[index].utilization, "values must be sorted in increasing order")
            break
    for index, point in enumerate(shape):
        if not 0 <= point.utilization <= 100:
            yield invalid(f"{path}[{index}].utilization", point.utilization, "not in valid range [0, 100]")
        if not 0 <= point.score <= 10:
            yield invalid(f"{path}[{index}].score", point.score, "not in valid range [0, 10]")


def _constraint_faults(path: str, constraint: TopologySpreadConstraint) -> Iterator[str]:
    if constraint.max_skew <= 0:
        yield invalid(f"{path}.maxSkew", constraint.max_skew, "not in valid range (0, inf)")
    if not constraint.topology_key:
        yield required(f"{path}.topologyKey", "can not be empty")
    else:
        yield from _label_faults(f"{path}.topologyKey", constraint.topology_key)
    actions = ("DoNotSchedule", "ScheduleAnyway")
    if not constraint.when_unsatisfiable:
        yield required(f"{path}.whenUnsatisfiable", "can not be empty")
    elif constraint.when_unsatisfiable not in actions:
        yield unsupported(f"{path}.whenUnsatisfiable", constraint.when_unsatisfiable, actions)
    if constraint.label_selector is not None:
        detail = "constraint must not define a selector, as they deduced for each pod"
        yield forbidden(f"{path}.labelSelector", detail)


def _term_faults(path: str, term: NodeSelectorTerm) -> Iterator[str]:
    for index, requirement in enumerate(term.match_expressions):
        yield from _requirement_faults(f"{path}.matchExpressions[{index}]", requirement)
    for index, requirement in enumerate(term.match_fields):
        yield from _field_faults(f"{path}.matchFields[{index}]", requirement)


def _requirement_faults(path: str, requirement: NodeSelectorRequirement) -> Iterator[str]:
    operators = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
    operator, values = requirement.operator, requirement.values
    if operator not in operators:
        yield unsupported(f"{path}.operator", operator, operators)
        return
    yield from _label_faults(f"{path}.key", requirement.key)
    where, given = f"{path}.values", values or None
    if operator in ("In", "NotIn") and not values:
        yield invalid(where, given, "for 'in', 'notin' operators, values set can't be empty")
    if operator in ("Exists", "DoesNotExist") and values:
        yield invalid(where, given, "values set must be empty for exists and does not exist")
    if operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield invalid(where, given, "for 'Gt', 'Lt' operators, exactly one value is required")
        for index, value in enumerate(values):
            if as_int64(value) is None:
                yield invalid(
                    f"{where}[{index}]", value, "for 'Gt', 'Lt' operators, the value must be an integer"
                )


def _field_faults(path: str, requirement: NodeSelectorRequirement) -> Iterator[str]:
    if requirement.operator not in ("In", "NotIn"):
        yield unsupported(f"{path}.operator", requirement.operator, ("In", "NotIn"))
    elif len(requirement.values) != 1:
        yield required(f"{path}.values", "must be only one value for field selectors")
