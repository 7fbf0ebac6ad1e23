"""The status of ValidatingAdmissionPolicies: that they were looked at."""

from __future__ import annotations

from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import POLICIES
from stowplan.controllers.stores import Stores


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
