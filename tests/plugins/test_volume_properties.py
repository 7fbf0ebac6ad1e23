"""The volume plugins on random clusters against a slow twin that reads manifests, one node at a time."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from volume_objects import (
    SELECTED,
    attachment,
    capacity,
    claim,
    cluster_of,
    csi_driver,
    csi_node,
    node,
    plugin_in,
    pod,
    refusals,
    storage_class,
    uses,
    volume,
    with_meta,
)

from example_share import examples
from stowplan.framework import Code, Status
from stowplan.plugins.args import VolumeBindingArgs
from stowplan.plugins.default.node_volume_limits import NodeVolumeLimits
from stowplan.plugins.default.volume_binding import VolumeBinding
from stowplan.plugins.default.volume_zone import VolumeZone

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
EBS_ZONE, HOST, EBS_PLUGIN = (
    "topology.ebs.csi.aws.com/zone",
    "kubernetes.io/hostname",
    "kubernetes.io/aws-ebs",
)
PLACES = [{ZONE: ["a"]}, {REGION: ["b", "c"], "rank": ["1"]}]
CLASSES = ["local", "made", "told", "zoned"]
ZONES = ["a", "b", "c"]
KEYS = [ZONE, REGION, BETA_ZONE, BETA_REGION, EBS_ZONE, HOST, "rank"]


def values_for(random: Random, key: str) -> list[str]:
    known = (
        [f"n{number}" for number in range(60)] if key == HOST else ["1", "2", "3"] if key == "rank" else ZONES
    )
    return random.sample(known, random.randint(1, len(known) // 2 + 1))


def some_affinity(random: Random) -> Any:
    def expression() -> Any:
        key = random.choice(KEYS)
        operator = random.choice(["In"] * 6 + ["NotIn", "Exists", "DoesNotExist"])
        if key == "rank" and random.random() < 0.5:
            return {"key": key, "operator": random.choice(["Gt", "Lt"]), "values": ["2"]}
        values = values_for(random, key) if operator in ("In", "NotIn") else []
        return {"key": key, "operator": operator, "values": values}

    def term() -> Any:
        made: Any = {"matchExpressions": [expression() for _ in range(random.choice([0, 1, 1, 1, 2]))]}
        if random.random() < 0.1:
            made["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
        return made

    return {"required": {"nodeSelectorTerms": [term() for _ in range(random.choice([1, 1, 2]))]}}


def some_volume(random: Random, name: str, size: int) -> Any:
    spec: Any = {"accessModes": random.sample(["ReadWriteOnce", "ReadOnlyMany"], random.choice([1, 2, 2, 2]))}
    if random.random() < 0.7:
        spec["nodeAffinity"] = some_affinity(random)
    if random.random() < 0.1:
        spec["volumeMode"] = random.choice(["Block", "Filesystem"])
    if random.random() < 0.1:
        spec["volumeAttributesClassName"] = random.choice(["", "gold"])
    in_tree = {"awsElasticBlockStore": {"volumeID": random.choice(["", "aws://a/"]) + f"vol-{name}"}}
    csi = {"csi": {"driver": random.choice(["d", "e"]), "volumeHandle": f"h-{name}"}}
    spec |= in_tree if random.random() < 0.4 else csi
    labels = {
        key: random.choice(["a", "b", "a__b", " c", "a__", "", "__"])
        for key in (ZONE, REGION, BETA_ZONE, BETA_REGION, "disk")
        if random.random() < 0.2
    }
    phase = random.choice(["Available"] * 8 + ["Released"])
    made = volume(name, random.choice(CLASSES), f"{size}Gi", labels=labels, phase=phase, **spec)
    return with_meta(made, deletionTimestamp="2026-01-01T00:00:00Z") if random.random() < 0.05 else made


def some_claim(random: Random, name: str, volumes: list[Any]) -> Any:
    if random.random() < 0.4:
        chosen = random.choice(volumes)["metadata"]["name"] if random.random() < 0.9 else "gone"
        return claim(name, random.choice(CLASSES), chosen)
    spec: Any = {"accessModes": random.choice([["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadOnlyMany"], []])}
    if random.random() < 0.1:
        spec["volumeMode"] = "Block"
    if random.random() < 0.1:
        spec["volumeAttributesClassName"] = "gold"
    if random.random() < 0.1:
        spec["selector"] = {"matchLabels": {"disk": "a"}}
    marks = {SELECTED: f"n{random.randint(0, 5)}"} if random.random() < 0.15 else {}
    size = f"{random.randint(1, 6)}Gi" if random.random() < 0.9 else None
    return claim(name, random.choice(CLASSES), annotations=marks, size=size, **spec)


def some_cluster(random: Random) -> list[Any]:
    names = [f"n{number}" for number in range(random.choice([1, 3, 8, 60]))]
    nodes = [node(name) for name in names]
    for each in nodes:
        for key in KEYS:
            if key != HOST and random.random() < 0.6:
                each["metadata"]["labels"][key] = random.choice(["1", "2", "3"] if key == "rank" else ZONES)
    volumes = [
        some_volume(random, f"pv{number}", random.randint(1, 8)) for number in range(random.randint(1, 12))
    ]
    claims = [some_claim(random, f"c{number}", volumes) for number in range(random.randint(1, 8))]
    for each in volumes:
        if random.random() < 0.25:
            owner = random.choice(claims)
            name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
            each["spec"]["claimRef"] = {
                "namespace": "default",
                "name": name,
                "uid": random.choice([uid, uid, "", "old"]),
            }
            each["spec"]["storageClassName"] = owner["spec"]["storageClassName"]
    drivers = ["d", "e", "ebs.csi.aws.com"]
    csi_nodes = [
        csi_node(
            name,
            {
                driver: random.choice([None, 0, 1, 2, 3])
                for driver in random.sample(drivers, random.randint(0, 3))
            },
            random.choice(["", "", EBS_PLUGIN, f"x,{EBS_PLUGIN}"]),
        )
        for name in names
        if random.random() < 0.8
    ]
    return [
        *nodes, *volumes, *claims, *csi_nodes,
        storage_class("local", provisioner="kubernetes.io/no-provisioner"),
        storage_class("made", provisioner="d"),
        storage_class("told", provisioner="e"),
        storage_class("zoned", provisioner=EBS_PLUGIN, topologies=PLACES),
        csi_driver("e", random.choice([True, True, None])),
        csi_driver("d", False),
        *(some_capacity(random, number) for number in range(random.randint(0, 4))),
        *(
            attachment(f"pv{random.randint(0, 12)}", random.choice(names), random.choice([*drivers, ""]))
            for _ in range(random.randint(0, 6))
        ),
        *(some_pod(random, f"r{n}", claims, random.choice(names)) for n in range(random.randint(0, 20))),
    ]  # fmt: skip


def some_capacity(random: Random, number: int) -> Any:
    key = random.choice([ZONE, REGION])
    topology = random.choice([None, {}, {"matchLabels": {key: random.choice(ZONES)}}])
    amounts = {
        amount: f"{random.randint(0, 6)}Gi"
        for amount in ("capacity", "maximumVolumeSize")
        if random.random() < 0.6
    }
    return capacity(f"cap{number}", random.choice(["told", "told", "made"]), topology, **amounts)


def some_pod(random: Random, name: str, claims: list[Any], node_name: str = "") -> Any:
    def one() -> Any:
        if random.random() < 0.2:
            return {"awsElasticBlockStore": {"volumeID": f"vol-pv{random.randint(0, 3)}"}}
        return uses(random.choice(claims)["metadata"]["name"])

    return pod(*(one() for _ in range(random.randint(1, 3))), name=name, node=node_name)


class Twin:
    """The rules again, for one pod on one node, from manifests."""

    def __init__(self, objects: list[Any], waiting: Any) -> None:
        self.waiting = waiting
        self.all = objects
        self.found = {(each["kind"], each["metadata"]["name"]): each for each in objects}

    def of_kind(self, kind: str) -> list[Any]:
        return [each for each in self.all if each["kind"] == kind]

    def claims(self, of: Any) -> list[Any]:
        names = [
            v["persistentVolumeClaim"]["claimName"]
            for v in of["spec"]["volumes"]
            if "persistentVolumeClaim" in v
        ]
        return [self.found["PersistentVolumeClaim", name] for name in names]

    # VolumeZone

    def zone(self, here: Any) -> bool:
        labels = here["metadata"]["labels"]
        if not any(key in labels for key in (BETA_ZONE, BETA_REGION, ZONE, REGION)):
            return True
        for each in self.claims(self.waiting):
            owned = self.found.get(("PersistentVolume", each["spec"]["volumeName"]))
            for key, value in owned["metadata"]["labels"].items() if owned else ():
                if key not in (BETA_ZONE, BETA_REGION, ZONE, REGION):
                    continue
                zones = [part.strip() for part in value.split("__")]
                newer = {BETA_ZONE: ZONE, BETA_REGION: REGION}.get(key, key)
                if "" not in zones and labels.get(key, labels.get(newer)) not in zones:
                    return False
        return True

    # NodeVolumeLimits

    def exceeds(self, here: Any) -> bool:
        name = here["metadata"]["name"]
        known = self.found.get(("CSINode", name))
        limits = {
            driver["name"]: driver["allocatable"]["count"]
            for driver in (known["spec"]["drivers"] if known else ())
            if "allocatable" in driver
        }
        used = set()
        for other in self.of_kind("Pod"):
            if other["spec"]["nodeName"] == name:
                used |= self.attached(other)
        fresh = self.attached(self.waiting) - used
        still = set()
        for each in self.of_kind("VolumeAttachment"):
            owned = self.found.get(("PersistentVolume", each["spec"]["source"]["persistentVolumeName"]))
            if (
                each["spec"]["nodeName"] == name
                and each["spec"]["attacher"]
                and owned
                and "csi" in owned["spec"]
            ):
                still.add((each["spec"]["attacher"], owned["spec"]["csi"]["volumeHandle"]))
        for driver, limit in limits.items():
            new = sum(1 for one, _ in fresh if one == driver)
            old = sum(1 for one, _ in used if one == driver) + sum(
                1 for one, _ in still - used if one == driver
            )
            if new and old + new > limit:
                return True
        return False

    def attached(self, of: Any) -> set[tuple[str, str]]:
        found = set()
        for each in of["spec"]["volumes"]:
            if "awsElasticBlockStore" in each:
                found.add(("ebs.csi.aws.com", each["awsElasticBlockStore"]["volumeID"].split("/")[-1]))
        for each in self.claims(of):
            owned = self.found.get(("PersistentVolume", each["spec"]["volumeName"]))
            if owned is None:
                provisioner = self.found["StorageClass", each["spec"]["storageClassName"]]["provisioner"]
                driver = "ebs.csi.aws.com" if provisioner == EBS_PLUGIN else provisioner
                found.add((driver, each["metadata"]["name"]))
            elif "csi" in owned["spec"]:
                found.add((owned["spec"]["csi"]["driver"], owned["spec"]["csi"]["volumeHandle"]))
            else:
                volume_id = owned["spec"]["awsElasticBlockStore"]["volumeID"]
                found.add(("ebs.csi.aws.com", volume_id.split("/")[-1]))
        return found

    # VolumeBinding

    def reasons(self, here: Any) -> tuple[str, ...]:
        claims = self.claims(self.waiting)
        conflict = missing = False
        for each in claims:
            if not each["spec"]["volumeName"] or conflict or missing:
                continue
            owned = self.found.get(("PersistentVolume", each["spec"]["volumeName"]))
            missing = owned is None
            conflict = owned is not None and not self.reaches(self.migrated(owned, here), here)
        unbindable, full = self.unbound([each for each in claims if not each["spec"]["volumeName"]], here)
        texts = {
            "node(s) didn't match PersistentVolume's node affinity": conflict,
            "node(s) didn't find available persistent volumes to bind": unbindable,
            "node(s) did not have enough free storage": full,
            "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)": missing,
        }
        return tuple(text for text, holds in texts.items() if holds)

    def unbound(self, claims: list[Any], here: Any) -> tuple[bool, bool]:
        selected = [each for each in claims if SELECTED in each["metadata"]["annotations"]]
        if any(each["metadata"]["annotations"][SELECTED] != here["metadata"]["name"] for each in selected):
            return True, False
        to_make, taken = list(selected), []
        for each in sorted((each for each in claims if each not in selected), key=asked_for):
            best = self.matching(each, here, taken)
            if best is None:
                to_make.append(each)
            else:
                taken.append(best["metadata"]["name"])
        for each in to_make:
            made_by = self.found["StorageClass", each["spec"]["storageClassName"]]
            places = made_by["allowedTopologies"]
            if made_by["provisioner"] == "kubernetes.io/no-provisioner" or (
                places and not any(self.place_fits(place, here) for place in places)
            ):
                return True, False
            if not self.has_room(each, made_by, here):
                return False, True
        return False, False

    def matching(self, each: Any, here: Any, taken: list[str]) -> Any:
        best = None
        for spare in self.of_kind("PersistentVolume"):
            spec, meta = spare["spec"], spare["metadata"]
            owner = spec.get("claimRef")
            is_own = (
                owner is not None
                and owner["name"] == each["metadata"]["name"]
                and owner["uid"] in ("", each["metadata"]["uid"])
            )
            if (
                meta["name"] in taken
                or spec["storageClassName"] != each["spec"]["storageClassName"]
                or (owner is not None and not is_own)
                or int(spec["capacity"]["storage"][:-2]) < asked_for(each)
                or spec.get("volumeMode", "Filesystem") != each["spec"].get("volumeMode", "Filesystem")
                or spec.get("volumeAttributesClassName", "")
                != each["spec"].get("volumeAttributesClassName", "")
                or "deletionTimestamp" in meta
            ):
                continue
            if is_own:
                return spare if self.reaches(spare, here) else None
            if (
                spare["status"]["phase"] != "Available"
                or ("selector" in each["spec"] and meta["labels"].get("disk") != "a")
                or not self.reaches(spare, here)
                or not set(each["spec"]["accessModes"]) <= set(spec["accessModes"])
            ):
                continue
            if best is None or int(spec["capacity"]["storage"][:-2]) < int(
                best["spec"]["capacity"]["storage"][:-2]
            ):
                best = spare
        return best

    def place_fits(self, place: Any, here: Any) -> bool:
        wanted = place["matchLabelExpressions"]
        return all(here["metadata"]["labels"].get(one["key"]) in one["values"] for one in wanted)

    def has_room(self, each: Any, made_by: Any, here: Any) -> bool:
        driver = self.found.get(("CSIDriver", made_by["provisioner"]))
        if not asked_for(each) or driver is None or not driver["spec"].get("storageCapacity"):
            return True
        for told in self.of_kind("CSIStorageCapacity"):
            limit = told.get("maximumVolumeSize", told.get("capacity"))
            topology = told.get("nodeTopology")
            if told["storageClassName"] == made_by["metadata"]["name"] and limit and topology is not None:
                labels = topology.get("matchLabels", {}).items()
                is_here = all(here["metadata"]["labels"].get(key) == value for key, value in labels)
                if is_here and int(limit[:-2]) >= asked_for(each):
                    return True
        return False

    def migrated(self, owned: Any, here: Any) -> Any:
        """The volume as a node sees it that hands EBS volumes to the CSI driver."""
        known = self.found.get(("CSINode", here["metadata"]["name"]))
        marks = known["metadata"]["annotations"].values() if known else ()
        if "awsElasticBlockStore" not in owned["spec"] or not any(EBS_PLUGIN in mark for mark in marks):
            return owned
        terms = owned["spec"].get("nodeAffinity", {"required": {"nodeSelectorTerms": []}})["required"][
            "nodeSelectorTerms"
        ]
        every = [one for term in terms for one in term["matchExpressions"]]
        labels = owned["metadata"]["labels"]
        is_old = next(
            (
                ZONE not in known
                for known in ({one["key"] for one in every}, labels)
                if {ZONE, BETA_ZONE} & set(known)
            ),
            False,
        )
        zone = BETA_ZONE if is_old else ZONE

        def named_by(key: str) -> bool:
            return any(one["key"] == key and one.get("values") for one in every)

        renamed = {zone: EBS_ZONE} if named_by(zone) else {}
        renamed |= {BETA_REGION: REGION} if is_old and named_by(BETA_REGION) else {}
        added = []
        if not named_by(zone) and zone in labels:
            values = [part.strip() for part in labels[zone].split("__") if part.strip()]
            if values:
                added = [{"key": EBS_ZONE, "operator": "In", "values": values}]
                terms = terms or [{"matchExpressions": []}]
        if not terms:
            return owned
        terms = [
            term
            | {
                "matchExpressions": [
                    one | {"key": renamed.get(one["key"], one["key"])} for one in term["matchExpressions"]
                ]
                + added
            }
            for term in terms
        ]
        return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}

    def reaches(self, owned: Any, here: Any) -> bool:
        affinity = owned["spec"].get("nodeAffinity")
        if affinity is None:
            return True
        for term in affinity["required"]["nodeSelectorTerms"]:
            wanted = term["matchExpressions"]
            if (wanted or "matchFields" in term) and all(
                holds(one, here["metadata"]["labels"]) for one in wanted
            ):
                return True
        return False


def holds(one: Any, labels: dict[str, str]) -> bool:
    value = labels.get(one["key"])
    return {
        "In": lambda: value in one["values"],
        "NotIn": lambda: value not in one["values"],
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: value is not None and int(value) > int(one["values"][0]),
        "Lt": lambda: value is not None and int(value) < int(one["values"][0]),
    }[one["operator"]]()


def asked_for(each: Any) -> int:
    return int(each["spec"]["resources"]["requests"].get("storage", "0Gi")[:-2])


@examples(400)
@given(st.integers(0, 2**32))
def test_agrees_with_its_twin(seed):
    random = Random(seed)
    objects = some_cluster(random)
    nodes = [each for each in objects if each["kind"] == "Node"]
    waiting = some_pod(
        random, "waiting", [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    )
    cluster, twin = cluster_of(*objects), Twin(objects, waiting)

    def answer(kind: Any, args: Any = None) -> Any:
        found = refusals(plugin_in(kind, cluster, args), waiting)
        return {} if found == Status.skip() else found

    expected = {here["metadata"]["name"] for here in nodes if twin.exceeds(here)}
    assert answer(NodeVolumeLimits).keys() == expected

    binding = answer(VolumeBinding, VolumeBindingArgs())
    reasons = {here["metadata"]["name"]: twin.reasons(here) for here in nodes}
    assert {name: texts for name, (_, texts) in binding.items()} == {
        name: texts for name, texts in reasons.items() if texts
    }

    zones = answer(VolumeZone)
    if isinstance(zones, Status):
        assert zones.code is Code.UNRESOLVABLE
        assert "gone" in {each["spec"]["volumeName"] for each in twin.claims(waiting)}
    else:
        assert zones.keys() == {here["metadata"]["name"] for here in nodes if not twin.zone(here)}
