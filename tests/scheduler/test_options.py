"""Flags and configuration file into options: who goes before whom, and what is said about what is lost."""

import pytest
import yaml

from stowplan.errors import ConfigError, InputError
from stowplan.framework.registry import Registry
from stowplan.scheduler.flags import FLAGS, GROUPS
from stowplan.scheduler.options import complete_config, parse
from stowplan.serving.options import NamedCertificate, ServingOptions

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
POLICY = {"kind": "Policy", "predicates": [], "priorities": [{"name": "ImageLocalityPriority", "weight": 7}]}


@pytest.fixture
def file(tmp_path):
    def write(document, name="config.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(document))
        return str(path)

    return write


def options(*argv):
    return parse(argv).options


def warnings(*argv):
    return parse(argv).warnings


def error(*argv):
    with pytest.raises(InputError) as caught:
        parse(argv)
    return str(caught.value)


def scores(config):
    return {entry.name: entry.weight for entry in config.profiles[0].plugins.score.enabled}


def test_no_flags_are_kube_schedulers_defaults():
    found, said = parse([])
    assert said == []
    assert (found.kubeconfig, found.master, found.write_config_to, found.policy_config_map) == (
        "",
        "",
        "",
        "",
    )
    assert (found.pod_max_in_unschedulable, found.seed, found.feature_gates) == (300, None, {})
    assert found.serving == ServingOptions()
    assert found.access.authentication_skip_lookup is False
    assert found.access.authentication_tolerate_lookup_failure is True
    assert (found.access.authentication_kubeconfig, found.access.authorization_kubeconfig) == ("", "")
    assert (found.logs.verbosity, found.logs.format) == (0, "text")
    election = found.config.leader_election
    assert (election.leader_elect, election.lease_duration, election.renew_deadline) == (True, 15, 10)
    assert (election.resource_name, election.resource_namespace) == ("kube-scheduler", "kube-system")
    assert (found.config.client_connection.qps, found.config.client_connection.burst) == (50, 100)
    assert [profile.scheduler_name for profile in found.config.profiles] == ["default-scheduler"]


@pytest.mark.parametrize(
    ("argv", "elects"),
    [
        pytest.param(["--leader-elect=false"], False, id="a value"),
        pytest.param(["--leader-elect=F"], False, id="another spelling"),
        pytest.param(["--leader-elect"], True, id="bare"),
        pytest.param(["--leader_elect=0"], False, id="an underscore"),
        pytest.param(["--leader-elect=false", "--leader-elect"], True, id="the last one counts"),
    ],
)
def test_a_boolean_is_spelt_as_in_go(argv, elects):
    assert options(*argv).config.leader_election.leader_elect is elects


@pytest.mark.parametrize(
    "argv",
    [["-v", "5"], ["-v=5"], ["-v5"], ["--v=5"], ["--v", "5"], ["--v=0x5"], ["--v=05"]],
    ids=" ".join,
)
def test_a_level_is_spelt_as_in_go(argv):
    assert options(*argv).logs.verbosity == 5


def test_what_is_kept_of_decisions():
    found = parse([]).options.journal
    assert (found.memory, found.directory, found.size, found.age) == (64 * 2**20, "", 2**30, 7 * 86400)
    argv = ["--decisions-memory=0", "--journal=dir", "--journal-size=500M", "--journal-age=36h"]
    found = parse(argv).options.journal
    assert (found.memory, found.directory, found.size, found.age) == (0, "dir", 500_000_000, 36 * 3600)


def test_lists_take_commas_and_repetition_and_replace_the_default():
    found = options("--authorization-always-allow-paths=/a,/b", "--authorization-always-allow-paths", "/c")
    assert found.serving.authorization_always_allow_paths == ("/a", "/b", "/c")


def test_serving_flags_reach_the_server():
    found = options(
        "--bind-address=::1",
        "--secure-port=0",
        "--tls-cert-file=c",
        "--tls-private-key-file=k",
        "--tls-cipher-suites=A,B",
        "--tls-min-version=VersionTLS13",
        "--permit-port-sharing",
        "--authentication-token-webhook-cache-ttl=1m",
        "--authentication-kubeconfig=/n",
        "--authorization-kubeconfig=/z",
        "--logging-format=json",
    )
    assert found.serving == ServingOptions(
        bind_address="::1",
        secure_port=0,
        tls_cert_file="c",
        tls_private_key_file="k",
        tls_cipher_suites=("A", "B"),
        tls_min_version="VersionTLS13",
        permit_port_sharing=True,
        authentication_token_webhook_cache_ttl=60,
    )
    assert (found.access.authentication_kubeconfig, found.access.authorization_kubeconfig) == ("/n", "/z")
    assert found.logs.format == "json"


def test_certificates_for_host_names():
    found = options("--tls-sni-cert-key=a.crt,a.key", "--tls-sni-cert-key=b.crt,b.key:b.example,*.b.example")
    assert found.serving.tls_sni_cert_key == (
        NamedCertificate("a.crt", "a.key"),
        NamedCertificate("b.crt", "b.key", ("b.example", "*.b.example")),
    )


@pytest.mark.parametrize(
    "flag",
    [
        pytest.param("--allow-metric-labels=metric,label='a,b'", id="a pair with commas in it"),
        pytest.param('--allow-metric-labels="m,l=a,b","n,l=c"', id="two pairs"),
        pytest.param("--log-text-info-buffer-size=2Ki", id="a quantity"),
        pytest.param("--tls-curve-preferences=23,24", id="numbers"),
        pytest.param("--requestheader-allowed-names=a,b", id="names"),
        pytest.param("--min-compatibility-version=kube=1.35", id="a version"),
    ],
)
def test_values_of_flags_without_effect_are_read_all_the_same(flag):
    (said,) = warnings(flag)
    assert said.startswith(f"{flag.partition('=')[0]} has no effect: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(
            ["--allow-metric-labels=a"],
            'invalid argument "a" for "--allow-metric-labels" flag: a must be formatted as key=value',
            id="no pair",
        ),
        pytest.param(
            ["--kube-api-qps=nan"],
            'invalid argument "nan" for "--kube-api-qps" flag: expected a number',
            id="not a number",
        ),
        pytest.param(["--foo"], "unknown flag: --foo", id="an unknown flag"),
        pytest.param(
            ["--leader-elct"], "unknown flag: --leader-elct; did you mean --leader-elect?", id="a near miss"
        ),
        pytest.param(["-x"], "unknown shorthand flag: 'x' in -x", id="an unknown letter"),
        pytest.param(
            ["-config=a"],
            "unknown shorthand flag: 'c' in -config=a; did you mean --config?",
            id="one dash too few",
        ),
        pytest.param(["--config"], "flag needs an argument: --config", id="no value"),
        pytest.param(["-v"], "flag needs an argument: -v", id="no value for a letter"),
        pytest.param(
            ["--leader-elect", "false"],
            '"kube-scheduler" does not take any arguments, got ["false"]',
            id="a boolean's value apart",
        ),
        pytest.param(
            ["a", "--v=1", "--", "--b"],
            '"kube-scheduler" does not take any arguments, got ["a" "--b"]',
            id="arguments",
        ),
        pytest.param(
            ["--leader-elect=maybe"],
            'invalid argument "maybe" for "--leader-elect" flag: expected true or false',
            id="no boolean",
        ),
        pytest.param(
            ["-v=x"], 'invalid argument "x" for "-v, --v" flag: expected a whole number', id="no number"
        ),
        pytest.param(
            ["--secure-port=70000"],
            'invalid argument "70000" for "--secure-port" flag: must be between 0 and 65535, inclusive',
            id="no port",
        ),
        pytest.param(
            ["--kube-api-burst=3000000000"],
            'invalid argument "3000000000" for "--kube-api-burst" flag: value out of range',
            id="more than 32 bits",
        ),
        pytest.param(
            ["--leader-elect-retry-period=2"],
            'invalid argument "2" for "--leader-elect-retry-period" flag: '
            "expected a duration such as 500ms, 10s or 1m30s",
            id="no duration",
        ),
        pytest.param(
            ["--bind-address=localhost"],
            'invalid argument "localhost" for "--bind-address" flag: failed to parse IP: "localhost"',
            id="no address",
        ),
        pytest.param(
            ["--feature-gates=A"],
            'invalid argument "A" for "--feature-gates" flag: missing bool value for A',
            id="a gate without value",
        ),
        pytest.param(
            ["--logging-format=xml"],
            'invalid argument "xml" for "--logging-format" flag: expected text or json',
            id="no log format",
        ),
        pytest.param(
            ["--tls-min-version=1.2"],
            'invalid argument "1.2" for "--tls-min-version" flag: '
            "expected one of VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13",
            id="no TLS version",
        ),
        pytest.param(
            ["--tls-sni-cert-key=a.crt"],
            'invalid argument "a.crt" for "--tls-sni-cert-key" flag: '
            "expected comma separated certificate and key file paths",
            id="a certificate without key",
        ),
        pytest.param(
            ["--decisions-memory=-5Mi"],
            'invalid argument "-5Mi" for "--decisions-memory" flag: expected a size of 0 or more',
            id="less than no memory",
        ),
        pytest.param(
            ["--journal-size=-1"],
            'invalid argument "-1" for "--journal-size" flag: expected a size of 1 or more',
            id="less than no room",
        ),
        pytest.param(
            ["--journal-size=0"],
            'invalid argument "0" for "--journal-size" flag: expected a size of 1 or more',
            id="no room, which would delete all files",
        ),
        pytest.param(
            ["--journal-size=much"],
            """invalid argument "much" for "--journal-size" flag: 'much' is not a quantity: write a number """
            "with an optional suffix, such as 500m, 2 or 1.5Gi",
            id="no size",
        ),
        pytest.param(
            ["--journal-age=-5s"],
            'invalid argument "-5s" for "--journal-age" flag: expected a duration greater than 0',
            id="an age before birth",
        ),
        pytest.param(
            ["--journal-age=0"],
            'invalid argument "0" for "--journal-age" flag: expected a duration greater than 0',
            id="no age, which would delete all files",
        ),
        pytest.param(
            ["--tls-cert-file=a.crt"],
            "--tls-cert-file and --tls-private-key-file must be given together",
            id="half a pair",
        ),
        pytest.param(
            ["--algorithm-provider=Mine"],
            '--algorithm-provider: "Mine" is neither DefaultProvider nor ClusterAutoscalerProvider',
            id="an unknown provider",
        ),
    ],
)
def test_bad_flags_are_refused(argv, message):
    assert error(*argv) == message


