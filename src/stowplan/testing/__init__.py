"""The kit for tests of policies: a cluster in three lines, where a pod lands, and why.

    def test_prefers_the_labelled_node():
        cluster = a_cluster(ScoreByLabel)
        cluster.node("a", labels={"score-by-label": "10"}).node("b")
        cluster.place("web", cpu="1").lands_on("a")

A check that fails shows the whole explanation of the decision. `stowplan.testing.properties` has what must
hold for every cluster; it needs hypothesis, the rest needs nothing but stowplan.
"""

from stowplan.bench.plugin_cost import PluginCost, cost_of
from stowplan.testing.cluster import PolicyCluster, a_cluster, a_node, a_pod
from stowplan.testing.outcome import Outcome

__all__ = ["Outcome", "PluginCost", "PolicyCluster", "a_cluster", "a_node", "a_pod", "cost_of"]
