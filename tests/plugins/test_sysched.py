"""SySched: pods near those that use the same system calls."""

from __future__ import annotations

import msgspec
import pytest
from alone import planner as alone
from alone import plugin_of, scores
from hypothesis import given, settings
from hypothesis import strategies as st

from make import make_node, make_pod
from stowplan import log
from stowplan.api.meta import decode
from stowplan.api.pod import Pod
from stowplan.embedded.cluster import embedded_cluster
from stowplan.errors import ConfigError
from stowplan.plugins.community.sysched import MAX_NAMES, MAX_SYSCALLS, SeccompProfile, profiles_of

NAME = "SySched"
ALLOW, LOG, DENY = "SCMP_ACT_ALLOW", "SCMP_ACT_LOG", "SCMP_ACT_ERRNO"
KEY = "seccomp.security.alpha.kubernetes.io"
WITHOUT = "stowplan_sysched_pods_without_profile_total"


def profile(name, *calls, action=ALLOW, namespace="default", more=()):
    groups = [{"action": action, "names": list(calls)}, *more]
    spec = {"defaultAction": DENY, "syscalls": groups}
    return decode(SeccompProfile, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def localhost(name, namespace="default"):
    return {"seccompProfile": {"type": "Localhost", "localhostProfile": f"operator/{namespace}/{name}.json"}}


def pod(name="pod", uses="", **more):
    """A pod whose security context names a profile."""
    return make_pod(name, **({"securityContext": localhost(uses)} if uses else {}), **more)


NODES = (make_node("a"), make_node("b"), make_node("c"))
PROFILES = (profile("web", "read", "write"), profile("db", "read", "fsync", "mmap"))


def test_the_fewer_system_calls_differ_the_better():
    running = (pod("one", "web", node="a"), pod("two", "db", node="b"))
    planner = alone(NAME, *NODES, *PROFILES, *running)
    # a: nothing differs. b: the pod does not use fsync and mmap, the other one not write. c: nobody is there.
    assert scores(planner.decide(pod(uses="web"))) == {"a": 100, "b": 0, "c": 100}
    # a: write for the pod, fsync and mmap for the other one.
    assert scores(planner.decide(pod(uses="db"))) == {"a": 0, "b": 100, "c": 100}


def test_every_pod_of_a_node_counts():
    running = [pod(f"w{number}", "web", node="a") for number in range(3)] + [pod("x", "web", node="b")]
    planner = alone(NAME, *NODES, *PROFILES, *running)
    # a: write, and fsync and mmap for each of three: 7. b: 3.
    assert scores(planner.decide(pod(uses="db"))) == {"a": 0, "b": 100 - 300 // 7, "c": 100}


def test_pods_without_a_profile_count_with_the_default_one():
    everything = profile("all-syscalls", "read", "write", "fsync", "mmap", "ptrace")
    running = (make_pod("one", node="a"), pod("two", "web", node="b"))
    planner = alone(NAME, *NODES, *PROFILES, everything, *running)
    assert scores(planner.decide(make_pod())) == {"a": 100, "b": 0, "c": 100}
    # a: three that the pod does not use. b: none.
    assert scores(planner.decide(pod(uses="web"))) == {"a": 0, "b": 100, "c": 100}


def test_the_default_profile_of_the_arguments():
    mine = profile("mine", "read", "write", namespace="x")
    args = {"defaultProfileNamespace": "x", "defaultProfileName": "mine"}
    running = (pod("one", "web", node="a"), pod("two", "db", node="b"))
    planner = alone(NAME, *NODES, *PROFILES, mine, *running, args=args)
    assert scores(planner.decide(make_pod())) == {"a": 100, "b": 0, "c": 100}


def explained(planner, wanted):
    return list(planner.decide(wanted).notes)


def test_without_any_profile_all_nodes_are_equal():
    planner = alone(NAME, *NODES, make_pod("one", node="a"))
    assert scores(planner.decide(make_pod())) == {"a": 100, "b": 100, "c": 100}
    assert explained(planner, make_pod()) == [
        "SySched gives every node 100: no system calls of the pod are known, and the default profile "
        "default/all-syscalls does not exist or is empty."
    ]
    (found,) = planner.profiles.values()
    assert found.plugins[NAME].handle.counter(WITHOUT, "")[()] == 1


def test_a_profile_that_does_not_exist_is_named():
    planner = alone(NAME, *NODES, profile("all-syscalls", "read"))
    assert explained(planner, pod(uses="gone")) == ["SySched finds no SeccompProfile default/gone."]
    assert explained(planner, make_pod()) == []


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param(profile("p", "read", action=LOG), {"read"}, id="logged"),
        pytest.param(profile("p", "read", action=DENY), set(), id="denied"),
        pytest.param(
            profile("p", "read", more=[{"action": LOG, "names": ["read", "write"]}]),
            {"read", "write"},
            id="listed twice",
        ),
        pytest.param(decode(SeccompProfile, {"metadata": {"name": "p"}, "spec": {}}), set(), id="empty"),
        pytest.param(
            decode(SeccompProfile, {"metadata": {"name": "p"}, "spec": {"syscalls": [{}]}}),
            set(),
            id="no names",
        ),
    ],
)
def test_which_system_calls_a_profile_allows(calls, expected):
    planner = alone(NAME, *NODES, calls, profile("other", "exit"))
    (found,) = planner.profiles.values()
    plugin = found.plugins[NAME]
    namespace = calls.namespace or "default"
    wanted = make_pod(securityContext=localhost("p", namespace))
    assert plugin.sign_pod(wanted)[1].bit_count() == len(expected)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(make_pod(), (), id="none"),
        pytest.param(pod(uses="web"), ("default/web",), id="of the pod"),
        pytest.param(
            make_pod(containers=[{"name": "c", "securityContext": localhost("web", "x")}]),
            ("x/web",),
            id="own",
        ),
        pytest.param(
            make_pod(
                containers=[{"name": "c", "securityContext": localhost("web")}],
                securityContext=localhost("db"),
            ),
            ("default/db", "default/web"),
            id="both",
        ),
        pytest.param(
            make_pod(initContainers=[{"name": "i", "securityContext": localhost("web")}]),
            (),
            id="init container",
        ),
        pytest.param(
            make_pod(
                initContainers=[{"name": "i", "restartPolicy": "Always", "securityContext": localhost("web")}]
            ),
            ("default/web",),
            id="sidecar",
        ),
        pytest.param(
            make_pod(securityContext={"seccompProfile": {"type": "RuntimeDefault"}}), (), id="another type"
        ),
        pytest.param(
            make_pod(securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"}}),
            (),
            id="no namespace",
        ),
        pytest.param(make_pod(securityContext={"seccompProfile": None}), (), id="null"),
        pytest.param(make_pod(securityContext={"runAsUser": 1}), (), id="another context"),
        pytest.param(
            make_pod(metadata={"annotations": {f"{KEY}/pod": "localhost/operator/x/web.json"}}),
            ("x/web",),
            id="annotation",
        ),
        pytest.param(
            make_pod(
                metadata={
                    "annotations": {
                        f"container.{KEY}/b": "localhost/operator/x/web.v2.json",
                        f"container.{KEY}/a": "localhost/operator/y/db",
                        f"container.{KEY}/c": "runtime/default",
                        f"container.{KEY}/d": "localhost/",
                        "other": "localhost/operator/x/other.json",
                    }
                }
            ),
            ("x/web.v2", "y/db"),
            id="annotations",
        ),
    ],
)
def test_which_profiles_a_pod_names(made, expected):
    assert profiles_of(made) == expected