def test_an_empty_argument_is_none():
    assert warnings("") == []


def test_without_a_file_flags_go_before_the_defaults():
    found, said = parse(
        [
            "--kubeconfig=/k",
            "--master=https://m",
            "--kube-api-qps=5000",
            "--kube-api-burst=6000",
            "--kube-api-content-type=application/json",
            "--profiling=false",
            "--contention-profiling=false",
            "--leader-elect-lease-duration=1m",
            "--leader-elect-resource-name=mine",
            "--pod-max-in-unschedulable-pods-duration=90s",
            "--seed=7",
        ]
    )
    assert said == []
    assert (found.kubeconfig, found.master, found.seed, found.pod_max_in_unschedulable) == (
        "/k",
        "https://m",
        7,
        90,
    )
    client, election = found.config.client_connection, found.config.leader_election
    assert (client.kubeconfig, client.qps, client.burst) == ("/k", 5000, 6000)
    assert client.content_type == "application/json"
    assert (found.config.enable_profiling, found.config.enable_contention_profiling) == (False, False)
    assert (election.lease_duration, election.resource_name, election.renew_deadline) == (60, "mine", 10)


def test_with_a_file_deprecated_flags_are_ignored_aloud(file):
    path = file({**V1, "clientConnection": {"kubeconfig": "/file", "qps": 7}, "enableProfiling": False})
    found, said = parse(
        [
            f"--config={path}",
            "--kubeconfig=/flag",
            "--kube-api-qps=9",
            "--profiling=true",
            "--scheduler-name=mine",
            "--pod-max-in-unschedulable-pods-duration=1m",
            "--lock-object-name=old",
            "--policy-config-file=/nowhere",
        ]
    )
    assert (found.kubeconfig, found.config.client_connection.qps) == ("/file", 7)
    assert (found.config.enable_profiling, found.config.profiles[0].scheduler_name) == (
        False,
        "default-scheduler",
    )
    assert found.pod_max_in_unschedulable == 60
    assert found.config.leader_election.resource_name == "kube-scheduler"
    fields = {
        "kubeconfig": "clientConnection.kubeconfig",
        "kube-api-qps": "clientConnection.qps",
        "profiling": "enableProfiling",
        "scheduler-name": "profiles[].schedulerName",
        "policy-config-file": "profiles[].plugins",
        "lock-object-name": "leaderElection.resourceName",
    }
    assert said == [
        f"--{flag} is ignored because --config is given: set {field} in {path}"
        for flag, field in fields.items()
    ]


