"""After a bind that seemed to fail: where the pod is.

An answer may be lost although the bind was done, and a refusal may mean that the pod has a node already. As
long as that is not known the room stays taken: given away meanwhile, it could be given away twice.
"""

from __future__ import annotations

from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, NotFound, Unreachable
from stowplan.client.resources import PODS
from stowplan.scheduler.host import Host
from stowplan.scheduler.patience import Patience


async def node_after(host: Host, placed: Pod, error: ApiError) -> str | None:
    """The node that the pod has now, empty if it has none; None if the pod is gone.

    Asks until the API server answers, or the watch has brought news of the pod.
    """
    patience = Patience()
    if isinstance(error, Unreachable):
        await patience.pause(error)  # the server may be at it still
    while host.cluster.is_assumed(placed):
        try:
            answer = await host.api.request("GET", PODS.item(placed.namespace, placed.name))
        except NotFound:
            return None
        except ApiError as refusal:
            if not await patience.pause(refusal):
                return ""
        else:
            found = Pod.decode(answer.data)
            return found.node_name if found.uid == placed.uid else None
    known = host.cluster.pod(placed.uid)
    return None if known is None else known.node_name
