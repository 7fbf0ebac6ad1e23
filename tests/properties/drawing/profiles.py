"""Random scheduler profiles: the plugins at work, their weights and arguments."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from twins.cycle import TWINS, WEIGHTS, Profile

from drawing.nodes import ALLOCATABLE
from drawing.pods import PREFERRED, REQUIRED
from drawing.words import TOPOLOGY_KEYS, Json, few, node_terms

SHAPES = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 10)),
    min_size=1,
    max_size=4,
    unique_by=lambda point: point[0],
).map(lambda points: [{"utilization": use, "score": score} for use, score in sorted(points)])
RESOURCES = few(
    st.fixed_dictionaries(
        {"name": st.sampled_from(sorted(ALLOCATABLE))}, optional={"weight": st.sampled_from((1, 2, 3, 100))}
    ),
    4,
)


def strategies() -> st.SearchStrategy[Json]:
    plain = st.fixed_dictionaries(
        {"type": st.sampled_from(("LeastAllocated", "MostAllocated"))}, optional={"resources": RESOURCES}
    )
    ratio = st.fixed_dictionaries(
        {
            "type": st.just("RequestedToCapacityRatio"),
            "requestedToCapacityRatio": SHAPES.map(lambda shape: {"shape": shape}),
        },
        optional={"resources": RESOURCES},
    )
    return st.one_of(plain, ratio)


def _affinity() -> st.SearchStrategy[Json]:
    terms = few(node_terms(mistakes=False), 2)
    preferred = st.fixed_dictionaries({"weight": st.sampled_from((1, 40)), "preference": node_terms(False)})
    return st.fixed_dictionaries(
        {},
        optional={
            REQUIRED: terms.map(lambda found: {"nodeSelectorTerms": found}),
            PREFERRED: few(preferred, 2),
        },
    )


def _default_constraints() -> st.SearchStrategy[Json]:
    each = st.tuples(
        st.sampled_from(TOPOLOGY_KEYS),
        st.sampled_from(("DoNotSchedule", "ScheduleAnyway")),
        st.integers(1, 4),
    )
    return st.lists(each, max_size=3, unique_by=lambda one: one[:2]).map(
        lambda found: {
            "defaultingType": "List",
            "defaultConstraints": [
                {"topologyKey": key, "whenUnsatisfiable": action, "maxSkew": skew}
                for key, action, skew in found
            ],
        }
    )


ARGS: dict[str, st.SearchStrategy[Json]] = {
    "NodeAffinity": st.fixed_dictionaries({}, optional={"addedAffinity": _affinity()}),
    "NodeResourcesFit": st.fixed_dictionaries(
        {},
        optional={
            "ignoredResources": st.just(["other.org/nic"]),
            "ignoredResourceGroups": st.just(["example.com"]),
            "scoringStrategy": strategies(),
        },
    ),
    "NodeResourcesBalancedAllocation": st.lists(
        st.sampled_from(sorted(ALLOCATABLE)), max_size=4, unique=True
    ).map(lambda names: {"resources": [{"name": name, "weight": 1} for name in names]}),
    "PodTopologySpread": st.one_of(st.just({}), _default_constraints()),
    "InterPodAffinity": st.fixed_dictionaries(
        {},
        optional={
            "hardPodAffinityWeight": st.sampled_from((0, 1, 5, 100)),
            "ignorePreferredTermsOfExistingPods": st.booleans(),
        },
    ),
}


def alone(plugin: str, args: Json | None = None) -> Profile:
    """A profile of one plugin."""
    return Profile((plugin,), {}, {plugin: args} if args else {}, claims=False, preempts=False)


def only(plugin: str) -> st.SearchStrategy[Profile]:
    """The same, with arguments."""
    return ARGS.get(plugin, st.just({})).map(lambda args: alone(plugin, args))


def profiles() -> st.SearchStrategy[Profile]:
    """The default profile, with arguments and weights of its own."""
    weights = st.fixed_dictionaries(
        {}, optional={name: st.integers(1, 9) for name, twin in TWINS.items() if twin.scores}
    )
    args = st.fixed_dictionaries({}, optional=ARGS)
    return st.tuples(weights, args).map(lambda both: Profile(weights=WEIGHTS | both[0], args=both[1]))


def configuration(profile: Profile) -> Json:
    """The profile as a file would have it."""
    plugins: dict[str, Any] = {}
    if set(profile.plugins) != set(TWINS):
        frame = ["PrioritySort", "DefaultBinder"] + ["DefaultPreemption"] * profile.preempts
        enabled = [{"name": name} for name in (*frame, *profile.plugins)]
        plugins["multiPoint"] = {"disabled": [{"name": "*"}], "enabled": enabled}
    elif profile.weights != WEIGHTS:
        scorers = [{"name": name, "weight": weight} for name, weight in profile.weights.items()]
        plugins["score"] = {"enabled": scorers}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "plugins": plugins,
                "pluginConfig": [{"name": name, "args": args} for name, args in profile.args.items()],
            }
        ],
    }