@pytest.mark.parametrize(
    ("flags", "kubeconfig", "is_ignored"),
    [
        pytest.param([], "/flag", False, id="no other way to reach the cluster"),
        pytest.param(["--master=https://here"], "", True, id="an address of the API server"),
    ],
)
def test_a_kubeconfig_beside_a_file_without_one(file, flags, kubeconfig, is_ignored):
    """As tutorial 4 runs it: --config=FILE --kubeconfig=FILE, with no clientConnection in the first."""
    found, said = parse([f"--config={file(V1)}", "--kubeconfig=/flag", *flags])
    assert found.kubeconfig == kubeconfig
    assert any("--kubeconfig is ignored" in each for each in said) == is_ignored


def test_leader_election_flags_go_before_the_file(file):
    path = file({**V1, "leaderElection": {"leaderElect": False, "resourceName": "file", "retryPeriod": "3s"}})
    found, said = parse(["--config", path, "--leader-elect", "--leader-elect-resource-name=flag"])
    election = found.config.leader_election
    assert said == []
    assert (election.leader_elect, election.resource_name, election.retry_period) == (True, "flag", 3)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(
            ["--leader-elect-lease-duration=5s"],
            'leaderElection.leaseDuration: Invalid value: "10s": must be greater than `RenewDeadline`',
            id="a lease shorter than its renewal",
        ),
        pytest.param(
            ["--leader-elect-retry-period=0s"],
            'leaderElection.retryPeriod: Invalid value: "0s": must be greater than zero',
            id="no pause",
        ),
        pytest.param(
            ["--leader-elect-resource-lock=mine"],
            'leaderElection.resourceLock: Invalid value: "mine": resourceLock value must be "leases"',
            id="an unknown lock",
        ),
        pytest.param(
            ["--kube-api-burst=-1"],
            "clientConnection.burst: Invalid value: -1: must be non-negative",
            id="a negative burst",
        ),
    ],
)
def test_what_flags_set_is_checked_as_in_a_file(argv, message):
    with pytest.raises(ConfigError) as caught:
        parse(argv)
    assert (caught.value.message, caught.value.stage) == (message, "validate")


