"""Things that happen to a cluster, and what should be left of it afterwards."""

from __future__ import annotations

from typing import Any

from drawing import nodes, pods
from drawing.clusters import Scene, namespaces, owners, scenes
from drawing.profiles import configuration, profiles
from drawing.words import Json
from hypothesis import strategies as st

from make import planner
from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.cycle import Planner

NODE_NAMES = tuple(f"n{index:02}" for index in range(6))
POD_NAMES = tuple(f"q{index}" for index in range(8))
Step = tuple[Any, ...]


def steps(node_kinds: list[Json], pod_kinds: list[Json], others: list[Json]) -> st.SearchStrategy[list[Step]]:
    """Nodes and pods come, change and go, pods are placed, assumed or nominated, and decisions are made."""
    node, pod = st.sampled_from(NODE_NAMES), st.sampled_from(POD_NAMES)
    node_kind, pod_kind = st.sampled_from(node_kinds), st.sampled_from(pod_kinds)
    kinds = [
        st.tuples(st.just("node"), node, node_kind),
        st.tuples(st.just("node"), node, node_kind),
        st.tuples(st.just("node gone"), node),
        st.tuples(st.just("pod"), pod, node, pod_kind, st.booleans()),
        st.tuples(st.just("pod gone"), pod),
        st.tuples(st.just("leaving"), pod),
        st.tuples(st.just("resized"), pod, st.sampled_from(("100m", "3"))),
        st.tuples(st.just("assume"), pod, node, pod_kind),
        st.tuples(st.just("assume"), pod, node, pod_kind),
        st.tuples(st.just("forget"), pod),
        st.tuples(st.just("confirm"), pod, st.sampled_from(({}, {"app": "web"}, {"zone": "z1"}))),
        st.tuples(st.just("nominate"), pod, node, pod_kind),
        st.tuples(st.just("nomination gone"), pod),
        st.tuples(st.just("decide"), st.integers(0, 2)),
        st.tuples(st.just("decide"), st.integers(0, 2)),
        st.tuples(st.just("decide"), st.integers(0, 2)),
    ]
    if others:
        kinds.append(st.tuples(st.just("other"), st.sampled_from(others), st.booleans()))
    return st.lists(st.one_of(kinds), min_size=15, max_size=50)


@st.composite
def histories(draw: Any, parts: frozenset[str] = frozenset()) -> History:
    """With `parts`, pods differ in nothing else; without, they differ in what is drawn."""
    parts = parts or frozenset(draw(st.sets(st.sampled_from(sorted(pods.ALL)), min_size=1, max_size=5)))
    node_parts = frozenset(draw(st.sets(st.sampled_from(sorted(nodes.ALL)))))
    scene = draw(scenes(parts, node_parts, most_nodes=6, most_pods=6))
    node_kinds = draw(st.lists(nodes.node_kinds(node_parts), min_size=1, max_size=3))
    pod_kinds = draw(st.lists(pods.pod_kinds(parts), min_size=1, max_size=4))
    others = [*draw(namespaces()), *draw(owners())] if parts & {"near", "owners"} else []
    return History(scene, configuration(draw(profiles())), draw(steps(node_kinds, pod_kinds, others)))


