"""Bindings that an extender makes in the place of the bind plugins."""

from __future__ import annotations

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, Unreachable
from stowplan.client.extenders import ExtenderError
from stowplan.scheduler.attempt import Failure
from stowplan.scheduler.bind_outcome import node_after
from stowplan.scheduler.host import Host


async def bind_by_extender(host: Host, placed: Pod, node_name: str) -> tuple[bool, Failure | None]:
    """Whether an extender has bound the pod, and what went wrong; neither if it concerns none of them."""
    for extender in host.extended.extenders if host.extended is not None else ():
        if not extender.binds or not extender.is_interested(placed):
            continue
        try:
            await extender.bind(placed, node_name)
        except ExtenderError as error:
            text = str(error)
            failed = Unreachable(text) if error.is_unknown else ApiError(0, "Refused", text)
            node_now = await node_after(host, placed, failed)
            if node_now is None or node_now not in ("", node_name):
                return False, Failure(text, is_moot=True)
            if not node_now and extender.config.ignorable:
                log.log(2, "Skipping extender that failed to bind", pod=placed, err=error)
                continue
            return bool(node_now), None if node_now else Failure(text)
        return True, None
    return False, None