def test_profiles_of_the_same_name_in_two_namespaces_differ():
    other = profile("web", "ptrace", namespace="x")
    running = (pod("one", "web", node="a"), make_pod("two", node="b", securityContext=localhost("web", "x")))
    planner = alone(NAME, *NODES, *PROFILES, other, *running)
    assert scores(planner.decide(pod(uses="web"))) == {"a": 100, "b": 0, "c": 100}


def test_pods_of_the_same_name_in_two_namespaces_both_count():
    running = [
        make_pod(
            "same",
            namespace=namespace,
            node="a",
            metadata={"uid": namespace},
            securityContext=localhost("db"),
        )
        for namespace in ("x", "y")
    ]
    planner = alone(NAME, *NODES, *PROFILES, *running, pod("one", "db", node="b"))
    # a: fsync and mmap, and write for each of two: 4. b: 3.
    assert scores(planner.decide(pod(uses="web"))) == {"a": 0, "b": 25, "c": 100}


def test_profiles_and_pods_that_change_count_at_once():
    planner = alone(NAME, *NODES, *PROFILES, pod("one", "web", node="a"), pod("two", "db", node="b"))
    assert scores(planner.decide(pod(uses="web"))) == {"a": 100, "b": 0, "c": 100}
    planner.cluster.watched(SeccompProfile).put(profile("db", "read", "write"))
    assert scores(planner.decide(pod(uses="web"))) == {"a": 100, "b": 100, "c": 100}
    planner.cluster.watched(SeccompProfile).put(profile("db", "ptrace"))
    planner.cluster.add_pod(pod("three", "db", node="c"))
    assert scores(planner.decide(pod(uses="web"))) == {"a": 100, "b": 0, "c": 0}
    planner.cluster.watched(SeccompProfile).remove("default/web")
    assert scores(planner.decide(pod(uses="db"))) == {"a": 0, "b": 100, "c": 100}


