"""HorizontalPodAutoscalers: as many replicas as the usage of their pods asks for."""

from __future__ import annotations

import math
from typing import NamedTuple

from stowplan.api.meta import Json, parse_time
from stowplan.api.quantity import canonical, milli_units, parse
from stowplan.client.api import MERGE_PATCH
from stowplan.client.errors import ApiError
from stowplan.controllers.clock import wire_time
from stowplan.controllers.discovery import Discovered
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import AUTOSCALERS, PODS, Plain, PodView
from stowplan.controllers.owned_pods import with_condition
from stowplan.controllers.stores import Stores, by_namespace, encode_sorted

SYNC_SECONDS, RETRY_SECONDS = 15.0, 1.0
TOLERANCE = 0.1
DOWN_WINDOW = 300.0
"""How long the highest recent recommendation holds before replicas are taken away."""
METRICS = "/apis/metrics.k8s.io/v1beta1"
DEFAULT_METRIC: Json = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


class Proposal(NamedTuple):
    """What one metric asks for."""

    replicas: int
    text: str
    current: Json


class MetricError(Exception):
    """A metric cannot be had: `reason` is that of the condition."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason, self.message = reason, message
        super().__init__(message)


class Autoscalers(Controller):
    component = "horizontal-pod-autoscaler"

    def __init__(self, stores: Stores, discovered: Discovered) -> None:
        super().__init__(stores)
        self._autoscalers, self._discovered = self.store(AUTOSCALERS), discovered
        self._pods = self.store(PODS).index(by_namespace)
        self._recommended: dict[str, list[tuple[float, int]]] = {}
        """Recent recommendations by autoscaler."""
        self._scaled: dict[str, list[tuple[float, int]]] = {}
        """Recent changes of replicas by autoscaler."""
        self._autoscalers.listen(self._on_change)

    def _on_change(self, old: Plain | None, new: Plain | None) -> None:
        if new is None and old is not None:
            self._recommended.pop(old.key, None)
            self._scaled.pop(old.key, None)
        elif new is not None and (old is None or old.spec != new.spec):
            self.queue.add(new.key)

    async def reconcile(self, key: str) -> None:
        item = self._autoscalers.get(key)
        if item is None or item.is_terminating:
            return
        self.queue.add_after(key, SYNC_SECONDS)
        conditions: list[Json] = list(item.status.get("conditions") or ())
        status: Json = {"observedGeneration": item.metadata.generation}
        try:
            path = self._scale_path(item)
            scale: Json = await self.stores.api.get_json(path)
        except ApiError as error:
            text = f"the HPA controller was unable to get the target's current scale: {error.message}"
            self.record(AUTOSCALERS, item, "FailedGetScale", error.message, "Warning")
            conditions = self._say(conditions, "AbleToScale", "False", "FailedGetScale", text)
            await self._write(item, {**status, "conditions": conditions})
            self._retry_if_new(item)
            return
        current = (scale.get("spec") or {}).get("replicas", 0)
        conditions = self._say(conditions, "AbleToScale", "True", "SucceededGetScale", GOT_SCALE)
        wanted, why = current, ""
        if current == 0 and item.spec.get("minReplicas", 1) != 0:
            text = "scaling is disabled since the replica count of the target is zero"
            conditions = self._say(conditions, "ScalingActive", "False", "ScalingDisabled", text)
        else:
            try:
                best = await self._propose(item, scale, current, status)
                text = f"the HPA was able to successfully calculate a replica count from {best.text}"
                conditions = self._say(conditions, "ScalingActive", "True", "ValidMetricFound", text)
                why = f"{best.text} above target" if best.replicas > current else "All metrics below target"
                wanted = best.replicas
            except MetricError as error:
                text = f"the HPA was unable to compute the replica count: {error.message}"
                self.record(AUTOSCALERS, item, error.reason, error.message, "Warning")
                conditions = self._say(conditions, "ScalingActive", "False", error.reason, text)
                self._retry_if_new(item)
            wanted, conditions = self._limit(item, current, wanted, conditions)
        if wanted != current:
            await self.stores.api.request(
                "PATCH", path, {"spec": {"replicas": wanted}}, content_type=MERGE_PATCH
            )
            text = f"the HPA controller was able to update the target scale to {wanted}"
            conditions = self._say(conditions, "AbleToScale", "True", "SucceededRescale", text)
            reason = why or "Current number of replicas is outside of the limits"
            self.record(AUTOSCALERS, item, "SuccessfulRescale", f"New size: {wanted}; reason: {reason}")
            self._scaled.setdefault(key, []).append((self.clock.now(), wanted - current))
            status["lastScaleTime"] = self.clock.stamp()
        status |= {"currentReplicas": current, "desiredReplicas": wanted, "conditions": conditions}
        await self._write(item, status)

    def _retry_if_new(self, item: Plain) -> None:
        """Its target is often created together with it, and has no pods that run yet."""
        now = self.clock.now()
        if now - parse_time(item.metadata.creation_timestamp or wire_time(now)) < SYNC_SECONDS:
            self.queue.add_after(item.key, RETRY_SECONDS)

    def _say(self, conditions: list[Json], kind: str, status: str, reason: str, text: str) -> list[Json]:
        return with_condition(conditions, kind, status, reason, text, self.clock.stamp())

    async def _write(self, item: Plain, status: Json) -> None:
        if any(
            encode_sorted(item.status.get(name)) != encode_sorted(value) for name, value in status.items()
        ):
            await self._autoscalers.patch_status(item, status)

    def _scale_path(self, item: Plain) -> str:
        target = item.spec["scaleTargetRef"]
        kind = self._discovered.find(target.get("apiVersion", "v1"), target["kind"])
        if kind is None:
            raise ApiError(
                404,
                "NotFound",
                f'no matches for kind "{target["kind"]}" in group "{target.get("apiVersion", "")}"',
            )
        root = kind.path.rpartition("/")[0]
        return f"{root}/namespaces/{item.namespace}/{kind.plural}/{target['name']}/scale"

    async def _propose(self, item: Plain, scale: Json, current: int, status: Json) -> Proposal:
        """The highest number that any metric asks for."""
        chosen = _select((scale.get("status") or {}).get("selector") or "")
        pods = [pod for pod in self._pods.of(item.namespace) if chosen.items() <= pod.labels.items()]
        pods = [pod for pod in pods if pod.is_active]
        usage = await self._usage(item.namespace)
        found: list[Proposal] = []
        failure: MetricError | None = None
        for metric in item.spec.get("metrics") or [DEFAULT_METRIC]:
            try:
                found.append(await self._measure(item, metric, pods, usage, current))
            except MetricError as error:
                failure = failure or error
        status["currentMetrics"] = [each.current for each in found]
        best = max(found, key=lambda each: each.replicas, default=None)
        if best is None or (failure is not None and best.replicas < current):
            raise failure or MetricError("FailedGetResourceMetric", "no metrics are set")
        return best

    async def _usage(self, namespace: str) -> dict[str, dict[str, Json]]:
        """Usage by pod and container."""
        try:
            listed = await self.stores.api.get_json(f"{METRICS}/namespaces/{namespace}/pods")
        except ApiError:
            return {}
        return {
            each["metadata"]["name"]: {part["name"]: part["usage"] for part in each["containers"]}
            for each in listed["items"]
        }

    async def _measure(
        self, item: Plain, metric: Json, pods: list[PodView], usage: dict[str, dict[str, Json]], current: int
    ) -> Proposal:
        kind = metric["type"]
        source = metric.get("resource") if kind == "Resource" else metric.get("containerResource")
        if source is None:
            text = f"unable to get metrics of type {kind}: no such metrics API is served"
            raise MetricError(f"FailedGet{kind}Metric", text)
        name, target, only = source["name"], source["target"], source.get("container")
        measured = {
            pod.name: sum(
                _thousandths(each.get(name, "0"))
                for part, each in usage[pod.name].items()
                if only in (None, part)
            )
            for pod in pods
            if pod.name in usage and pod.is_ready
        }
        if not measured:
            why = "did not receive metrics for targeted pods (pods might be unready)"
            raise MetricError("FailedGetResourceMetric", f"failed to get {name} utilization: {why}")
        average = sum(measured.values()) / len(measured)
        shown: Json = {"averageValue": canonical(round(average * 1_000_000))}
        if target["type"] == "Utilization":
            requests = await self._requests(item.namespace, measured, name, only)
            share = sum(measured.values()) * 100 // requests
            ratio = share / target["averageUtilization"]
            shown["averageUtilization"] = share
            text = f"{name} resource utilization (percentage of request)"
        else:
            ratio = average / _thousandths(target["averageValue"])
            text = f"{name} resource"
        missing = len(pods) - len(measured)
        replicas = current
        if abs(ratio - 1) > TOLERANCE:
            # Pods without measurements count as idle when there are to be more, as right when fewer.
            spread = ratio * len(measured) / len(pods) if ratio > 1 and missing else ratio
            replicas = math.ceil(spread * len(pods)) if spread > 1 or ratio < 1 else current
        field = kind[0].lower() + kind[1:]
        held = {"container": only} if only else {}
        return Proposal(replicas, text, {"type": kind, field: {"name": name, "current": shown, **held}})

    async def _requests(self, namespace: str, pods: dict[str, int], resource: str, only: str | None) -> int:
        total = 0
        listed = await self.stores.api.get_json(f"/api/v1/namespaces/{namespace}/pods")
        for pod in listed["items"]:
            name = pod["metadata"]["name"]
            if name not in pods:
                continue
            for container in pod["spec"]["containers"]:
                if only not in (None, container["name"]):
                    continue
                amount = ((container.get("resources") or {}).get("requests") or {}).get(resource)
                if amount is None:
                    text = f"missing request for {resource} in container {container['name']} of Pod {name}"
                    raise MetricError(
                        "FailedGetResourceMetric", f"failed to get {resource} utilization: {text}"
                    )
                total += _thousandths(amount)
        return max(total, 1)

    def _limit(
        self, item: Plain, current: int, wanted: int, conditions: list[Json]
    ) -> tuple[int, list[Json]]:
        """Within the window, the policies and the limits of the autoscaler."""
        now, behavior = self.clock.now(), item.spec.get("behavior") or {}
        down, up = behavior.get("scaleDown") or {}, behavior.get("scaleUp") or {}
        kept = [each for each in self._recommended.get(item.key, ()) if each[0] > now - 3600]
        kept.append((now, wanted))
        self._recommended[item.key] = kept
        low = max(
            number for at, number in kept if at >= now - down.get("stabilizationWindowSeconds", DOWN_WINDOW)
        )
        high = min(number for at, number in kept if at >= now - up.get("stabilizationWindowSeconds", 0))
        if wanted < current and low > wanted:
            text = RECENT.format("higher", "highest")
            conditions = self._say(conditions, "AbleToScale", "True", "ScaleDownStabilized", text)
            wanted = min(low, current)
        elif wanted > current and high < wanted:
            text = RECENT.format("lower", "lowest")
            conditions = self._say(conditions, "AbleToScale", "True", "ScaleUpStabilized", text)
            wanted = max(high, current)
        else:
            text = "recommended size matches current size"
            conditions = self._say(conditions, "AbleToScale", "True", "ReadyForNewScale", text)
        if wanted > current:
            wanted = min(wanted, self._limit_change(item.key, current, up, UP_POLICIES, 1))
        elif wanted < current:
            wanted = max(wanted, self._limit_change(item.key, current, down, DOWN_POLICIES, -1))
        least, most = item.spec.get("minReplicas", 1), item.spec["maxReplicas"]
        said = ("False", "DesiredWithinRange", "the desired count is within the acceptable range")
        if wanted < least:
            said = (
                "True",
                "TooFewReplicas",
                "the desired replica count is less than the minimum replica count",
            )
        elif wanted > most:
            said = (
                "True",
                "TooManyReplicas",
                "the desired replica count is more than the maximum replica count",
            )
        return min(max(wanted, least), most), self._say(conditions, "ScalingLimited", *said)

    def _limit_change(self, key: str, current: int, rules: Json, default: list[Json], sign: int) -> int:
        """How far policies let the replicas go in one direction."""
        if rules.get("selectPolicy") == "Disabled":
            return current
        now, limits = self.clock.now(), list[int]()
        for policy in rules.get("policies") or default:
            recent = sum(
                change
                for at, change in self._scaled.get(key, ())
                if at > now - policy["periodSeconds"] and change * sign > 0
            )
            start = current - recent
            if policy["type"] == "Pods":
                limits.append(start + sign * policy["value"])
            elif sign > 0:
                limits.append(math.ceil(start * (1 + policy["value"] / 100)))
            else:
                limits.append(math.floor(start * (1 - policy["value"] / 100)))
        takes_most = rules.get("selectPolicy", "Max") == "Max"
        return max(limits) if takes_most == (sign > 0) else min(limits)


GOT_SCALE = "the HPA controller was able to get the target's current scale"
RECENT = "recent recommendations were {} than current one, applying the {} recent recommendation"
UP_POLICIES: list[Json] = [
    {"type": "Pods", "value": 4, "periodSeconds": 15},
    {"type": "Percent", "value": 100, "periodSeconds": 15},
]
DOWN_POLICIES: list[Json] = [{"type": "Percent", "value": 100, "periodSeconds": 15}]


def _thousandths(amount: str | int) -> int:
    return milli_units(parse(amount))


def _select(text: str) -> dict[str, str]:
    """The labels of a selector that names only values, as those of workloads do."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {name: value.lstrip("=") for name, _, value in pairs}
