"""Two functions of one's own: `python same_rack.py` serves them at port 8888."""

from stowplan.extender import Node, predicate, priority, serve


@predicate
def has_rack(pod, node: Node):
    """Nodes without a rack get no pods."""
    return "example.com/rack" in node.labels or "the node is in no rack"


@priority
def same_rack(pod, node: Node, *, points: int = 10) -> int:
    """Prefers the rack that the pod names."""
    wanted = pod.annotations.get("example.com/rack", "")
    return points if node.labels.get("example.com/rack") == wanted else 0


if __name__ == "__main__":
    serve(has_rack, same_rack)
