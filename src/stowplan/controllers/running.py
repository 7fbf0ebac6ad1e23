"""All controllers that make a cluster of an API server, on one set of watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stowplan.client.api import ApiClient
from stowplan.config.gates import (
    GENERIC_WORKLOAD,
    NO_GATES,
    WORKLOAD_CLAIMS,
    WORKLOAD_WITH_JOB,
    FeatureGates,
)
from stowplan.controllers.autoscalers import Autoscalers
from stowplan.controllers.budgets import Budgets
from stowplan.controllers.clock import Clock
from stowplan.controllers.cron_jobs import CronJobs
from stowplan.controllers.daemon_sets import DaemonSets
from stowplan.controllers.deployments import Deployments
from stowplan.controllers.discovery import Discovered
from stowplan.controllers.endpoints import EndpointSlices
from stowplan.controllers.engine import Controller
from stowplan.controllers.garbage import QUARANTINE_SECONDS, Garbage, PodCollector
from stowplan.controllers.groups import GroupDialects, GroupProtection
from stowplan.controllers.jobs import Jobs
from stowplan.controllers.kinds import POLICIES
from stowplan.controllers.namespaces import NamespaceContents, Namespaces
from stowplan.controllers.node_lifecycle import GRACE_SECONDS, NodeLifecycle, TaintEviction
from stowplan.controllers.pod_claims import ClaimHolders, GroupClaims, PodClaims
from stowplan.controllers.quota import Quotas
from stowplan.controllers.replica_sets import ReplicaSets, ReplicationControllers
from stowplan.controllers.stateful_sets import StatefulSets
from stowplan.controllers.stores import Stores
from stowplan.controllers.volumes import Volumes


class PolicyStatus(Controller):
    """Clients wait for it before they rely on a policy.

    The API server rejects expressions that do not compile. Their types are not checked against the kinds that
    a policy matches, so there are no warnings.
    """

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._policies = self.store(POLICIES)
        self._policies.listen_keys(self.queue.add)

    async def reconcile(self, key: str) -> None:
        policy = self._policies.get(key)
        if policy is None or policy.is_terminating:
            return
        generation = policy.metadata.generation
        if policy.status.get("observedGeneration") != generation:
            status = {"observedGeneration": generation, "typeChecking": {}}
            await self._policies.patch_status(policy, status)


class Controllers:
    """The embedded cluster's kube-controller-manager: `run` continues until it is cancelled.

    Made inside a running event loop. The client needs the rights to do everything, and a request budget that
    is not in the way. `certificate` is the API server's, in PEM, if it has one. `gates` are those that are
    on.
    """

    def __init__(
        self,
        api: ApiClient,
        clock: Clock | None = None,
        *,
        node_grace_seconds: float | Callable[[], float] = GRACE_SECONDS,
        quarantine_seconds: float = QUARANTINE_SECONDS,
        certificate: str = "",
        gates: FeatureGates = NO_GATES,
    ) -> None:
        self.stores = Stores(api, clock or Clock())
        discovered = Discovered(api)
        self.controllers = (
            Deployments(self.stores),
            ReplicaSets(self.stores),
            ReplicationControllers(self.stores),
            StatefulSets(self.stores),
            DaemonSets(self.stores),
            Jobs(self.stores, with_groups=WORKLOAD_WITH_JOB in gates),
            CronJobs(self.stores),
            EndpointSlices(self.stores),
            NamespaceContents(self.stores, certificate),
            Volumes(self.stores),
            Budgets(self.stores),
            NodeLifecycle(self.stores, node_grace_seconds),
            TaintEviction(self.stores),
            PodCollector(self.stores, quarantine_seconds),
            PodClaims(self.stores, with_groups=WORKLOAD_CLAIMS in gates),
            ClaimHolders(self.stores, with_groups=WORKLOAD_CLAIMS in gates),
            Garbage(self.stores, discovered),  # after the others, whose stores it shares
            Namespaces(self.stores, discovered),
            Autoscalers(self.stores, discovered),
            Quotas(self.stores, discovered),
            PolicyStatus(self.stores),
            GroupDialects(self.stores),
            *((GroupProtection(self.stores),) if GENERIC_WORKLOAD in gates else ()),
            *((GroupClaims(self.stores),) if WORKLOAD_CLAIMS in gates else ()),
        )

    @property
    def is_idle(self) -> bool:
        """Whether no controller has anything to do before a timer or a change."""
        return all(each.is_idle for each in self.controllers)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stores.run())
            for controller in self.controllers:
                group.create_task(controller.run())