def test_a_bad_file_is_named(file):
    path = file({**V1, "parallelism": 0})
    assert error("--config", path).startswith(f"{path}: parallelism: Invalid value: 0")


def test_an_older_file_is_taken_with_a_warning_that_names_it(file):
    path = file({**V1, "apiVersion": "kubescheduler.config.k8s.io/v1beta3"})
    (said,) = warnings("--config", path)
    assert said.startswith(
        f"{path}: converted from kubescheduler.config.k8s.io/v1beta3 (Kubernetes 1.23 to 1.28) to v1"
    )


@pytest.mark.parametrize(
    "flag",
    [
        pytest.param("--port=0", id="port"),
        pytest.param("--address=127.0.0.1", id="address"),
        pytest.param("--failure-domains=a,b", id="failure domains"),
        pytest.param("--logtostderr=true", id="logtostderr"),
        pytest.param("--alsologtostderr", id="alsologtostderr"),
        pytest.param("--log-dir=/var/log", id="log-dir"),
        pytest.param("--stderrthreshold=INFO", id="stderrthreshold"),
    ],
)
def test_old_flags_without_effect_are_taken_with_a_warning(flag):
    found, (said,) = parse([flag])
    name = flag.partition("=")[0]
    assert said == f"{name} is a flag of older releases and has no effect: {FLAGS[name[2:]].no_effect}"
    assert found.config == options().config