class History:
    """A cluster that things happen to, and beside it plain objects to which the same happens."""

    def __init__(self, scene: Scene, config: Json, steps: list[Step]) -> None:
        objects = [item for item in scene.objects if item["kind"] != "Pod" or not _ports(item)]
        self.scene, self.config, self.steps = scene, config, steps
        self.planner = planner(objects, config)
        self.cluster = self.planner.cluster
        self.pending = [Pod.decode(each) for each in scene.pending]
        self.nodes = {item["metadata"]["name"]: item for item in objects if item["kind"] == "Node"}
        self.pods = {item["metadata"]["uid"]: item for item in objects if item["kind"] == "Pod"}
        self.assumed: set[str] = set()
        self.nominated: dict[str, tuple[Pod, str]] = {}
        self.others = {_key(item): item for item in objects if item["kind"] not in ("Node", "Pod")}

    def __repr__(self) -> str:
        return f"History({self.scene!r}, {self.config!r}, {self.steps!r})"

    def run(self) -> None:
        for step in self.steps:
            self.take(step)

    def take(self, step: Step) -> None:
        match step:
            case ("node", name, kind):
                self.nodes[name] = nodes.node(name, kind)
                self.cluster.apply(object_of(self.nodes[name]))
            case ("node gone", name) if name in self.nodes:
                self.cluster.remove(object_of(self.nodes.pop(name)))
            case ("pod", name, node_name, kind, leaving):
                self.put(pods.pod(name, kind, node=node_name, leaving=leaving))
            case ("pod gone", name) if f"uid-{name}" in self.pods:
                self.cluster.remove(self.let_go(name))
            case ("leaving", name) if (plain := self.confirmed(name)) is not None:
                when = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
                self.put(plain | {"metadata": plain["metadata"] | when})
            case ("resized", name, amount) if (plain := self.confirmed(name)) is not None:
                given = {"name": "c0", "resources": {"requests": {"cpu": amount}}}
                self.put(plain | {"status": plain["status"] | {"containerStatuses": [given]}})
            case ("assume", name, node_name, kind) if f"uid-{name}" not in self.pods:
                self.assume(name, node_name, kind)
            case ("forget", name) if f"uid-{name}" in self.assumed:
                self.cluster.forget_pod(self.let_go(name))
            case ("confirm", name, labels) if f"uid-{name}" in self.assumed:
                plain = self.pods[f"uid-{name}"]  # an API server adds the labels of the node's zone
                more = {"labels": plain["metadata"].get("labels", {}) | labels}
                plain = self.pods[f"uid-{name}"] = plain | {"metadata": plain["metadata"] | more}
                self.cluster.add_pod(Pod.decode(plain))
                self.assumed.discard(f"uid-{name}")
            case ("nominate", name, node_name, kind):
                nominated = Pod.decode(pods.pod(f"nominated-{name}", kind))
                self.nominated.pop(nominated.uid, None)  # the last to come is the last in line
                self.nominated[nominated.uid] = nominated, node_name
                self.planner.nominations.put(nominated, node_name)
            case ("nomination gone", name) if f"uid-nominated-{name}" in self.nominated:
                self.planner.nominations.remove(self.nominated.pop(f"uid-nominated-{name}")[0])
            case ("decide", which):
                self.planner.decide(self.pending[which])
            case ("other", item, True):
                self.others[_key(item)] = item
                self.cluster.apply(object_of(item))
            case ("other", item, False) if _key(item) in self.others:
                self.cluster.remove(object_of(self.others.pop(_key(item))))

    def put(self, plain: Json) -> None:
        """A pod that is new, or known and now another; moving an assumed one confirms it elsewhere."""
        if self.takes_no_shared_port(plain, plain["spec"]["nodeName"]):
            self.cluster.apply(Pod.decode(plain))
            self.pods[plain["metadata"]["uid"]] = plain
            self.assumed.discard(plain["metadata"]["uid"])

    def assume(self, name: str, node_name: str, kind: Json) -> None:
        plain = pods.pod(name, kind)
        if self.takes_no_shared_port(plain, node_name):
            self.cluster.assume_pod(Pod.decode(plain), node_name)
            self.pods[f"uid-{name}"] = pods.pod(name, kind, node=node_name)
            self.assumed.add(f"uid-{name}")

    def let_go(self, name: str) -> Pod:
        self.assumed.discard(f"uid-{name}")
        return Pod.decode(self.pods.pop(f"uid-{name}"))

    def confirmed(self, name: str) -> Json | None:
        uid = f"uid-{name}"
        return None if uid in self.assumed else self.pods.get(uid)

    def takes_no_shared_port(self, plain: Json, node_name: str) -> bool:
        """Of two pods with one port the first to leave frees it: a matter of history, so not here."""
        return not any(
            _ports(plain) & _ports(other)
            for uid, other in self.pods.items()
            if other["spec"]["nodeName"] == node_name and uid != plain["metadata"]["uid"]
        )

    def from_scratch(self) -> Planner:
        """A planner over the same objects; pods arrive in the order in which their nodes list them."""
        listed = [pod.uid for node in self.cluster.nodes for pod in node.pods]
        assert sorted(listed) == sorted(
            uid for uid, plain in self.pods.items() if plain["spec"]["nodeName"] in self.nodes
        )
        homeless = [uid for uid in self.pods if uid not in set(listed)]
        in_order = [self.pods[uid] for uid in (*listed, *homeless)]
        found = planner([*self.nodes.values(), *in_order, *self.others.values()], self.config)
        for pod, node_name in self.nominated.values():
            found.nominations.put(pod, node_name)
        return found


def _key(item: Json) -> str:
    return f"{item['kind']} {item['metadata'].get('namespace')}/{item['metadata']['name']}"


def _ports(plain: Json) -> set[Any]:
    return set(Pod.decode(plain).shape.ports)
