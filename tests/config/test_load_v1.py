"""KubeSchedulerConfiguration v1: defaults, decoding and validation."""

from pathlib import Path

import pytest

from stowplan.config import Duration, KubeSchedulerConfiguration, load
from stowplan.config.field_errors import label_name_faults
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry

NAMES = ({"schedulerName": "a"}, {"schedulerName": "b"})
LABEL_RULE = label_name_faults("-")[0].removeprefix("name part ")


def v1(**fields):
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **fields}


def profile(*plugin_config, **points):
    entries = [{"name": name, "args": args} for name, args in plugin_config]
    return v1(profiles=[{"plugins": points, "pluginConfig": entries}])


def refusal(document):
    with pytest.raises(ConfigError) as refused:
        load(document, Registry.installed())
    return refused.value.stage, refused.value.message


def test_an_empty_file_means_the_defaults():
    assert load(v1(), Registry.installed()).config == KubeSchedulerConfiguration()


def test_every_field_is_read():
    text = """
        apiVersion: kubescheduler.config.k8s.io/v1
        kind: KubeSchedulerConfiguration
        parallelism: 8
        leaderElection: {leaderElect: false, leaseDuration: 1m30s, renewDeadline: 60s, retryPeriod: 500ms,
                         resourceName: lock, resourceNamespace: team}
        clientConnection: {kubeconfig: /k, acceptContentTypes: a, contentType: b, qps: 100.5, burst: 7}
        enableProfiling: true
        enableContentionProfiling: false
        percentageOfNodesToScore: 30
        podInitialBackoffSeconds: 2
        podMaxBackoffSeconds: 20
        delayCacheUntilActive: true
        profiles:
        - schedulerName: mine
          percentageOfNodesToScore: 40
          plugins:
            score: {enabled: [{name: ImageLocality, weight: 5}], disabled: [{name: "*"}]}
            placementScore: {disabled: [{name: NodeResourcesFit}]}
          pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 9}}]
        extenders:
        - urlPrefix: http://e
          filterVerb: f
          preemptVerb: p
          prioritizeVerb: s
          weight: 2
          bindVerb: b
          enableHTTPS: true
          tlsConfig: {insecure: true, serverName: n, certFile: c, keyFile: k, caFile: a, certData: aGk=}
          httpTimeout: 3s
          nodeCacheCapable: true
          managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]
          ignorable: true
    """
    found = load(text, Registry.installed()).config
    assert found.leader_election.lease_duration == 90
    assert found.client_connection.qps == 100.5
    assert not found.enable_contention_profiling
    assert found.delay_cache_until_active
    (mine,), (extender,) = found.profiles, found.extenders
    assert (mine.scheduler_name, mine.percentage_of_nodes_to_score) == ("mine", 40)
    assert mine.plugins.at("score").enabled[0].weight == 5
    assert mine.plugin_config[0].args.hard_pod_affinity_weight == 9
    assert (extender.enable_https, extender.http_timeout, extender.tls_config.cert_data) == (True, 3, b"hi")
    assert extender.managed_resources[0].ignored_by_scheduler
    assert load(found.without_defaults(), Registry.installed()).config == found


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        pytest.param(
            {"leaderElection": {"retryPeriod": "0s"}}, "leader_election.retry_period", 2, id="no period"
        ),
        pytest.param(
            {"leaderElection": {"resourceName": ""}},
            "leader_election.resource_name",
            "kube-scheduler",
            id="no name",
        ),
        pytest.param(
            {"leaderElection": {"leaderElect": False}},
            "leader_election.leader_elect",
            False,
            id="no election",
        ),
        pytest.param({"clientConnection": {"qps": 0, "burst": 0}}, "client_connection.qps", 50, id="no qps"),
        pytest.param({"parallelism": None}, "parallelism", 16, id="null"),
        pytest.param(
            {"enableProfiling": False}, "enable_contention_profiling", False, id="no profiling at all"
        ),
    ],
)
def test_what_counts_as_not_set(fields, attribute, value):
    found = load(v1(**fields), Registry.installed()).config
    for name in attribute.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("document", "names"),
    [
        pytest.param(v1(profiles=[{}]), ["default-scheduler"], id="one without a name"),
        pytest.param(v1(profiles=[None]), ["default-scheduler"], id="one that is null"),
        pytest.param(v1(profiles=list(NAMES)), ["a", "b"], id="two with names"),
    ],
)
def test_names_of_profiles(document, names):
    assert [each.scheduler_name for each in load(document, Registry.installed()).config.profiles] == names


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param({"apiVersion": "v1"}, "Object 'Kind' is missing", id="no kind"),
        pytest.param(
            {"kind": "KubeSchedulerConfiguration"}, "Object 'apiVersion' is missing", id="no version"
        ),
        pytest.param(
            v1() | {"apiVersion": "example.com/v1"},
            'no kind "KubeSchedulerConfiguration" is registered for version "example.com/v1" in scheme '
            '"pkg/scheduler/apis/config/scheme/scheme.go:29"',
            id="another group",
        ),
        pytest.param(
            v1() | {"kind": "NodeAffinityArgs"},
            "couldn't decode as KubeSchedulerConfiguration, got kubescheduler.config.k8s.io/v1, "
            "Kind=NodeAffinityArgs: expected kind KubeSchedulerConfiguration",
            id="another kind",
        ),
        pytest.param(
            v1(foo=1, leaderElection={"bar": 1}),
            'strict decoding error: unknown field "foo", unknown field "leaderElection.bar"',
            id="unknown fields",
        ),
        pytest.param(
            v1(Parallelism=1),
            'strict decoding error: unknown field "Parallelism"',
            id="the case of names matters",
        ),
        pytest.param(
            v1(parallelism="x", profiles=5),
            'strict decoding error: parallelism: Invalid value: "x": expected int, got str, '
            "profiles: Invalid value: 5: expected an array, got a number",
            id="wrong types",
        ),
        pytest.param(
            v1(profiles=["x"], extenders=[{"httpTimeout": "3"}]),
            'strict decoding error: profiles[0]: Invalid value: "x": expected an object, got text, '
            'extenders[0].httpTimeout: Invalid value: "3": expected a duration such as 500ms, 10s or 1m30s',
            id="wrong types further in",
        ),
        pytest.param(
            '{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", '
            '"profiles": [{"schedulerName": "a", "schedulerName": "b"}]}',
            'strict decoding error: duplicate field "profiles[0].schedulerName"',
            id="a key twice in JSON",
        ),
        pytest.param(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nkind: x",
            "couldn't decode as KubeSchedulerConfiguration, got kubescheduler.config.k8s.io/v1, Kind=x: "
            "expected kind KubeSchedulerConfiguration",
            id="a kind twice",
        ),
        pytest.param(
            profile(("NodeAffinity", {"x": 1}), ("VolumeBinding", {"bindTimeoutSeconds": "1"})),
            "strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding "
            "error: decoding args for "
            'plugin NodeAffinity: strict decoding error: unknown field "x" (NodeAffinity '
            "takes addedAffinity), "
            "decoding .profiles[0].pluginConfig[1]: strict decoding error: decoding args for "
            "plugin VolumeBinding: "
            'strict decoding error: bindTimeoutSeconds: Invalid value: "1": expected int, got str',
            id="arguments",
        ),
        pytest.param(
            profile(("NodeAffinity", {"kind": "VolumeBindingArgs"})),
            "strict decoding error: decoding .profiles[0].pluginConfig[0]: args for plugin "
            "NodeAffinity were not of "
            "type NodeAffinityArgs.kubescheduler.config.k8s.io, got "
            "VolumeBindingArgs.kubescheduler.config.k8s.io",
            id="arguments of another plugin",
        ),
        pytest.param(
            "- a",
            "is not a scheduler configuration: expected an object with apiVersion and kind",
            id="a list",
        ),
    ],
)
def test_refused_while_decoding(document, message):
    assert refusal(document) == ("decode", message)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(
            v1(parallelism=0),
            "parallelism: Invalid value: 0: should be an integer value greater than zero",
            id="parallelism",
        ),
        pytest.param(
            v1(clientConnection={"burst": -1}),
            "clientConnection.burst: Invalid value: -1: must be non-negative",
            id="burst",
        ),
        pytest.param(
            v1(leaderElection={"leaseDuration": "-1s", "retryPeriod": "-1s"}),
            '[leaderElection.leaseDuration: Invalid value: "-1s": must be greater than zero, '
            'leaderElection.retryPeriod: Invalid value: "-1s": must be greater than zero, '
            'leaderElection.leaseDuration: Invalid value: "10s": must be greater than `RenewDeadline`]',
            id="lease times",
        ),
        pytest.param(
            v1(leaderElection={"resourceLock": "configmaps"}),
            'leaderElection.resourceLock: Invalid value: "configmaps": resourceLock value must be "leases"',
            id="resource lock",
        ),
        pytest.param(
            v1(percentageOfNodesToScore=101),
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
            id="percentage",
        ),
        pytest.param(
            v1(podInitialBackoffSeconds=0, podMaxBackoffSeconds=-1),
            "[podInitialBackoffSeconds: Invalid value: 0: must be greater than 0, "
            "podMaxBackoffSeconds: Invalid value: -1: "
            "must be greater than or equal to PodInitialBackoffSeconds]",
            id="backoff",
        ),
        pytest.param(
            v1(profiles=[{}, {"schedulerName": "a"}]),
            "profiles[0].schedulerName: Required value",
            id="no name among two",
        ),
        pytest.param(
            v1(profiles=[{"schedulerName": ""}]),
            "profiles[0].schedulerName: Required value",
            id="an empty name",
        ),
        pytest.param(
            v1(profiles=[NAMES[0], NAMES[0]]),
            "profiles[1].schedulerName: Duplicate value: {}",
            id="a name twice",
        ),
        pytest.param(
            profile(score={"enabled": [{"name": "NodeAffinity"}, {"name": "EBSLimits"}]}),
            'profiles[0].plugins.score.enabled[1]: Invalid value: "EBSLimits": was invalid in version "v1" '
            '(KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")',
            id="a removed plugin",
        ),
        pytest.param(
            profile(("CinderLimits", None)),
            'profiles[0].pluginConfig[0]: Invalid value: "CinderLimits": was invalid in version "v1" '
            '(KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")',
            id="arguments of a removed plugin",
        ),
        pytest.param(
            profile(("ImageLocality", None), ("ImageLocality", None)),
            'profiles[0].pluginConfig[1]: Duplicate value: "ImageLocality"',
            id="arguments twice",
        ),
        pytest.param(
            profile(queueSort={"enabled": [{"name": "PrioritySort"}, {"name": "X"}]}),
            "profiles[0].plugins.queueSort.Enabled: Invalid value: 2: only one queue sort "
            "plugin can be enabled",
            id="two queue sort plugins",
        ),
        pytest.param(
            v1(profiles=[NAMES[0], NAMES[1] | {"plugins": {"queueSort": {"enabled": [{"name": "X"}]}}}]),
            'profiles[1].plugins.queueSort: Invalid value: {"enabled":[{"name":"X"}]}: must '
            "be the same for all profiles",
            id="profiles that sort differently",
        ),
        pytest.param(
            v1(
                profiles=[
                    each
                    | {
                        "plugins": {"queueSort": {"enabled": [{"name": "X"}]}},
                        "pluginConfig": [{"name": "X", "args": args}],
                    }
                    for each, args in zip(NAMES, ({"a": 1}, {"a": 2}), strict=True)
                ]
            ),
            'profiles[1].pluginConfig.args: Invalid value: {"a":2}: queueSort must be the '
            "same for all profiles",
            id="profiles that sort with other arguments",
        ),
        pytest.param(
            v1(extenders=[{"prioritizeVerb": "p"}]),
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
            id="weight of an extender",
        ),
        pytest.param(
            v1(extenders=[{"bindVerb": "a"}, {"bindVerb": "b"}]),
            'extenders: Invalid value: "found 2 extenders implementing bind": only one '
            "extender can implement bind",
            id="two binding extenders",
        ),
        pytest.param(
            v1(extenders=[{"managedResources": [{"name": "cpu"}, {"name": "e.com/x"}, {"name": "e.com/x"}]}]),
            '[extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid '
            "extended resource name, "
            'extenders[0].managedResources[2].name: Invalid value: "e.com/x": duplicate '
            "extender managed resource name]",
            id="managed resources",
        ),
        pytest.param(
            v1(extenders=[{"managedResources": [{"name": "e.com/"}]}]),
            '[extenders[0].managedResources[0].name: Invalid value: "e.com/": name part must be non-empty, '
            f'extenders[0].managedResources[0].name: Invalid value: "e.com/": name part {LABEL_RULE}]',
            id="a managed resource without a name",
        ),
    ],
)
def test_refused_by_validation(document, message):
    assert refusal(document) == ("validate", message)