def test_old_flags_that_still_count():
    found, said = parse(
        [
            "--scheduler-name=mine",
            "--hard-pod-affinity-symmetric-weight=30",
            "--algorithm-provider=ClusterAutoscalerProvider",
            "--lock-object-name=name",
            "--lock-object-namespace=space",
        ]
    )
    (profile,) = found.config.profiles
    args = {entry.name: entry.args for entry in profile.plugin_config}
    assert profile.scheduler_name == "mine"
    assert args["InterPodAffinity"].hard_pod_affinity_weight == 30
    assert args["NodeResourcesFit"].scoring_strategy.type == "MostAllocated"
    election = found.config.leader_election
    assert (election.resource_name, election.resource_namespace) == ("name", "space")
    assert all("is a flag of older releases: set " in line for line in said)
    assert len(said) == 5


def test_the_newer_name_of_a_flag_goes_before_the_older():
    argv = ["--leader-elect-resource-name=new", "--lock-object-name=old"]
    assert options(*argv).config.leader_election.resource_name == "new"


def test_an_old_kind_of_lock_becomes_a_lease():
    found, (said,) = parse(["--leader-elect-resource-lock=endpoints"])
    assert found.config.leader_election.resource_lock == "leases"
    assert said == "--leader-elect-resource-lock=endpoints: using leases instead"


def test_a_policy_file_says_which_plugins_run(file):
    path = file(POLICY, "policy.yaml")
    found, said = parse(["--policy-config-file", path, "--scheduler-name=mine"])
    assert found.config.profiles[0].scheduler_name == "mine"
    assert scores(found.config) == {"ImageLocality": 7}
    assert found.policy_config_map == ""
    assert [line for line in said if "converted from" in line] == said[2:]


@pytest.mark.parametrize(
    ("argv", "config_map"),
    [
        pytest.param([], "kube-system/policy", id="in the default namespace"),
        pytest.param(["--policy-configmap-namespace=mine"], "mine/policy", id="in its own"),
    ],
)
def test_a_policy_in_a_config_map_is_named_and_given_later(argv, config_map):
    argv = ["--policy-configmap=policy", *argv]
    first, said = parse(argv)
    assert first.policy_config_map == config_map
    assert not any("--policy FILE" in line for line in said)
    fetched = {"kind": "ConfigMap", "data": {"policy.cfg": yaml.safe_dump(POLICY)}}
    second = parse(first.argv, policy=fetched).options
    assert (second.policy_config_map, scores(second.config)) == ("", {"ImageLocality": 7})


