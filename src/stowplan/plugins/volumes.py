"""The claims of a pod's volumes, and the messages about them, for all volume plugins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.meta import NodeSelectorRequirement, NodeSelectorTerm
from stowplan.api.pod import Pod, Volume
from stowplan.api.quantity import units
from stowplan.api.selectors import EVERYTHING, node_term_of, selector_of
from stowplan.api.storage import (
    FILESYSTEM,
    NO_PROVISIONER,
    SELECTED_NODE,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from stowplan.errors import SelectorError
from stowplan.framework import ClusterView, Mask, NodeTable


def claim_name(pod: Pod, volume: Volume) -> str | None:
    """The claim of a volume: the one it names, or for an ephemeral volume the one created for it."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.name}-{volume.name}" if volume.ephemeral is not None else None


def named_claims(pod: Pod) -> Iterator[str]:
    """The claims a pod names itself, in the order of its volumes."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name


def names_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    return claim.namespace == pod.namespace and claim.name in named_claims(pod)


def uses_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """The pod names the claim, or has an ephemeral volume of its name."""
    return claim.namespace == pod.namespace and any(
        claim_name(pod, volume) == claim.name for volume in pod.spec.volumes
    )


def is_made_for(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    owner = claim.metadata.controller()
    return owner is not None and owner.uid == pod.uid


def not_made_for(claim: PersistentVolumeClaim, pod: Pod) -> str:
    return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"


def claim_not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def mode_not_set(class_name: str) -> str:
    return f'VolumeBindingMode not set for StorageClass "{class_name}"'


class Unbound(NamedTuple):
    """A claim that waits for a node to be chosen, and the volumes that suit it, wherever they are."""

    claim: PersistentVolumeClaim
    storage_class: StorageClass
    own: Sequence[PersistentVolume] = ()
    """Those that already name the claim: the first of them is taken or, out of reach, none at all."""
    others: Sequence[PersistentVolume] = ()
    """Smallest first."""

    @property
    def selected_node(self) -> str | None:
        """The node for which a volume is being made already."""
        return self.claim.metadata.annotations.get(SELECTED_NODE)


class Match(NamedTuple):
    """The volume a claim would get on each row: a place in `volumes`, -1 for none."""

    unbound: Unbound
    volumes: Sequence[PersistentVolume]
    places: dict[str, int]
    chosen: NDArray[np.intp]


class Provision(NamedTuple):
    """The rows on which a volume would have to be made for the claim."""

    unbound: Unbound
    rows: Mask


class Plan(NamedTuple):
    """How a pod's unbound claims would get volumes, and the rows on which they cannot."""

    matches: Sequence[Match]
    provisions: Sequence[Provision]
    unbindable: Mask
    too_full: Mask


def in_turn(waiting: Iterable[Unbound]) -> list[Unbound]:
    """The order in which claims get their volumes: first those with a node, then by what they ask for."""
    return sorted(
        waiting, key=lambda each: -1 if each.selected_node is not None else each.claim.requested or 0
    )


def with_volumes(waiting: Unbound, volumes: Iterable[PersistentVolume]) -> Unbound:
    """The volumes of the claim's class that suit it; SelectorError if its selector cannot be built."""
    claim, own, others = waiting.claim, [], []
    selector = EVERYTHING if claim.spec.selector is None else selector_of(claim.spec.selector)
    for volume in volumes:
        if not _is_suitable(volume, claim):
            continue
        if volume.belongs_to(claim):
            own.append(volume)
        elif (
            volume.spec.claim_ref is None
            and volume.status.phase == "Available"
            and selector.matches(volume.metadata.labels)
            and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
        ):
            others.append(volume)
    return waiting._replace(own=own, others=sorted(others, key=attrgetter("capacity")))


def plan_volumes(waiting: Sequence[Unbound], nodes: NodeTable, cluster: ClusterView) -> Plan:
    """What each node would do for the claims, which are given in turn."""
    unbindable, too_full = np.zeros(len(nodes), np.bool_), np.zeros(len(nodes), np.bool_)
    matches: list[Match] = []
    provisions: list[Provision] = []
    for each in waiting:
        if each.selected_node is None:
            matches.append(_match(each, nodes, matches))
            provisions.append(Provision(each, matches[-1].chosen < 0))
        else:
            unbindable |= ~_only(each.selected_node, nodes)
            provisions.append(Provision(each, np.ones(len(nodes), np.bool_)))
    undecided = ~unbindable
    for each, rows in provisions:
        rejected = rows & undecided & ~_provisionable(each.storage_class, nodes)
        full = rows & undecided & ~rejected & ~_has_capacity(each, nodes, cluster)
        unbindable |= rejected
        too_full |= full
        undecided &= ~(rejected | full)
    return Plan(matches, provisions, unbindable, too_full)