def test_an_election_that_is_off_may_be_nonsense():
    found = load(v1(leaderElection={"leaderElect": False, "leaseDuration": "-1s"}), Registry.installed())
    assert found.config.leader_election.lease_duration == Duration(-1)


def test_a_file_is_named_in_its_errors(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: 0\n"
    )
    with pytest.raises(ConfigError, match=r"config\.yaml: parallelism: Invalid value: 0"):
        load(file, Registry.installed())
    with pytest.raises(ConfigError, match="nowhere: cannot be read: No such file or directory"):
        load(Path("nowhere"), Registry.installed())


def test_a_config_map_with_one_file_is_unwrapped():
    wrapped = {
        "kind": "ConfigMap",
        "data": {
            "config.yaml": "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration"
        },
    }
    assert load(wrapped, Registry.installed()).config == KubeSchedulerConfiguration()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param("example.com/gpu", "", id="with a prefix"),
        pytest.param("a/b/c", "a valid label key must consist of", id="two slashes"),
        pytest.param("/x", "prefix part must be non-empty", id="an empty prefix"),
        pytest.param(
            "A.com/x", "prefix part a lowercase RFC 1123 subdomain must consist of", id="an upper case prefix"
        ),
        pytest.param(f"{'a' * 254}/x", "prefix part must be no more than 253 bytes", id="a long prefix"),
        pytest.param("x" * 64, "name part must be no more than 63 bytes", id="a long name"),
        pytest.param("x y", "name part must consist of", id="a blank"),
    ],
)
def test_label_names(name, fault):
    faults = label_name_faults(name)
    assert faults[0].startswith(fault) if fault else faults == []
