"""Deployments, replica sets, stateful sets, daemon sets, jobs, disruption budgets and autoscalers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from zoneinfo import ZoneInfo

from stowplan.api.meta import Json
from stowplan.apiserver.failures import FieldError, invalid, required, unsupported
from stowplan.apiserver.names import label_errors, path_segment_errors
from stowplan.apiserver.strategies.pod_defaults import default_template
from stowplan.apiserver.strategies.pod_validation import label_selector_errors, pod_spec_errors
from stowplan.apiserver.strategies.strategy import Strategy

_NOT_NEGATIVE = "must be greater than or equal to 0"
_NO_MATCH = "`selector` does not match template `labels`"


_GENERATION = "deprecated.daemonset.template.generation"


class Workload(Strategy):
    """A kind with replicas of a pod template."""

    has_status = True
    has_generation = True
    selector_is_fixed = True
    empty_status: Json = {}

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        default_template(spec.setdefault("template", {}))
        self.default_workload(spec)

    def default_workload(self, spec: Json) -> None:
        spec.setdefault("replicas", 1)

    def prepare_create(self, data: Json) -> None:
        data["status"] = dict(self.empty_status)

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        if (spec.get("replicas") or 0) < 0:
            yield invalid("spec.replicas", spec["replicas"], _NOT_NEGATIVE)
        yield from selector_errors(spec, "spec")
        yield from self.template_errors(spec)

    def template_errors(self, spec: Json) -> Iterator[FieldError]:
        template = spec["template"]
        yield from pod_spec_errors(template["spec"], "spec.template.spec", template["metadata"])
        if template["spec"].get("restartPolicy") != "Always":
            yield unsupported(
                "spec.template.spec.restartPolicy", template["spec"].get("restartPolicy"), ["Always"]
            )

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if self.selector_is_fixed and data["spec"].get("selector") != old["spec"].get("selector"):
            yield invalid("spec.selector", data["spec"].get("selector"), "field is immutable")


def selector_errors(spec: Json, at: str) -> Iterator[FieldError]:
    selector = spec.get("selector")
    if selector is None:
        yield required(f"{at}.selector")
        labels = (spec.get("template") or {}).get("metadata", {}).get("labels")
        yield invalid(f"{at}.template.metadata.labels", labels, _NO_MATCH)
        return
    yield from label_selector_errors(selector, f"{at}.selector")
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield invalid(f"{at}.selector", {}, "empty selector is invalid for deployment")
        return
    labels = (spec.get("template") or {}).get("metadata", {}).get("labels") or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        yield invalid(f"{at}.template.metadata.labels", labels or None, _NO_MATCH)


class DeploymentStrategy(Workload):
    def default_workload(self, spec: Json) -> None:
        spec.setdefault("replicas", 1)
        strategy = spec.setdefault("strategy", {})
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)


class ReplicaSetStrategy(Workload):
    empty_status = {"replicas": 0}


class StatefulSetStrategy(Workload):
    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return label_errors(name)

    empty_status = {"replicas": 0, "availableReplicas": 0}

    def default_workload(self, spec: Json) -> None:
        spec.setdefault("replicas", 1)
        spec.setdefault("podManagementPolicy", "OrderedReady")
        update = spec.setdefault("updateStrategy", {})
        update.setdefault("type", "RollingUpdate")
        if update["type"] == "RollingUpdate":
            update.setdefault("rollingUpdate", {}).setdefault("partition", 0)
        spec.setdefault("revisionHistoryLimit", 10)
        keep = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
        keep.setdefault("whenDeleted", "Retain")
        keep.setdefault("whenScaled", "Retain")
        for claim in spec.get("volumeClaimTemplates") or []:
            claim.setdefault("kind", "PersistentVolumeClaim")
            claim.setdefault("apiVersion", "v1")
            claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
            claim.setdefault("status", {}).setdefault("phase", "Pending")


class DaemonSetStrategy(Workload):
    empty_status = {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    }

    def default(self, data: Json) -> None:
        super().default(data)
        notes = data["metadata"].setdefault("annotations", {})
        notes.setdefault(_GENERATION, "1")

    def prepare_update(self, data: Json, old: Json) -> None:
        super().prepare_update(data, old)
        kept = (old["metadata"].get("annotations") or {}).get(_GENERATION, "1")
        is_new = data["spec"].get("template") != old["spec"].get("template")
        data["metadata"]["annotations"][_GENERATION] = str(int(kept) + is_new)

    def default_workload(self, spec: Json) -> None:
        update = spec.setdefault("updateStrategy", {})
        update.setdefault("type", "RollingUpdate")
        if update["type"] == "RollingUpdate":
            rolling = update.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", 1)
            rolling.setdefault("maxSurge", 0)
        spec.setdefault("revisionHistoryLimit", 10)


class JobStrategy(Workload):
    selector_is_fixed = True
    fields = {"status.successful": "status.succeeded"}

    def default_workload(self, spec: Json) -> None:
        if spec.get("completions") is None and spec.get("parallelism") is None:
            spec["completions"] = spec["parallelism"] = 1
        spec.setdefault("parallelism", 1)
        spec.setdefault("backoffLimit", 6)
        spec.setdefault("completionMode", "NonIndexed")
        spec.setdefault("manualSelector", False)
        spec.setdefault("suspend", False)
        spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        _select_by_uid(data)
        for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"):
            if (spec.get(field) or 0) < 0:
                yield invalid(f"spec.{field}", spec[field], _NOT_NEGATIVE)
        template = spec["template"]
        yield from pod_spec_errors(template["spec"], "spec.template.spec", template["metadata"])
        if template["spec"].get("restartPolicy") not in ("OnFailure", "Never"):
            yield required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        spec, before = data["spec"], old["spec"]
        # An Indexed Job may change its size, if completions and parallelism stay the same number.
        is_elastic = spec.get("completionMode") == "Indexed" and all(
            each.get("completions") == each.get("parallelism") for each in (spec, before)
        )
        for field in ("selector", "template") if is_elastic else ("completions", "selector", "template"):
            if data["spec"].get(field) != old["spec"].get(field) and not old["spec"].get("suspend"):
                yield invalid(f"spec.{field}", data["spec"].get(field), "field is immutable")


def _select_by_uid(data: Json) -> None:
    """Give a job without a selector one that selects its pods by the job's uid."""
    spec, meta = data["spec"], data["metadata"]
    if spec.get("manualSelector") or not meta.get("uid"):
        return
    labels = spec["template"]["metadata"].setdefault("labels", {})
    uid, name = meta["uid"], meta.get("name", "")
    if "batch.kubernetes.io/controller-uid" not in labels:
        for key, value in (("controller-uid", uid), ("job-name", name)):
            labels[key] = labels[f"batch.kubernetes.io/{key}"] = value
    if not meta.get("labels"):
        meta["labels"] = dict(labels)
    if spec.get("selector") is None:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