@pytest.mark.parametrize(
    ("argv", "from_file", "ignored"),
    [
        pytest.param([], False, "--policy-config-file", id="the ConfigMap"),
        pytest.param(["--use-legacy-policy-config"], True, "--policy-configmap", id="the file, if asked for"),
    ],
)
def test_of_two_policies_one_counts(file, argv, from_file, ignored):
    path = file(POLICY, "policy.yaml")
    found, said = parse(["--policy-config-file", path, "--policy-configmap=policy", *argv])
    assert (found.policy_config_map == "") is from_file
    (overruled,) = [line for line in said if "overrides it" in line]
    assert overruled.startswith(f"{ignored} is ignored because ")


def test_a_missing_policy_file_is_named():
    assert error("--policy-config-file=/nowhere/policy.yaml").startswith(
        "/nowhere/policy.yaml: cannot be read"
    )


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        pytest.param(
            "--vmodule=a=5", ["--vmodule has no effect: -v applies to all files"], id="another value"
        ),
        pytest.param("--log-flush-frequency=5s", [], id="the default"),
        pytest.param(
            "--disabled-metrics=a",
            ["--disabled-metrics has no effect: all metrics are served with all labels"],
            id="a list",
        ),
    ],
)
def test_flags_without_effect_say_so_if_they_ask_for_something(flag, said):
    assert warnings(flag) == said


@pytest.mark.parametrize(
    ("gates", "said"),
    [
        pytest.param("SchedulerQueueingHints=true,GangScheduling=false", [], id="as it is"),
        pytest.param("kube:SchedulerAsyncAPICalls=true", ["SchedulerAsyncAPICalls=true"], id="not done"),
        pytest.param("SchedulerAsyncPreemption=false", ["SchedulerAsyncPreemption=false"], id="always done"),
        pytest.param("Nonsense=true", ["Nonsense=true"], id="unknown"),
        pytest.param("NodeDeclaredFeatures=false,AllAlpha=false", [], id="followed"),
    ],
)
def test_gates_that_change_nothing_are_named(gates, said):
    found = warnings(f"--feature-gates={gates}")
    assert [line.split()[1] for line in found] == said
    assert all(line.startswith("--feature-gates: ") and " has no effect: " in line for line in found)


def test_gates_add_up():
    found = options("--feature-gates=A=true,B=true", "--feature-gates=B=false")
    assert found.feature_gates == {"A": True, "B": False}


ELSEWHERE = "and would place pods differently than kube-scheduler"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        pytest.param(
            ["--feature-gates=StorageCapacityScoring=true,TaintTolerationComparisonOperators=true"],
            "cannot set feature gate StorageCapacityScoring, TaintTolerationComparisonOperators to true: "
            f"Stowplan does not implement it, {ELSEWHERE}",
            id="not implemented",
        ),
        pytest.param(
            ["--feature-gates=PodLevelResources=false"],
            f"cannot set feature gate PodLevelResources to false: Stowplan always enables it, {ELSEWHERE}",
            id="cannot be disabled",
        ),
        pytest.param(
            ["--feature-gates=AllBeta=true"],
            "cannot set feature gate DRADeviceTaintRules to true: Stowplan does not implement it, "
            f"{ELSEWHERE}",
            id="a whole stage",
        ),
        pytest.param(
            ["--feature-gates=CompositePodGroup=true"],
            f"cannot set feature gate CompositePodGroup to true: Stowplan does not implement it, {ELSEWHERE}",
            id="of a newer minor",
        ),
        pytest.param(
            ["--feature-gates=DynamicResourceAllocation=false"],
            "cannot set feature gate DynamicResourceAllocation to false, feature is locked to true",
            id="locked",
        ),
        pytest.param(
            ["--emulated-version=1.35", "--feature-gates=TopologyAwareWorkloadScheduling=true"],
            "cannot set feature gate TopologyAwareWorkloadScheduling to true, feature is PreAlpha at "
            "emulated version 1.35, min compatibility version 1.34",
            id="not yet there",
        ),
    ],
)
def test_gates_that_would_change_decisions_are_rejected(flags, text):
    assert error(*flags) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("1.37", "emulation version 1.37 is not between [1.33, 1.36.0]"),
        ("2.0", "emulation version 2.0 is not between [1.33, 1.36.0]"),
        (
            "1.32",
            "[emulation version 1.32 is not between [1.33, 1.36.0], "
            "minCompatibilityVersion version 1.33 is not between [1.33, 1.32]]",
        ),
        ("kube=foo", 'could not parse "foo" as version'),
        ("kube=", 'could not parse "" as version'),
        ("a=b=c", 'could not parse "b=c" as version'),
        ("1", 'illegal version string "1"'),
        ("01.35", 'illegal zero-prefixed version component "01" in "01.35"'),
        ("1.35.4", "patch version not allowed, got: kube=1.35.4"),
        ("wardle=1.2", "component not registered: wardle"),
        ("=1.35", "component not registered: "),
        ("1.35,kube=1.34", "duplicate version flag, kube=1.35 and kube=1.34"),
        (
            f"1.{'9' * 5000}",
            f'illegal non-numeric version component "{"9" * 5000}" in "1.{"9" * 5000}": '
            f'strconv.ParseUint: parsing "{"9" * 5000}": value out of range',
        ),
        ("1.34 1.35", "minCompatibilityVersion version 1.35 is not between [1.33, 1.34]"),
    ],
)
def test_versions_have_kube_schedulers_errors(given, text):
    emulated, _, compatible = given.partition(" ")
    assert error(f"--emulated-version={emulated}", f"--min-compatibility-version={compatible}") == text