def test_a_new_status_of_a_profile_changes_nothing():
    planner = alone(NAME, *NODES, *PROFILES)
    (found,) = planner.profiles.values()
    plugin = found.plugins[NAME]
    before = plugin.sign_pod(pod(uses="web"))
    again = msgspec.structs.replace(
        PROFILES[0], status=decode(type(PROFILES[0].status), {"status": "Installed"})
    )
    planner.cluster.watched(SeccompProfile).put(again)
    assert plugin.sign_pod(pod(uses="web")) == before


def made_up(namespace):
    """More different names than are counted, in profiles that are listed before others."""
    return [
        profile(
            f"a{part}", *(f"{namespace}-{part}-{number}" for number in range(MAX_NAMES)), namespace=namespace
        )
        for part in range(MAX_SYSCALLS // MAX_NAMES + 1)
    ]


def test_thousands_of_names_are_cut_off(capfd):
    many = profile("many", *(f"call-{number}" for number in range(MAX_SYSCALLS + 10)))
    plugin = plugin_of(NAME, *NODES, many, *made_up("mallory"))
    log.configure()
    assert plugin.sign_pod(pod(uses="many"))[1].bit_count() == MAX_NAMES
    line = capfd.readouterr().err
    assert f"SeccompProfiles name more than {MAX_SYSCALLS} different system calls; some are ignored" in line
    assert 'plugin="SySched"' in line


def test_names_that_somebody_makes_up_crowd_out_nobody():
    running = (pod("one", "web", node="a"), pod("two", "db", node="b"))
    others = [profile(each.name, *each.spec.syscalls[0].names, namespace="team") for each in PROFILES]
    planner = alone(NAME, *made_up("mallory"), *NODES, *PROFILES, *others, *running)
    assert scores(planner.decide(pod(uses="web"))) == {"a": 100, "b": 0, "c": 100}
    everything = profile("all-syscalls", "read", "write", "fsync", "mmap")
    planner = alone(NAME, *made_up("mallory"), *NODES, *PROFILES, everything, *running)
    assert scores(planner.decide(pod(uses="web"))) == {"a": 100, "b": 0, "c": 100}


@pytest.mark.parametrize("field", ["defaultProfileNamespace", "defaultProfileName"])
def test_empty_arguments_are_rejected(field):
    with pytest.raises(ConfigError, match=field):
        alone(NAME, args={field: ""})


def test_a_pod_keeps_its_profiles_when_decoded():
    text = msgspec.json.encode(
        {
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{"name": "c", "securityContext": localhost("web")}],
                "securityContext": {},
            },
        }
    )
    assert profiles_of(Pod.decode(text)) == ("default/web",)


# The same, slowly

CALLS = [f"call-{number}" for number in range(70)]
SETS = st.frozensets(st.sampled_from(CALLS), max_size=20)
WORLDS = st.fixed_dictionaries(
    {
        "profiles": st.fixed_dictionaries(dict.fromkeys(("web", "db", "all-syscalls"), SETS)),
        "running": st.lists(
            st.tuples(st.sampled_from(["", "web", "db", "gone"]), st.sampled_from("abc")), max_size=6
        ),
        "uses": st.sampled_from(["", "web", "db", "gone"]),
    }
)


@given(WORLDS)
@settings(deadline=None)
def test_as_a_slow_obvious_version_would(world):
    profiles = [profile(name, *sorted(calls)) for name, calls in world["profiles"].items()]
    running = [pod(f"p{number}", uses, node=on) for number, (uses, on) in enumerate(world["running"])]
    decision = alone(NAME, *NODES, *profiles, *running).decide(pod(uses=world["uses"]))
    costs = {each.name: slow_cost(each.name, world) for each in NODES}
    highest = max(costs.values())
    assert scores(decision) == {
        name: 100 - 100 * cost // highest if highest else 100 for name, cost in costs.items()
    }


def slow_cost(node, world):
    def calls(uses):
        return world["profiles"].get(uses) or world["profiles"]["all-syscalls"]

    own, others = calls(world["uses"]), [calls(uses) for uses, on in world["running"] if on == node]
    if not own:
        return 0
    host = frozenset().union(*others)
    return len(host - own) + sum(len((host | own) - other) for other in others)


async def test_profiles_are_watched():
    plugins = {"score": {"enabled": [{"name": NAME, "weight": 100}]}}
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    async with embedded_cluster(2, config=kind | {"profiles": [{"plugins": plugins}]}) as cluster:
        await cluster.apply(*map(plain, PROFILES))
        await cluster.settle()
        await cluster.create(plain_pod("one", "web"))
        on = await cluster.bound("one")
        await cluster.create(plain_pod("two", "db"))
        assert await cluster.bound("two") != on
        await cluster.create(plain_pod("three", "web"))
        assert await cluster.bound("three") == on


def plain(item):
    where = item.definition
    kind = {"apiVersion": where.api_version, "kind": where.kind}
    return kind | msgspec.json.decode(msgspec.json.encode(item, enc_hook=str))


def plain_pod(name, uses):
    spec = {"containers": [{"name": "main", "image": "web"}], "securityContext": localhost(uses)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