def reached_from(volume: PersistentVolume, nodes: NodeTable) -> Mask:
    """Rows that the volume's node affinity accepts."""
    terms = volume.node_terms
    # parity: a volume's affinity is matched with labels only; a requirement on the node's name is ignored
    return np.ones(len(nodes), np.bool_) if terms is None else nodes.match_terms(terms, names=False)


def _is_suitable(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    mine, theirs = claim.spec, volume.spec
    return (
        volume.capacity >= (claim.requested or 0)
        and (theirs.volume_mode or FILESYSTEM) == (mine.volume_mode or FILESYSTEM)
        and (theirs.volume_attributes_class_name or "") == (mine.volume_attributes_class_name or "")
        and volume.metadata.deletion_timestamp is None
    )


def _match(waiting: Unbound, nodes: NodeTable, earlier: Sequence[Match]) -> Match:
    volumes = [*waiting.own, *waiting.others]
    chosen = np.full(len(nodes), -1, np.intp)
    undecided = np.ones(len(nodes), np.bool_)
    for place, volume in enumerate(volumes):
        free = undecided & ~_find_taken(volume, earlier, nodes)
        fits = free & reached_from(volume, nodes)
        chosen[fits] = place
        undecided &= ~(free if place < len(waiting.own) else fits)
        if not undecided.any():
            break
    return Match(waiting, volumes, {volume.name: place for place, volume in enumerate(volumes)}, chosen)


def _find_taken(volume: PersistentVolume, earlier: Sequence[Match], nodes: NodeTable) -> Mask:
    """Rows on which an earlier claim of the pod has chosen the volume."""
    taken = np.zeros(len(nodes), np.bool_)
    for match in earlier:
        if (place := match.places.get(volume.name)) is not None:
            taken |= match.chosen == place
    return taken


def _only(node_name: str, nodes: NodeTable) -> Mask:
    mask = np.zeros(len(nodes), np.bool_)
    if (row := nodes.row_of(node_name)) is not None:
        mask[row] = True
    return mask


def _provisionable(storage_class: StorageClass, nodes: NodeTable) -> Mask:
    if storage_class.provisioner in ("", NO_PROVISIONER):
        return np.zeros(len(nodes), np.bool_)
    if not storage_class.allowed_topologies:
        return np.ones(len(nodes), np.bool_)
    return nodes.match_terms(
        node_term_of(
            NodeSelectorTerm(
                match_expressions=tuple(
                    NodeSelectorRequirement(key=wanted.key, operator="In", values=wanted.values)
                    for wanted in term.match_label_expressions
                )
            )
        )
        for term in storage_class.allowed_topologies
    )


def _has_capacity(waiting: Unbound, nodes: NodeTable, cluster: ClusterView) -> Mask:
    """Return rows where the driver reports capacity for a new volume. Each claim is checked on its own."""
    requested, storage_class = waiting.claim.requested, waiting.storage_class
    driver = cluster.csi_drivers.get(storage_class.provisioner)
    if requested is None or driver is None or not driver.spec.storage_capacity:
        return np.ones(len(nodes), np.bool_)
    enough = np.zeros(len(nodes), np.bool_)
    for capacity in cluster.csi_storage_capacities:
        if (
            capacity.storage_class_name == storage_class.name
            and capacity.limit is not None
            and units(capacity.limit) >= units(requested)
        ):
            enough |= _accessible(capacity, nodes)
    return enough


def _accessible(capacity: CSIStorageCapacity, nodes: NodeTable) -> Mask:
    """The rows that a CSIStorageCapacity covers; none without a topology or with an invalid one."""
    try:
        selector = selector_of(capacity.node_topology)
    except SelectorError:
        return np.zeros(len(nodes), np.bool_)
    mask = np.full(len(nodes), not selector.nothing)
    for requirement in selector.requirements:
        mask &= nodes.matches(requirement)
    return mask