def test_a_gate_may_be_set_to_the_emulated_versions_default():
    said = warnings("--emulated-version=1.35", "--feature-gates=DRADeviceTaints=false,AllAlpha=false")
    assert "DRADeviceTaints=false has no effect" in said[0]


@pytest.mark.parametrize("given", ["1.36", "kube=1.36", "v1.36", " 1.36", ""])
def test_the_matched_version_changes_nothing(given):
    assert options(f"--emulated-version={given}").config == options().config
    assert warnings(f"--emulated-version={given}") == []


# As kube-scheduler v1.36.4 writes it: what 1.36 adds to the older version.
WRITTEN = {
    "1.33": ({"DynamicResources", "NodeDeclaredFeatures"}, None),
    "1.34": ({"NodeDeclaredFeatures"}, {"filterTimeout"}),
    "1.35": ({"NodeDeclaredFeatures"}, {"filterTimeout"}),
    "1.36": (set(), {"filterTimeout", "bindingTimeout"}),
}


@pytest.mark.parametrize("version", WRITTEN)
def test_an_emulated_version_has_its_plugins_and_arguments(version):
    lacking, timeouts = WRITTEN[version]

    def written(version):
        config = options(f"--emulated-version={version}").config
        (profile,) = complete_config(config, Registry.installed())["profiles"]
        args = {each["name"]: set(each["args"]) - {"apiVersion", "kind"} for each in profile["pluginConfig"]}
        return [each["name"] for each in profile["plugins"]["multiPoint"]["enabled"]], args

    names, args = written(version)
    everything, _ = written("1.36")
    assert names == [name for name in everything if name not in lacking]
    assert args.get("DynamicResources") == timeouts


def test_an_older_server_sets_the_defaults_of_features():
    found = parse([], server_minor=34).options.config
    assert found.default_plugins == options("--emulated-version=1.34").config.default_plugins
    assert parse([], server_minor=37).options.config == options().config
    assert parse([], server_minor=20).options.config == parse([], server_minor=33).options.config
    # What flags say goes before it: the version, and single gates, also those that 1.34 does not have.
    assert parse(["--emulated-version=1.36"], server_minor=34).options.config == options().config
    flag = "--feature-gates=NodeDeclaredFeatures=true,GenericWorkload=true"
    found = parse([flag], server_minor=34).options.config
    assert "NodeDeclaredFeatures" in dict(found.default_plugins)
    assert found.gates == {"GenericWorkload"}


