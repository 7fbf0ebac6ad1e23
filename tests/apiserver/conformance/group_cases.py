"""Cases of pod groups: Workloads, PodGroups, and what their feature gates change about pods and jobs."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.conformance_cases import OPERATIONS
from conformance.conformance_extra import PODS, pod
from conformance.conformance_kinds import CONTAINER, LABELS, Kind
from conformance.conformance_steps import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    TABLE,
    Case,
    Step,
)
from conformance.group_crd_cases import CRD_CASES

Json = dict[str, Any]

ALL_GATES = (
    "GenericWorkload",
    "GangScheduling",
    "TopologyAwareWorkloadScheduling",
    "WorkloadAwarePreemption",
    "WorkloadWithJob",
    "DRAWorkloadResourceClaims",
)
GATES: dict[str, tuple[str, ...]] = {"all": ALL_GATES, "generic": ALL_GATES[:1], "off": ()}
"""The sets of gates that cases are recorded with."""

DIFFERENT = {
    "status through the group itself": "kube-apiserver drops the status, but notes who sent it in managedFields",
    "a given generation": "kube-apiserver keeps it, although PodGroups have no generation",
}
"""Cases that ours answers differently, and how."""

ROOT = "/apis/scheduling.k8s.io/v1alpha2"
GROUPS = ROOT + "/namespaces/{ns}/podgroups"
WORKLOADS = ROOT + "/namespaces/{ns}/workloads"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
JOBS = "/apis/batch/v1/namespaces/{ns}/jobs"
PAUSE = Step("PAUSE", "")
GANG: Json = {"gang": {"minCount": 2}}
KINDS = (
    Kind(
        ROOT,
        "podgroups",
        "PodGroup",
        {"spec": {"schedulingPolicy": GANG}},
        LABELS,
        {"spec": {"disruptionMode": 3}},
    ),
    Kind(
        ROOT,
        "workloads",
        "Workload",
        {"spec": {"podGroupTemplates": [{"name": "a", "schedulingPolicy": GANG}]}},
        LABELS,
        {"spec": {"podGroupTemplates": 3}},
    ),
)


def recorded_in(gates: str) -> Path:
    return Path(__file__).with_name(f"group_answers_{gates}.json.gz")


def group(name: str = "g", /, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"schedulingPolicy": GANG, **spec}}


def made(*items: Json) -> tuple[Step, ...]:
    return tuple(Step("POST", GROUPS, item) for item in items)


def workload(*templates: Json, name: str = "w", **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"podGroupTemplates": list(templates), **spec}}


def template(name: str = "a", **more: Any) -> Json:
    return {"name": name, "schedulingPolicy": GANG, **more}


def changed(path: str, *patches: Json) -> tuple[Step, ...]:
    return tuple(Step("PATCH", path, patch, MERGE_PATCH) for patch in patches)


def claim(name: str = "a", **source: str) -> Json:
    return {"name": name, **(source or {"resourceClaimName": "x"})}


def reference(workload: str | None = "w", template: str | None = "a") -> Json:
    names = {"workloadName": workload, "podGroupTemplateName": template}
    return {"workload": {key: value for key, value in names.items() if value is not None}}


def condition(
    kind: str = "PodGroupScheduled", status: str = "True", reason: str = "Scheduled", **more: Any
) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        **more,
    }


def status(name: str, **fields: Any) -> Step:
    return Step("PATCH", f"{GROUPS}/{name}/status", {"status": fields}, MERGE_PATCH)


def member(name: str, group: Any, **spec: Any) -> Json:
    return pod(name, schedulingGroup=group, **spec)


def job(name: str = "j", parallelism: int = 2, group: str = "") -> Json:
    named = {"schedulingGroup": {"podGroupName": group}} if group else {}
    spec = {"restartPolicy": "Never", "containers": [CONTAINER], **named}
    return {
        "metadata": {"name": name},
        "spec": {
            "parallelism": parallelism,
            "completions": parallelism,
            "completionMode": "Indexed",
            "template": {"spec": spec},
        },
    }


POLICY_CASES = [
    Case(
        "policy: none, both, bad minimums",
        made(
            {"metadata": {"name": "a"}, "spec": {}},
            {"metadata": {"name": "a"}},
            group(schedulingPolicy={}),
            group(schedulingPolicy={"basic": {}, "gang": {"minCount": 1}}),
            group(schedulingPolicy={"gang": {}}),
            group(schedulingPolicy={"gang": {"minCount": 0}}),
            group(schedulingPolicy={"gang": {"minCount": -1}}),
            group(schedulingPolicy={"gang": {"minCount": 2147483648}}),
            group(schedulingPolicy={"gang": {"minCount": "3"}}),
            group(schedulingPolicy={"gang": None}),
        ),
    ),
    Case(
        "policy: valid ones",
        made(
            group("a", schedulingPolicy={"basic": {}}),
            group("b", schedulingPolicy={"gang": {"minCount": 1}}),
            group("d", schedulingPolicy={"gang": {"minCount": 2147483647}}),
        ),
    ),
    Case(
        "names of groups",
        made(
            group("Bad_Name"),
            group("a.b"),
            group("a" * 253),
            group("a" * 254),
        ),
    ),
    Case(
        "several errors at once",
        made(
            group(
                schedulingPolicy={},
                disruptionMode="Foo",
                schedulingConstraints={"topology": [{"key": ""}, {"key": "a b"}]},
                podGroupTemplateRef={},
                resourceClaims=[{"name": ""}],
            ),
        ),
    ),
]
FIELD_CASES = [
    Case(
        "disruption modes",
        made(
            group("a", disruptionMode="Pod"),
            group("b", disruptionMode="PodGroup"),
            group("d", disruptionMode="Foo"),
            group("e", disruptionMode=""),
            group("f", disruptionMode=None),
        ),
    ),
    Case(
        "topology constraints",
        made(
            group("a", schedulingConstraints={}),
            group("b", schedulingConstraints={"topology": []}),
            group("d", schedulingConstraints={"topology": [{"key": "topology.kubernetes.io/rack"}]}),
            group("e", schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]}),
            group("f", schedulingConstraints={"topology": [{"key": "a"}, {"key": "b c"}, {"key": ""}]}),
            group("g", schedulingConstraints={"topology": [{"key": ""}]}),
            group("h", schedulingConstraints={"topology": [{}]}),
            group("i", schedulingConstraints={"topology": [{"key": "a b"}]}),
            group("k", schedulingConstraints={"topology": [{"key": "/a"}]}),
            group("l", schedulingConstraints={"topology": [{"key": "-/" + "x" * 64}]}),
            group("m", schedulingConstraints={"topology": [{"key": "a/b/c"}]}),
        ),
    ),
    Case(
        "template references",
        (
            *made(
                group("a", podGroupTemplateRef={}),
                group("b", podGroupTemplateRef={"workload": {}}),
                group("d", podGroupTemplateRef=reference("", "")),
                group("e", podGroupTemplateRef=reference("W", "T")),
                group("f", podGroupTemplateRef=reference("w", None)),
                group("g", podGroupTemplateRef=reference()),
                group("h", podGroupTemplateRef=None),
            ),
            Step("POST", WORKLOADS, workload(template("a"), template("b"))),
            PAUSE,
            *made(
                group("i", podGroupTemplateRef=reference()),
                group("k", podGroupTemplateRef=reference("w", "b"), schedulingPolicy={"basic": {}}),
                group("l", podGroupTemplateRef=reference("w", "d")),
                group("m", podGroupTemplateRef=reference("x", "d")),
            ),
            Step("GET", GROUPS, accept=TABLE),
        ),
    ),
    Case(
        "a workload that is being deleted",
        (
            Step(
                "POST",
                WORKLOADS,
                {
                    "metadata": {"name": "w", "finalizers": ["example.com/a"]},
                    "spec": {"podGroupTemplates": [template()]},
                },
            ),
            Step("DELETE", f"{WORKLOADS}/w"),
            PAUSE,
            *made(
                group("a", podGroupTemplateRef=reference()),
                group("b", podGroupTemplateRef=reference("w", "x")),
            ),
        ),
    ),
    Case(
        "claims of groups",
        made(
            group("a", resourceClaims=[claim()]),
            group("b", resourceClaims=[claim("a", resourceClaimTemplateName="t"), claim("b")]),
            group("d", resourceClaims=[]),
            group("e", resourceClaims=[{"name": "a"}]),
            group("f", resourceClaims=[claim("a", resourceClaimName="x", resourceClaimTemplateName="y")]),
            group("g", resourceClaims=[claim("a"), claim("a")]),
            group("h", resourceClaims=[claim("a"), claim("a", resourceClaimTemplateName="y")]),
            group("i", resourceClaims=[claim(each) for each in "abcde"]),
            group("k", resourceClaims=[claim("")]),
            group("l", resourceClaims=[claim("A_b")]),
            group("m", resourceClaims=[claim("a", resourceClaimName="A_b")]),
            group("n", resourceClaims=[claim("a", resourceClaimTemplateName="")]),
            group("o", resourceClaims=[claim("a", resourceClaimName="")]),
            group("p", resourceClaims=[claim("a" * 64)]),
        ),
    ),
    Case(
        "priority of groups",
        (
            Step(
                "POST",
                CLASSES,
                {"metadata": {"name": "{ns}-high"}, "value": 1000, "preemptionPolicy": "Never"},
            ),
            PAUSE,
            *made(
                group("a"),
                group("b", priorityClassName="{ns}-high"),
                group("d", priorityClassName="{ns}-high", priority=1000),
                group("e", priorityClassName="{ns}-high", priority=5),
                group("f", priorityClassName="{ns}-none"),
                group("g", priority=5),
                group("h", priority=0),
                group("i", priorityClassName="system-node-critical"),
                group("k", priorityClassName="Bad_Name"),
                group("l", priority=2000000000),
                {
                    "metadata": {"generateName": "m-"},
                    "spec": {"schedulingPolicy": GANG, "priorityClassName": "{ns}-none"},
                },
            ),
        ),
    ),
    Case(
        "priority of groups by the default class",
        (
            Step("POST", CLASSES, {"metadata": {"name": "{ns}-usual"}, "value": 7, "globalDefault": True}),
            PAUSE,
            *made(group("a"), group("b", priority=7), group("d", priority=8)),
            Step("QUIET-DELETE", f"{CLASSES}/{{ns}}-usual"),
            PAUSE,
        ),
    ),
    Case(
        "unknown fields and finalizers of a new group",
        (
            Step("POST", GROUPS + "?fieldValidation=Strict", group("b", nonsense=1)),
            Step("POST", GROUPS, group("d", nonsense=1)),
            Step(
                "POST",
                GROUPS,
                {
                    "metadata": {"name": "e", "finalizers": ["example.com/a"]},
                    "spec": {"schedulingPolicy": GANG},
                },
            ),
            Step(
                "POST",
                GROUPS,
                {
                    "metadata": {"name": "f", "finalizers": ["scheduling.k8s.io/podgroup-protection"]},
                    "spec": {"schedulingPolicy": GANG},
                },
            ),
        ),
    ),
    Case(
        "status through the group itself",
        (
            Step("POST", GROUPS, {**group("a"), "status": {"conditions": [condition()]}}),
            *changed(f"{GROUPS}/a", {"status": {"conditions": [condition()]}}),
        ),
    ),
    Case(
        "a given generation",
        (
            Step(
                "POST",
                GROUPS,
                {"metadata": {"name": "g", "generation": 4}, "spec": {"schedulingPolicy": GANG}},
            ),
        ),
    ),
]
UPDATE_CASES = [
    Case(
        "groups are immutable",
        (
            *made(group("a", schedulingConstraints={"topology": [{"key": "r"}]}, resourceClaims=[claim()])),
            *changed(
                f"{GROUPS}/a",
                {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}},
                {"spec": {"schedulingPolicy": {"gang": None, "basic": {}}}},
                {"spec": {"schedulingPolicy": {"gang": None}}},
                {"spec": {"schedulingPolicy": {"gang": {"minCount": 0}}}},
                {"spec": {"disruptionMode": "PodGroup"}},
                {"spec": {"disruptionMode": "Foo"}},
                {"spec": {"disruptionMode": None}},
                {"spec": {"podGroupTemplateRef": reference()}},
                {"spec": {"podGroupTemplateRef": {}}},
                {"spec": {"schedulingConstraints": None}},
                {"spec": {"schedulingConstraints": {"topology": [{"key": "s"}]}}},
                {"spec": {"schedulingConstraints": {"topology": []}}},
                {"spec": {"resourceClaims": None}},
                {"spec": {"resourceClaims": [claim("b")]}},
                {"spec": {"priorityClassName": "x"}},
                {"spec": {"priority": 7}},
                {"spec": {"priority": None}},
                {"spec": {"priority": 7, "disruptionMode": "PodGroup", "resourceClaims": []}},
                {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}},
                {"metadata": {"finalizers": ["example.com/a"]}},
                {
                    "metadata": {
                        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
                    }
                },
            ),
            Step(
                "PUT",
                f"{GROUPS}/a",
                {**group("a"), "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup"},
            ),
            Step(
                "PATCH",
                f"{GROUPS}/a",
                {"spec": {"resourceClaims": [claim("b", resourceClaimTemplateName="t")]}},
                STRATEGIC_PATCH,
            ),
            Step(
                "PATCH",
                f"{GROUPS}/a",
                [{"op": "replace", "path": "/spec/schedulingPolicy/gang/minCount", "value": 9}],
                JSON_PATCH,
            ),
            Step(
                "PATCH",
                f"{GROUPS}/a?fieldManager=one&force=true",
                {
                    "apiVersion": "scheduling.k8s.io/v1alpha2",
                    "kind": "PodGroup",
                    **group("a", disruptionMode="PodGroup"),
                },
                APPLY_PATCH,
            ),
            Step("GET", f"{GROUPS}/a"),
        ),
    ),
    Case(
        "a group whose spec is set later",
        (
            *made(group("a", schedulingPolicy={"basic": {}})),
            *changed(
                f"{GROUPS}/a",
                {"spec": {"schedulingPolicy": {"basic": None, "gang": {"minCount": 1}}}},
                {"spec": {"schedulingConstraints": {"topology": [{"key": "s"}]}}},
                {"spec": {"schedulingConstraints": {}}},
                {"spec": {"resourceClaims": [claim("b")]}},
                {"spec": {"priorityClassName": "system-node-critical"}},
            ),
        ),
    ),
    Case(
        "workloads are immutable",
        (
            Step(
                "POST",
                WORKLOADS,
                workload(
                    template(),
                    template("b", schedulingPolicy={"basic": {}}),
                    controllerRef={"apiGroup": "batch", "kind": "Job", "name": "j"},
                ),
            ),
            *changed(
                f"{WORKLOADS}/w",
                {"spec": {"controllerRef": {"name": "k"}}},
                {"spec": {"controllerRef": None}},
                {"spec": {"controllerRef": {"name": ""}}},
                {"spec": {"podGroupTemplates": [template()]}},
                {"spec": {"podGroupTemplates": [template(), template()]}},
                {"spec": {"podGroupTemplates": []}},
                {
                    "spec": {
                        "podGroupTemplates": [
                            template(schedulingPolicy={}),
                            template("b", schedulingPolicy={"basic": {}}),
                        ]
                    }
                },
                {"metadata": {"labels": {"a": "b"}}},
            ),
            Step(
                "PATCH", f"{WORKLOADS}/w", {"spec": {"podGroupTemplates": [template("d")]}}, STRATEGIC_PATCH
            ),
            Step(
                "PATCH",
                f"{WORKLOADS}/w",
                [
                    {
                        "op": "replace",
                        "path": "/spec/podGroupTemplates/0/schedulingPolicy/gang/minCount",
                        "value": 9,
                    }
                ],
                JSON_PATCH,
            ),
            Step("GET", f"{WORKLOADS}/w"),
            Step("GET", f"{WORKLOADS}/w/status"),
            Step("DELETE", f"{WORKLOADS}/w"),
        ),
    ),
    Case(
        "a workload whose controller is set later",
        (
            Step("POST", WORKLOADS, workload(template())),
            *changed(f"{WORKLOADS}/w", {"spec": {"controllerRef": {"kind": "Job", "name": "k"}}}),
        ),
    ),
]
WORKLOAD_CASES = [
    Case(
        "workloads: templates",
        tuple(
            Step("POST", WORKLOADS, item)
            for item in (
                workload(),
                {"metadata": {"name": "w"}},
                {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": None}},
                workload(*map(template, "abcdefghi")),
                workload(*map(template, "abcdefgh"), name="a"),
                workload(template(), template()),
                workload(template(), template(disruptionMode="Pod", priority=3)),
                workload(template("")),
                workload({"schedulingPolicy": GANG}),
                workload(template("A_b")),
                workload(template("a.b")),
                workload(template("a" * 64)),
                workload(template(schedulingPolicy={})),
                workload({"name": "a"}),
                workload(
                    template(schedulingPolicy={"gang": {"minCount": 0}}),
                    template("b", schedulingPolicy={"basic": {}, "gang": {"minCount": -1}}),
                ),
                workload(template(priority=2000000000)),
                workload(template(priority=1000000001)),
                workload(template(priority=-2147483648), name="b"),
                workload(template(priority=1000000000, priorityClassName="none"), name="d"),
                workload(template(priorityClassName="Bad_Name")),
                workload(template(disruptionMode="Foo")),
                workload(template(disruptionMode="PodGroup"), name="e"),
                workload(template(schedulingConstraints={}), name="f"),
                workload(template(schedulingConstraints={"topology": [{"key": "a"}]}), name="g"),
                workload(template(schedulingConstraints={"topology": [{"key": "a"}, {"key": ""}]})),
                workload(template(schedulingConstraints={"topology": [{"key": "a b"}]})),
                workload(
                    template(resourceClaims=[claim(), claim("b", resourceClaimTemplateName="t")]), name="h"
                ),
                workload(template(resourceClaims=[claim(), claim()])),
                workload(template(resourceClaims=[{"name": "a"}])),
                workload(template(resourceClaims=[claim(each) for each in "abcde"])),
                workload(template(resourceClaims=[claim("A_b", resourceClaimName="C_d")])),
            )
        ),
    ),
    Case(
        "workloads: controllers",
        tuple(
            Step("POST", WORKLOADS, item)
            for item in (
                workload(
                    template(), name="a", controllerRef={"apiGroup": "batch", "kind": "Job", "name": "j"}
                ),
                workload(template(), name="b", controllerRef={"apiGroup": "", "kind": "Pod", "name": "p"}),
                workload(template(), name="d", controllerRef={"kind": "Pod", "name": "P_q"}),
                workload(template(), controllerRef={}),
                workload(template(), controllerRef={"apiGroup": "Bad_Group", "kind": "a/b", "name": "c/d"}),
                workload(template(), controllerRef={"apiGroup": "batch", "kind": "..", "name": "%"}),
                workload(template(), controllerRef={"apiGroup": "batch", "kind": "", "name": ""}),
                workload(template(), controllerRef={"apiGroup": "batch", "kind": ".", "name": "a" * 300}),
            )
        ),
    ),
    Case(
        "workloads: names and columns",
        (
            *(
                Step("POST", WORKLOADS, workload(template(), name=name))
                for name in ("Bad_Name", "a.b", "a" * 253, "a" * 254)
            ),
            Step("GET", f"{WORKLOADS}/a.b", accept=TABLE),
            Step("GET", f"{WORKLOADS}?fieldSelector=spec.controllerRef.name%3Dx"),
        ),
    ),
]
STATUS_CASES = [
    Case(
        "status of groups",
        (
            *made(group("a", resourceClaims=[claim("r")])),
            status("a", conditions=[condition()]),
            status("a", conditions=[condition(status="Maybe")]),
            status("a", conditions=[condition(reason="")]),
            status("a", conditions=[condition(reason="not a reason")]),
            status("a", conditions=[condition(lastTransitionTime=None)]),
            status("a", conditions=[{"type": "X", "status": "True"}]),
            status("a", conditions=[{}]),
            status("a", conditions=[condition("a b")]),
            status("a", conditions=[condition("example.com/X")]),
            status("a", conditions=[condition(), condition()]),
            status("a", conditions=[condition("X"), condition("Y"), condition("X", status="False")]),
            status("a", conditions=[condition(message="x" * 32769)]),
            status("a", conditions=[condition(reason="R" * 1025)]),
            status("a", conditions=[condition(observedGeneration=-1)]),
            status("a", conditions=[condition(observedGeneration=3)]),
            status("a", resourceClaimStatuses=[{"name": "r", "resourceClaimName": "a-r"}]),
            status("a", resourceClaimStatuses=[{"name": "zz"}]),
            status("a", resourceClaimStatuses=[{"name": "zz", "resourceClaimName": "x"}]),
            status("a", resourceClaimStatuses=[{"name": "r"}, {"name": "r"}]),
            status("a", resourceClaimStatuses=[{"name": "r", "resourceClaimName": "A_b"}]),
            status("a", resourceClaimStatuses=[{"name": "r", "resourceClaimName": ""}]),
            status("a", resourceClaimStatuses=[{"name": ""}]),
            status("a", resourceClaimStatuses=[{"name": each} for each in "abcde"]),
            status("a", conditions=None, resourceClaimStatuses=None),
        ),
    ),
    Case(
        "the status subresource",
        (
            *made(group("a")),
            Step("GET", f"{GROUPS}/a/status"),
            Step(
                "PATCH",
                f"{GROUPS}/a/status",
                {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": None},
                    "spec": {"disruptionMode": "PodGroup"},
                    "status": {
                        "conditions": [condition(status="False", reason="Unschedulable", message="m")]
                    },
                },
                MERGE_PATCH,
            ),
            Step(
                "PATCH",
                f"{GROUPS}/a/status",
                {"status": {"conditions": [condition("Other")]}},
                STRATEGIC_PATCH,
            ),
            Step(
                "PATCH",
                f"{GROUPS}/a/status",
                {"status": {"conditions": [{"$patch": "delete", "type": "Other"}]}},
                STRATEGIC_PATCH,
            ),
            Step(
                "PATCH",
                f"{GROUPS}/a/status?fieldManager=me",
                {
                    "apiVersion": "scheduling.k8s.io/v1alpha2",
                    "kind": "PodGroup",
                    "metadata": {"name": "a"},
                    "status": {"conditions": [condition("Mine")]},
                },
                APPLY_PATCH,
            ),
            Step(
                "PUT",
                f"{GROUPS}/a/status",
                {
                    "apiVersion": "scheduling.k8s.io/v1alpha2",
                    "kind": "PodGroup",
                    **group("a", schedulingPolicy={"basic": {}}),
                    "status": {},
                },
            ),
            Step("DELETE", f"{GROUPS}/a/status"),
            Step("POST", f"{GROUPS}/a/status", group("a")),
        ),
    ),
    Case(
        "columns of groups",
        (
            *made(
                group("a"),
                group("b", schedulingPolicy={"basic": {}}),
                group("d"),
                group("e"),
                group("f"),
                group("g"),
            ),
            status("b", conditions=[condition()]),
            status("d", conditions=[condition(status="False", reason="Unschedulable")]),
            status("e", conditions=[condition(status="Unknown", reason="X")]),
            status(
                "f", conditions=[condition("DisruptionTarget", reason="PreemptionByScheduler"), condition()]
            ),
            status("g", conditions=[condition("DisruptionTarget", "False", "Recovered"), condition("Other")]),
            Step("GET", GROUPS, accept=TABLE),
            Step("GET", f"{GROUPS}?fieldSelector=metadata.name%3Da", accept=TABLE),
            Step("GET", f"{GROUPS}?fieldSelector=spec.priority%3D3"),
            Step(
                "GET", f"{GROUPS}?fieldSelector=metadata.namespace%3D{{ns}},metadata.name!%3Da", accept=TABLE
            ),
        ),
    ),
]
DELETE_CASES = [
    Case(
        "deletion of groups",
        (
            *made(group("a"), group("b")),
            Step("DELETE", f"{GROUPS}/a"),
            Step("GET", f"{GROUPS}/a"),
            Step("DELETE", f"{GROUPS}/a"),
            Step(
                "PATCH",
                f"{GROUPS}/a",
                {"metadata": {"finalizers": ["scheduling.k8s.io/podgroup-protection", "example.com/b"]}},
                MERGE_PATCH,
            ),
            status("a", conditions=[condition()]),
            Step("GET", f"{GROUPS}/a", accept=TABLE),
            Step("PATCH", f"{GROUPS}/a", {"metadata": {"finalizers": None}}, MERGE_PATCH),
            Step("GET", f"{GROUPS}/a"),
            Step("DELETE", f"{GROUPS}/b?propagationPolicy=Foreground"),
            Step("DELETE", f"{GROUPS}/b?gracePeriodSeconds=0"),
            Step("DELETE", GROUPS),
        ),
    ),
    Case(
        "deletion of a group without its finalizer",
        (
            *made(group("a")),
            Step("PATCH", f"{GROUPS}/a", {"metadata": {"finalizers": None}}, MERGE_PATCH),
            Step("DELETE", f"{GROUPS}/a"),
            Step("GET", f"{GROUPS}/a"),
        ),
    ),
]
POD_CASES = [
    Case("pods in groups", (
        *(Step("POST", PODS, item) for item in (
            member("a", {"podGroupName": "g"}),
            member("b", {}),
            member("b", {"podGroupName": None}),
            member("b", {"podGroupName": ""}),
            member("b", {"podGroupName": "Bad_Name"}),
            member("b", {"podGroupName": "a" * 254}),
            member("b", {"podGroupName": 3}),
            member("b", None),
            member("d", {"podGroupName": "g"}, schedulerName="other", schedulingGates=[{"name": "example.com/a"}]),
        )),
        *changed(
            f"{PODS}/a",
            {"spec": {"schedulingGroup": {"podGroupName": "h"}}},
            {"spec": {"schedulingGroup": None}},
            {"metadata": {"labels": {"a": "b"}}},
        ),
        *changed(
            f"{PODS}/d",
            {"spec": {"schedulingGroup": {"podGroupName": "h"}}},
            {"spec": {"schedulingGroup": None}},
        ),
        *changed(f"{PODS}/b", {"spec": {"schedulingGroup": {"podGroupName": "h"}}}),
    )),
    Case("templates with groups", (
        Step("POST", JOBS, job("a", group="g")),
        Step("POST", JOBS, job("b", group="Bad_Name")),
        Step("POST", "/apis/apps/v1/namespaces/{ns}/replicasets", {"metadata": {"name": "r"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER], "schedulingGroup": {"podGroupName": "g"}}}}}),
        Step("POST", "/apis/apps/v1/namespaces/{ns}/deployments", {"metadata": {"name": "r"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER], "schedulingGroup": {}}}}}),
    )),
    Case("jobs of gangs keep their parallelism", (
        *made(group("gang"), group("basic", schedulingPolicy={"basic": {}})),
        PAUSE,
        Step("POST", JOBS, job("a", group="gang")),
        Step("POST", JOBS, job("b", group="basic")),
        Step("POST", JOBS, job("d", group="none")),
        Step("POST", JOBS, job("e")),
        *(Step("PATCH", f"{JOBS}/{name}", {"spec": {"parallelism": 3, "completions": 3}}, MERGE_PATCH) for name in "abde"),
        *(Step("PATCH", f"{JOBS}/{name}", {"spec": {"suspend": True}}, MERGE_PATCH) for name in "ab"),
        *(Step("PATCH", f"{JOBS}/{name}", {"spec": {"parallelism": 1}}, MERGE_PATCH) for name in "ab"),
    )),
]  # fmt: skip
DISCOVERY_CASES = [
    Case("discovery of groups", (Step("GET", "/apis/scheduling.k8s.io"), Step("GET", "/apis/scheduling.k8s.io/v1alpha2"))),
    Case("roles", tuple(Step("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}") for name in (
        "system:kube-scheduler", "system:aggregate-to-view", "system:aggregate-to-edit", "system:controller:job-controller", "system:controller:podgroup-protection-controller",
    ))),
]  # fmt: skip


def group_cases(gates: str) -> list[Case]:
    """The cases for one of GATES."""
    if gates == "off":
        return [
            *POD_CASES[:2],
            Case("groups that are not served", (*made(group()), Step("GET", WORKLOADS))),
            *DISCOVERY_CASES,
            *CRD_CASES,
        ]
    if gates == "generic":
        return [
            *POLICY_CASES[-1:],
            *FIELD_CASES,
            *UPDATE_CASES[:1],
            *WORKLOAD_CASES[:1],
            *STATUS_CASES[:1],
            *POD_CASES,
        ]
    kinds = [
        Case(f"{kind.plural}.{kind.api_version}: {name}", steps(kind))
        for kind in KINDS
        for name, steps in OPERATIONS.items()
    ]
    groups = (POLICY_CASES, FIELD_CASES, UPDATE_CASES, WORKLOAD_CASES, STATUS_CASES, DELETE_CASES, POD_CASES)
    return [*kinds, *(case for cases in groups for case in cases), *DISCOVERY_CASES]
