"""Translates in-tree volumes to CSI volumes: driver, handle and zones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from stowplan.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from stowplan.api.pod import AwsElasticBlockStore, AzureDisk, GcePersistentDisk, IdVolume, Volume
from stowplan.api.storage import CsiSource, PersistentVolume, PersistentVolumeSpec, VolumeNodeAffinity
from stowplan.errors import InputError

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"

_EBS_ID = re.compile(r"aws://[^/]*/+(vol-[^/]*)/*")


class InTreePlugin(NamedTuple):
    name: str
    driver: str
    source: str
    """The field that holds such a volume, in pods and in persistent volumes alike."""
    topology_key: str = ""
    """The driver's own topology key for zones, if it has one."""
    is_migrated: bool = True


PLUGINS = (
    InTreePlugin(
        "kubernetes.io/aws-ebs",
        "ebs.csi.aws.com",
        "aws_elastic_block_store",
        topology_key="topology.ebs.csi.aws.com/zone",
    ),
    InTreePlugin(
        "kubernetes.io/gce-pd",
        "pd.csi.storage.gke.io",
        "gce_persistent_disk",
        topology_key="topology.gke.io/zone",
    ),
    InTreePlugin(
        "kubernetes.io/cinder",
        "cinder.csi.openstack.org",
        "cinder",
        topology_key="topology.cinder.csi.openstack.org/zone",
    ),
    InTreePlugin("kubernetes.io/azure-disk", "disk.csi.azure.com", "azure_disk"),
    InTreePlugin("kubernetes.io/portworx-volume", "pxd.portworx.com", "portworx_volume"),
    InTreePlugin("kubernetes.io/azure-file", "file.csi.azure.com", "azure_file", is_migrated=False),
    InTreePlugin(
        "kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", "vsphere_volume", is_migrated=False
    ),
)
PLUGIN_BY_NAME = {plugin.name: plugin for plugin in PLUGINS}


def plugin_of(volume: Volume | PersistentVolumeSpec) -> InTreePlugin | None:
    """The in-tree plugin whose volume this is and for which a CSI driver is known."""
    return next((plugin for plugin in PLUGINS if getattr(volume, plugin.source) is not None), None)


def inline_to_csi(plugin: InTreePlugin, volume: Volume) -> CsiSource:
    """Translate an inline volume of a migrated plugin. Raises InputError if its ID is invalid."""
    return CsiSource(driver=plugin.driver, volume_handle=_handle(plugin, volume, zones=()))


def volume_to_csi(plugin: InTreePlugin, volume: PersistentVolume) -> PersistentVolume:
    """A persistent volume of a migrated plugin, its node affinity in the driver's words.

    Raises InputError if its id or, for a disk of several zones, these make no sense.
    """
    labels = volume.metadata.labels
    zones = (labels.get(BETA_ZONE) or labels.get(ZONE, "")).split("__")
    csi = CsiSource(driver=plugin.driver, volume_handle=_handle(plugin, volume.spec, zones))
    affinity = volume.spec.node_affinity
    if plugin.topology_key:
        affinity = _affinity_to_csi(plugin.topology_key, volume)
    return replace(
        volume, spec=replace(volume.spec, **{plugin.source: None}, csi=csi, node_affinity=affinity)
    )


def zones_of_label(value: str) -> frozenset[str] | None:
    """The values in a zone or region label of a volume; None if the label makes no sense."""
    zones = frozenset(zone.strip() for zone in value.split("__"))
    return None if "" in zones else zones


def _handle(plugin: InTreePlugin, volume: Volume | PersistentVolumeSpec, zones: Sequence[str]) -> str:
    match getattr(volume, plugin.source):
        case AwsElasticBlockStore(volume_id=volume_id):
            return _ebs_id(volume_id)
        case GcePersistentDisk(pd_name=disk):
            place = (
                f"regions/{_region(zones)}" if len(zones) > 1 else f"zones/{''.join(zones) or 'UNSPECIFIED'}"
            )
            return f"projects/UNSPECIFIED/{place}/disks/{disk}"
        case AzureDisk(disk_uri=uri):
            return uri
        case IdVolume(volume_id=volume_id):
            return volume_id
    raise InputError(f"volumes of {plugin.name} are not handed to a CSI driver")


def _ebs_id(volume_id: str) -> str:
    """`vol-…` from itself or from `aws://zone/vol-…`."""
    if not volume_id.startswith("aws://"):
        return volume_id
    match = _EBS_ID.fullmatch(volume_id)
    if match is None:
        raise InputError(f"invalid format for AWS volume ({volume_id})")
    return match[1]


def _region(zones: Sequence[str]) -> str:
    """The region of Google zones: `us-central1` of `us-central1-a` and `us-central1-b`."""
    regions = set()
    for zone in zones:
        parts = zone.split("-")
        if len(parts) != 3:
            raise InputError(
                f"zone in unexpected form, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            )
        regions.add("-".join(parts[:2]))
    if len(regions) != 1:
        raise InputError(f"multiple or no regions gotten from zones, got: {' '.join(sorted(regions))}")
    return regions.pop()


def _affinity_to_csi(topology_key: str, volume: PersistentVolume) -> VolumeNodeAffinity | None:
    """Zone keys renamed in the affinity, or the zone label's requirement added where it names no zone."""
    affinity = volume.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    is_beta = _uses_beta_labels(terms, volume.metadata.labels)
    zone = BETA_ZONE if is_beta else ZONE
    if _has_values(terms, zone):
        terms = _rename(terms, zone, topology_key)
    elif zone in volume.metadata.labels:
        zones = {part.strip() for part in volume.metadata.labels[zone].split("__")} - {""}
        wanted = NodeSelectorRequirement(key=topology_key, operator="In", values=tuple(sorted(zones)))
        if zones:
            terms = tuple(
                replace(term, match_expressions=(*term.match_expressions, wanted))
                for term in terms or (NodeSelectorTerm(),)
            )
    if is_beta and _has_values(terms, BETA_REGION):
        terms = _rename(terms, BETA_REGION, REGION)
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms)) if terms else affinity


def _uses_beta_labels(terms: Sequence[NodeSelectorTerm], labels: dict[str, str]) -> bool:
    """Whether only the deprecated zone label is used, in the affinity or else in the labels."""
    keys = {expression.key for term in terms for expression in term.match_expressions}
    for known in (keys, labels.keys()):
        if ZONE in known or BETA_ZONE in known:
            return ZONE not in known
    return False


def _has_values(terms: Sequence[NodeSelectorTerm], key: str) -> bool:
    # parity: regardless of the operator, even NotIn
    return any(
        expression.key == key and expression.values for term in terms for expression in term.match_expressions
    )


def _rename(terms: Sequence[NodeSelectorTerm], old: str, new: str) -> tuple[NodeSelectorTerm, ...]:
    return tuple(
        replace(
            term,
            match_expressions=tuple(
                replace(expression, key=new) if expression.key == old else expression
                for expression in term.match_expressions
            ),
        )
        for term in terms
    )