class CronJobStrategy(Strategy):
    has_status = True
    has_generation = True

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        spec.setdefault("concurrencyPolicy", "Allow")
        spec.setdefault("suspend", False)
        spec.setdefault("successfulJobsHistoryLimit", 3)
        spec.setdefault("failedJobsHistoryLimit", 1)
        job = spec.setdefault("jobTemplate", {})
        job.setdefault("metadata", {})
        default_template(job.setdefault("spec", {}).setdefault("template", {}))

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}

    def errors(self, data: Json) -> Iterator[FieldError]:
        schedule, zone = data["spec"].get("schedule"), data["spec"].get("timeZone")
        if not schedule:
            yield required("spec.schedule")
        elif "TZ" in schedule:
            said = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
            yield invalid("spec.schedule", schedule, said)
        else:
            try:
                _check_schedule(schedule)
            except ValueError as error:
                yield invalid("spec.schedule", schedule, str(error))
        if zone is not None and (said := _zone_problem(zone)):
            yield invalid("spec.timeZone", zone, said)


_DESCRIPTORS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_BOUNDS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    (0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_EVERY = re.compile(r"[+-]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h))+)")


def _check_schedule(text: str) -> None:
    """Raise a ValueError in the words of the library that Kubernetes uses."""
    if text.startswith("@every "):
        if not _EVERY.fullmatch(given := text.removeprefix("@every ")):
            raise ValueError(f'failed to parse duration {text}: time: invalid duration "{given}"')
        return
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise ValueError(f"unrecognized descriptor: {text}")
        return
    fields = text.split()
    if len(fields) != len(_BOUNDS):
        raise ValueError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    for field, bounds in zip(fields, _BOUNDS, strict=True):
        for part in filter(None, field.split(",")):
            _check_range(part, *bounds)


def _check_range(text: str, lowest: int, highest: int, names: tuple[str, ...]) -> None:
    def number(word: str) -> int:
        if word.lower() in names:
            return names.index(word.lower()) + lowest
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", word, re.ASCII):
            raise ValueError(
                f'failed to parse int from {word}: strconv.Atoi: parsing "{word}": invalid syntax'
            )
        if int(word) < 0:
            raise ValueError(f"negative number ({int(word)}) not allowed: {word}")
        return int(word)

    whole, *steps = text.split("/")
    first, *lasts = whole.split("-")
    start, end = lowest, highest
    if first not in ("*", "?"):
        if len(lasts) > 1:
            raise ValueError(f"too many hyphens: {text}")
        start = number(first)
        end = number(lasts[0]) if lasts else highest if steps else start
    if len(steps) > 1:
        raise ValueError(f"too many slashes: {text}")
    step = number(steps[0]) if steps else 1
    if start < lowest:
        raise ValueError(f"beginning of range ({start}) below minimum ({lowest}): {text}")
    if end > highest:
        raise ValueError(f"end of range ({end}) above maximum ({highest}): {text}")
    if start > end:
        raise ValueError(f"beginning of range ({start}) beyond end of range ({end}): {text}")
    if not step:
        raise ValueError(f"step of range should be a positive number: {text}")


def _zone_problem(zone: str) -> str:
    if not zone:
        return "timeZone must be nil or non-empty string"
    if zone.lower() == "local":
        return "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
    try:
        ZoneInfo(zone)
    except (ValueError, KeyError, OSError):
        return f"unknown time zone {zone}"
    return ""


class BudgetStrategy(Strategy):
    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return path_segment_errors(name)

    checks_metadata_twice = False
    has_status = True
    has_generation = True
    updates_need_version = True

    def prepare_create(self, data: Json) -> None:
        data["status"] = {
            "disruptionsAllowed": 0,
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
        }

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data.get("spec") or {}
        if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
            yield invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
        for field in ("minAvailable", "maxUnavailable"):
            value = spec.get(field)
            if isinstance(value, int) and value < 0:
                yield invalid(f"spec.{field}", value, _NOT_NEGATIVE)
            elif isinstance(value, str) and not (value.endswith("%") and value[:-1].isdecimal()):
                said = (
                    "a valid percent string must be a numeric string followed by an ending '%' "
                    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
                )
                yield invalid(f"spec.{field}", value, said)
        yield from label_selector_errors(spec.get("selector"), "spec.selector")


class AutoscalerStrategy(Strategy):
    """In version 2, which is stored."""

    has_status = True

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        if spec.get("minReplicas") is None:
            spec["minReplicas"] = 1
        if not spec.get("metrics"):
            target = {"type": "Utilization", "averageUtilization": 80}
            spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]

    def prepare_create(self, data: Json) -> None:
        data["status"] = {"desiredReplicas": 0, "currentMetrics": None}

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        least, most, target = (
            spec["minReplicas"],
            spec.get("maxReplicas", 0),
            spec.get("scaleTargetRef") or {},
        )
        if least < 1:
            yield invalid("spec.minReplicas", least, "must be greater than or equal to 1")
        if most < 1:
            yield required("spec.maxReplicas", "must be set and greater than 0")
        if most < least:
            yield invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`")
        for field in ("kind", "name"):
            if not target.get(field):
                yield required(f"spec.scaleTargetRef.{field}")
        if "/" not in target.get("apiVersion", "") and target.get("kind") != "ReplicationController":
            given = target.get("apiVersion", "")
            yield invalid("spec.scaleTargetRef.apiVersion", given, "apiVersion must specify API group")