def test_a_gate_that_needs_what_the_server_lacks_has_no_effect():
    flag = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true"
    found = parse([flag], server_minor=33)
    assert found.options.config.gates == {"GenericWorkload"}
    (said,) = [each for each in found.warnings if "DRAWorkloadResourceClaims" in each]
    assert "1.33 API server" in said
    assert "DRAWorkloadResourceClaims" in parse([flag], server_minor=34).options.config.gates


def test_what_an_older_version_lacks_and_stays_on_is_named():
    (said,) = warnings("--emulated-version=1.35")
    assert said.startswith(
        "--emulated-version=1.35: Stowplan does not disable DRAConsumableCapacity, "
        "DRADeviceBindingConditions, "
        "DRADeviceTaints, DRAPartitionableDevices, InPlacePodLevelResourcesVerticalScaling; an API server"
    )


@pytest.mark.parametrize(
    ("argv", "ignored"),
    [
        pytest.param(
            ["--leader-elect=false", "--leader-elect-retry-period=1s"], ["retry-period"], id="election"
        ),
        pytest.param(
            ["--secure-port=0", "--bind-address=127.0.0.1", "--client-ca-file=/ca"],
            ["bind-address", "client-ca-file"],
            id="serving",
        ),
        pytest.param(["--secure-port=1", "--bind-address=127.0.0.1"], [], id="nothing"),
    ],
)
def test_flags_that_another_makes_void_are_named(argv, ignored):
    said = warnings(*argv)
    assert len(said) == len(ignored)
    assert all(f"{name} is ignored because " in line for name, line in zip(ignored, said, strict=True))


def test_names_are_given_once():
    every = [flag for group in GROUPS.values() for flag in group]
    names, shorts = [flag.name for flag in every], [flag.short for flag in every if flag.short]
    assert len(set(names)) == len(names)
    assert len(set(shorts)) == len(shorts)


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("Misc", "config write-config-to master"),
        (
            "Secure serving",
            "bind-address secure-port cert-dir tls-cert-file tls-private-key-file tls-cipher-suites "
            "tls-min-version tls-curve-preferences tls-sni-cert-key http2-max-streams-per-connection "
            "disable-http2-serving permit-port-sharing permit-address-sharing",
        ),
        (
            "Authentication",
            "authentication-kubeconfig authentication-skip-lookup authentication-token-webhook-cache-ttl "
            "authentication-tolerate-lookup-failure client-ca-file requestheader-client-ca-file "
            "requestheader-allowed-names requestheader-username-headers requestheader-uid-headers "
            "requestheader-group-headers requestheader-extra-headers-prefix",
        ),
        (
            "Authorization",
            "authorization-kubeconfig authorization-always-allow-paths "
            "authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl",
        ),
        (
            "Deprecated",
            "kubeconfig kube-api-content-type kube-api-qps kube-api-burst profiling contention-profiling "
            "pod-max-in-unschedulable-pods-duration",
        ),
        (
            "Leader election",
            "leader-elect leader-elect-lease-duration leader-elect-renew-deadline leader-elect-retry-period "
            "leader-elect-resource-lock leader-elect-resource-name leader-elect-resource-namespace",
        ),
        ("Feature gate", "feature-gates emulated-version min-compatibility-version"),
        (
            "Metrics",
            "show-hidden-metrics-for-version disabled-metrics allow-metric-labels "
            "allow-metric-labels-manifest",
        ),
        (
            "Logs",
            "v vmodule logging-format log-flush-frequency log-text-split-stream log-text-info-buffer-size "
            "log-json-split-stream log-json-info-buffer-size",
        ),
        ("Global", "help version"),
    ],
)
def test_every_flag_of_kube_scheduler_is_there(group, names):
    assert {flag.name for flag in GROUPS[group]} == set(names.split())
