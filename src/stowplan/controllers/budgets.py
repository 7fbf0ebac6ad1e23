"""PodDisruptionBudgets: how many of their pods may be evicted now."""

from __future__ import annotations

from stowplan.api.meta import Json, parse_time
from stowplan.client.errors import ApiError
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import (
    BUDGETS,
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    Plain,
    PodView,
)
from stowplan.controllers.owned_pods import differs, selector_in, share_of, with_condition
from stowplan.controllers.stores import Stores, by_namespace

EVICTED_SECONDS = 120.0
"""An eviction that was granted and has not become a deletion by then does not count any more."""


class Budgets(Controller):
    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._budgets, pods = self.store(BUDGETS), self.store(PODS)
        self._scales = {
            kind.name: self.store(kind) for kind in (REPLICA_SETS, STATEFUL_SETS, REPLICATION_CONTROLLERS)
        }
        self._deployments = self.store(DEPLOYMENTS)
        self._pods, self._of_namespace = pods.index(by_namespace), self._budgets.index(by_namespace)
        self._budgets.listen_keys(self.queue.add)
        pods.listen(self._on_pod)
        for store in (*self._scales.values(), self._deployments):
            store.listen(self._on_scale)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        for budget in self._of_namespace.of(pod.namespace) if pod is not None else ():
            if any(each is not None and selector_in(budget.spec).matches(each.labels) for each in (old, new)):
                self.queue.add(budget.key)

    def _on_scale(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and (old is None or old.replicas != new.replicas):
            for budget in self._of_namespace.of(new.namespace):
                self.queue.add(budget.key)

    async def reconcile(self, key: str) -> None:
        budget = self._budgets.get(key)
        if budget is None or budget.is_terminating:
            return
        selector = selector_in(budget.spec)
        pods = [pod for pod in self._pods.of(budget.namespace) if selector.matches(pod.labels)]
        counted = [pod for pod in pods if not pod.is_finished]
        disrupted = self._disrupted_pods(budget, counted)
        expected, wanted = self._expectations(budget, counted)
        healthy = sum(
            pod.is_ready and not pod.is_terminating and pod.name not in disrupted for pod in counted
        )
        allowed = max(healthy - wanted, 0) if expected else 0
        reason = "SufficientPods" if allowed else "InsufficientPods"
        answer = "True" if allowed else "False"
        at, known = self.clock.stamp(), budget.status.get("conditions", [])
        generation = {"observedGeneration": budget.metadata.generation}
        conditions = with_condition(known, "DisruptionAllowed", answer, reason, "", at)
        conditions = [{**each, **generation} for each in conditions]
        status: Json = {
            **generation,
            "expectedPods": expected,
            "desiredHealthy": wanted,
            "currentHealthy": healthy,
            "disruptionsAllowed": allowed,
            "conditions": conditions,
        }
        gone = set(budget.status.get("disruptedPods") or ()) - set(disrupted)
        if differs(budget.status, status) or gone or "disruptionsAllowed" not in budget.status:
            status["disruptedPods"] = {**disrupted, **dict.fromkeys(gone)}
            await self._budgets.patch_status(budget, status)

    def _disrupted_pods(self, budget: Plain, pods: list[PodView]) -> dict[str, str]:
        """Evictions that were granted and that the pods do not show yet."""
        live = {pod.name for pod in pods if not pod.is_terminating}
        found = {}
        for name, since in (budget.status.get("disruptedPods") or {}).items():
            left = parse_time(since) + EVICTED_SECONDS - self.clock.now()
            if name in live and left > 0:
                found[name] = since
                self.queue.add_after(budget.key, left)
        return found

    def _expectations(self, budget: Plain, pods: list[PodView]) -> tuple[int, int]:
        """How many pods there should be, and how many of them must be healthy."""
        least, most = budget.spec.get("minAvailable"), budget.spec.get("maxUnavailable")
        if isinstance(least, int):
            return len(pods), least
        expected = self._expected_count(pods)
        if most is not None:
            return expected, max(expected - share_of(most, expected, round_up=True), 0)
        return expected, share_of(least, expected, round_up=True)

    def _expected_count(self, pods: list[PodView]) -> int:
        """The sum of what the pods' controllers want; pods without one are not counted."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = pod.metadata.controller()
            if owner is None:
                continue
            if owner.kind not in self._scales:
                text = f"{owner.kind} {owner.name} has no scale: say minAvailable as a number"
                raise ApiError(0, "NoScale", text)
            item = self._scales[owner.kind].get(f"{pod.namespace}/{owner.name}")
            if item is None or item.uid != owner.uid:
                continue
            above = item.metadata.controller()
            if above is not None and above.kind == DEPLOYMENTS.name:
                item = self._deployments.get(f"{pod.namespace}/{above.name}") or item
            scales[item.uid] = item.replicas
        return sum(scales.values())
