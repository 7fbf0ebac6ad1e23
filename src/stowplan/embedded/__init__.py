"""A cluster in this process, for tests, demonstrations and `stowplan up`.

    async with embedded_cluster(nodes=3) as cluster:
        await cluster.create(pod)
        assert await cluster.bound("web") == "node-1"
        print(cluster.explain("web"))

No sockets, no threads: API server, simulated nodes, controllers and scheduler share the event loop.
`KubeCluster` is the same in a thread of its own, behind HTTPS, for any client and for synchronous tests.
"""

from stowplan.embedded.cluster import EmbeddedCluster, embedded_cluster
from stowplan.embedded.kube_cluster import KubeCluster
from stowplan.embedded.pool import InProcess
from stowplan.kubelet import Behaviour, NodeTemplate

__all__ = ["Behaviour", "EmbeddedCluster", "InProcess", "KubeCluster", "NodeTemplate", "embedded_cluster"]
