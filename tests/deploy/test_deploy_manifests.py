"""`stowplan manifests`: what it renders from a configuration, and what it says to one that cannot work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from stowplan.cli import stowplan
from stowplan.scheduler.decision_pages import PATH as DECISIONS
from stowplan.web.pages import PATH as PAGE_PATH

Json = dict[str, Any]

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
OURS = f"{HEAD}profiles:\n- schedulerName: ours  # and nobody else's\n"
IMAGE = "--image=registry.example/stowplan:1"
PLUGIN = '''\
"""Colours: a kind of its own, and a write."""

from typing import ClassVar

from stowplan import CustomResource, Definition, Plugin, Right, Wire


class ColourSpec(Wire, frozen=True):
    name: str = ""


class Colour(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "colours", "Colour")
    spec: ColourSpec = ColourSpec()


class Colours(Plugin):
    watches = (Colour,)
    rights = (Right("colours/status", ("patch",), "example.com"),)

    def score(self, state, pod, node):
        return 0
'''


class Folder:
    """Files of one test, and the command at work on them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, config: str, *options: str) -> Result:
        (self.path / "config.yaml").write_text(config)
        words = ["manifests", f"--config={self.path / 'config.yaml'}", *options]
        return CliRunner().invoke(stowplan, words, standalone_mode=True)

    def render(self, config: str = OURS, *options: str) -> list[Json]:
        done = self.run(config, IMAGE, *options)
        assert done.exit_code == 0, done.output
        return list(yaml.safe_load_all(done.stdout))

    def plugin(self, text: str = PLUGIN, name: str = "deploy_colours.py") -> str:
        (self.path / "plugins").mkdir(exist_ok=True)
        (self.path / "plugins" / name).write_text(text)
        return f"--plugin-dir={self.path / 'plugins'}"


WITH_COLOURS = f"{OURS}  plugins: {{multiPoint: {{enabled: [{{name: Colours}}]}}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def of_kind(objects: list[Json], kind: str) -> Json:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects: list[Json]) -> Json:
    return of_kind(objects, "Deployment")["spec"]["template"]["spec"]


def allowed(objects: list[Json]) -> dict[str, set[str]]:
    """Verbs by resource, all over the cluster."""
    found: dict[str, set[str]] = {}
    rules = [rule for each in objects if each["kind"] == "ClusterRole" for rule in each["rules"]]
    for rule in rules:
        for resource in rule.get("resources", ()):
            (group,) = rule["apiGroups"]
            found.setdefault(f"{resource}.{group}".rstrip("."), set()).update(rule["verbs"])
    return found


# A second scheduler


def test_all_that_is_needed_is_there_in_an_order_that_works(folder):
    assert [each["kind"] for each in folder.render()] == [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "RoleBinding",
        "ClusterRole",
        "ConfigMap",
        "Deployment",
        "PodDisruptionBudget",
        "Service",
    ]


def test_a_system_namespace_is_not_rendered_again(folder):
    assert "Namespace" not in {each["kind"] for each in folder.render(OURS, "--namespace=kube-system")}


def test_options_are_where_they_belong(folder):
    options = ("--name=packer", "--namespace=packing", "--replicas=3", "--verbosity=4", "--service-monitor")
    objects = folder.render(OURS, *options)
    deployment = of_kind(objects, "Deployment")
    assert deployment["metadata"]["name"] == "packer"
    assert deployment["spec"]["replicas"] == 3
    namespaces = {each["metadata"].get("namespace") for each in objects}
    assert namespaces == {None, "packing", "kube-system"}  # the last for the CA of client certificates
    (container,) = pod_of(objects)["containers"]
    assert container["image"] == "registry.example/stowplan:1"
    assert "-v=4" in container["command"]
    monitor = of_kind(objects, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == of_kind(objects, "Service")["metadata"]["labels"]


def test_the_same_input_gives_the_same_text(folder):
    first, second = (folder.run(OURS, IMAGE).stdout for _ in range(2))
    assert first == second


def test_the_configuration_keeps_its_comments_and_files_are_mounted_as_a_folder(folder):
    objects = folder.render(WITH_COLOURS, folder.plugin())
    data = of_kind(objects, "ConfigMap")["data"]
    assert data["config.yaml"] == WITH_COLOURS
    assert data["deploy_colours.py"] == PLUGIN
    pod = pod_of(objects)
    (container,) = pod["containers"]
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert mounts["config"] == {"name": "config", "mountPath": "/etc/stowplan", "readOnly": True}
    assert {"name": "config", "configMap": {"name": "stowplan"}} in pod["volumes"]
    assert "--config=/etc/stowplan/config.yaml" in container["command"]
    assert "--plugin-dir=/etc/stowplan" in container["command"]
    assert "--plugin-dir=/etc/stowplan" not in pod_of(folder.render())["containers"][0]["command"]


def test_a_new_plugin_changes_the_config_map_alone_and_a_new_configuration_starts_new_pods(folder):
    before = folder.render(WITH_COLOURS, folder.plugin())
    after = folder.render(WITH_COLOURS, folder.plugin(PLUGIN.replace("return 0", "return 100")))
    changed = [new["kind"] for old, new in zip(before, after, strict=True) if old != new]
    assert changed == ["ConfigMap"]
    other = folder.render(f"{WITH_COLOURS}parallelism: 4\n", folder.plugin())
    changed = [new["kind"] for old, new in zip(before, other, strict=True) if old != new]
    assert changed == ["ConfigMap", "Deployment"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x = 'ä → 🙂'\n", id="not ASCII"),
        pytest.param("x = 1 \n\ty = 2\n", id="a space at the end and a tab"),
        pytest.param("x = 1", id="no end of line"),
        pytest.param("\n\n  x = 1\n\n\n", id="empty lines around"),
        pytest.param("# ---\n# %YAML: {a: b}\n", id="looks like YAML"),
    ],
)
def test_files_come_back_as_they_were(folder, text):
    comment = "\n".join(f"# {line}" for line in text.split("\n"))
    objects = folder.render(WITH_COLOURS, folder.plugin(PLUGIN + comment))
    assert of_kind(objects, "ConfigMap")["data"]["deploy_colours.py"] == PLUGIN + comment


def test_it_runs_with_as_little_as_possible(folder):
    pod = pod_of(folder.render())
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == [
        "/tmp"
    ]


def test_probes_ask_the_https_server(folder):
    (container,) = pod_of(folder.render())["containers"]
    (port,) = container["ports"]
    asked = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: get["path"] for name, get in asked.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert all((get["scheme"], get["port"]) == ("HTTPS", port["name"]) for get in asked.values())
    assert f"--secure-port={port['containerPort']}" in container["command"]
    # One that stands by without a cache is never ready.
    (container,) = pod_of(folder.render(f"{OURS}delayCacheUntilActive: true\n"))["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/livez"


# Lease


@pytest.mark.parametrize(
    ("election", "namespace", "name"),
    [
        pytest.param("", "stowplan", "stowplan", id="one of its own, not kube-scheduler's"),
        pytest.param(
            "leaderElection: {resourceName: mine, resourceNamespace: leases}\n", "leases", "mine", id="named"
        ),
    ],
)
def test_the_lease(folder, election, namespace, name):
    objects = folder.render(OURS + election)
    (container,) = pod_of(objects)["containers"]
    assert f"--leader-elect-resource-name={name}" in container["command"]
    assert f"--leader-elect-resource-namespace={namespace}" in container["command"]
    role = of_kind(objects, "Role")
    assert role["metadata"]["namespace"] == namespace
    leases = [(rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]]
    assert leases == [(["create"], None), (["get", "update"], [name])]


def test_without_leader_election_there_is_never_a_second_one(folder):
    objects = folder.render(f"{OURS}leaderElection: {{leaderElect: false}}\n", "--replicas=1")
    assert of_kind(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert "Role" not in {each["kind"] for each in objects}


# Rights


def test_nothing_is_granted_by_a_star(folder):
    for each in folder.render(WITH_COLOURS, folder.plugin()):
        for rule in each.get("rules", ()):
            assert "*" not in [word for words in rule.values() for word in words]


@pytest.mark.parametrize(
    ("disabled", "resource", "verbs", "without"),
    [
        pytest.param(
            "DefaultPreemption",
            "pods",
            {"delete", "get", "list", "watch"},
            {"get", "list", "watch"},
            id="evict",
        ),
        pytest.param(
            "VolumeBinding",
            "persistentvolumes",
            {"get", "list", "patch", "watch"},
            {"list", "watch"},
            id="bind volumes",
        ),
        pytest.param(
            "DynamicResources",
            "resourceclaims/status.resource.k8s.io",
            {"patch", "update"},
            None,
            id="allocate",
        ),
    ],
)
def test_what_only_a_plugin_does_is_granted_only_with_it(folder, disabled, resource, verbs, without):
    assert allowed(folder.render())[resource] == verbs
    config = f"{OURS}  plugins: {{multiPoint: {{disabled: [{{name: {disabled}}}]}}}}\n"
    assert allowed(folder.render(config)).get(resource) == without


def test_a_plugins_kind_is_defined_and_may_be_watched_and_written(folder):
    objects = folder.render(WITH_COLOURS, folder.plugin())
    assert objects[0]["kind"] == "CustomResourceDefinition"
    assert objects[0]["metadata"]["name"] == "colours.example.com"
    found = allowed(objects)
    assert found["colours.example.com"] == {"list", "watch"}
    assert found["colours/status.example.com"] == {"patch"}
    assert "colours.example.com" not in allowed(folder.render())


def test_a_definition_that_another_project_installs_is_left_out(folder):
    """Ours would replace that of the operator and drop fields that it needs."""
    enabled = "  plugins: {multiPoint: {enabled: [{name: SySched}, {name: NodeResourceTopologyMatch}]}}\n"
    objects = folder.render(f"{OURS}{enabled}")
    defined = [each["metadata"]["name"] for each in objects if each["kind"] == "CustomResourceDefinition"]
    assert defined == ["noderesourcetopologies.topology.node.k8s.io"]
    assert allowed(objects)["seccompprofiles.security-profiles-operator.x-k8s.io"] == {"list", "watch"}


def test_queues_quotas_and_groups_are_granted_with_their_plugins(folder):
    plugins = """\
  plugins:
    multiPoint:
      enabled: [{name: Coscheduling}, {name: CapacityScheduling}, {name: VolcanoQueue}]
    queueSort:
      disabled: [{name: "*"}]
      enabled: [{name: VolcanoQueue}]
"""
    found = allowed(folder.render(OURS + plugins))
    volcano = "scheduling.volcano.sh"
    for resource in (
        "elasticquotas.scheduling.x-k8s.io",
        "podgroups.scheduling.x-k8s.io",
        f"podgroups.{volcano}",
        f"queues.{volcano}",
        "hypernodes.topology.volcano.sh",
    ):
        assert {"list", "watch"} <= found[resource]
        assert resource not in allowed(folder.render())
    assert {"get", "patch"} <= found[f"podgroups.{volcano}"]
    assert found[f"queues/status.{volcano}"] == {"patch"}


@pytest.mark.parametrize("options", [(), ("--namespace=packing", "--name=packer")], ids=["default", "named"])
def test_a_role_for_people_lets_them_look_and_is_bound_to_nobody(folder, options):
    objects = folder.render(OURS, *options)
    scheduler = of_kind(objects, "ServiceAccount")["metadata"]
    name = f"{scheduler['namespace']}:{scheduler['name']}:viewer"
    (role,) = (each for each in objects if each["metadata"]["name"] == name)
    allowed = {verb: rule["nonResourceURLs"] for rule in role["rules"] for verb in rule["verbs"]}
    assert {PAGE_PATH, f"{PAGE_PATH}/*", DECISIONS, "/metrics"} < set(allowed["get"])
    assert "/configz" not in allowed["get"]
    assert allowed.keys() == {"get", "post"}
    assert allowed["post"] == [f"{PAGE_PATH}/api/what-if"]
    assert name not in {each["roleRef"]["name"] for each in objects if "roleRef" in each}


# A journal


def writable(pod: Json) -> dict[str, Json]:
    """Volumes of the pod by where its container can write to them."""
    (container,) = pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    return {
        mount["mountPath"]: volumes[mount["name"]]
        for mount in container["volumeMounts"]
        if not mount.get("readOnly")
    }


@pytest.mark.parametrize(
    ("options", "size", "volume"),
    [
        pytest.param(("--journal",), "1Gi", {"emptyDir": {"sizeLimit": "1280Mi"}}, id="as long as its pod"),
        pytest.param(("--journal-size=5G",), "5G", {"emptyDir": {"sizeLimit": "5025Mi"}}, id="larger"),
        pytest.param(
            ("--journal-claim=kept", "--replicas=1"),
            "1Gi",
            {"persistentVolumeClaim": {"claimName": "kept"}},
            id="in a claim",
        ),
    ],
)
def test_a_journal_has_a_volume_to_write_to(folder, options, size, volume):
    pod = pod_of(folder.render(OURS, *options))
    (container,) = pod["containers"]
    assert {"--journal=/var/lib/stowplan", f"--journal-size={size}"} < set(container["command"])
    assert writable(pod)["/var/lib/stowplan"] == {"name": "journal", **volume}


def test_one_claim_is_for_one_pod_that_may_write_to_it(folder):
    objects = folder.render(OURS, "--journal-claim=kept", "--replicas=1")
    assert of_kind(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    security = pod_of(objects)["securityContext"]
    assert security["fsGroup"] == security["runAsGroup"]


def test_a_static_pods_journal_is_on_the_host(folder):
    done = folder.run(STATIC, IMAGE, "--static-pod", "--journal")
    (pod,) = yaml.safe_load_all(done.stdout)
    assert "--journal=/var/lib/stowplan" in pod["spec"]["containers"][0]["command"]
    host = {"path": "/var/lib/stowplan", "type": "DirectoryOrCreate"}
    assert writable(pod["spec"])["/var/lib/stowplan"] == {"name": "journal", "hostPath": host}


# A static pod


STATIC = f"{HEAD}clientConnection: {{kubeconfig: /etc/kubernetes/scheduler.conf}}\n"


def test_a_static_pod_in_kubeadms_layout(folder):
    done = folder.run(STATIC, IMAGE, "--static-pod")
    assert done.exit_code == 0
    (pod,) = yaml.safe_load_all(done.stdout)
    assert (pod["kind"], pod["metadata"]["name"], pod["metadata"]["namespace"]) == (
        "Pod",
        "kube-scheduler",
        "kube-system",
    )
    assert pod["metadata"]["labels"] == {"component": "kube-scheduler", "tier": "control-plane"}
    assert pod["spec"]["hostNetwork"] is True
    (container,) = pod["spec"]["containers"]
    assert container["command"][0] == "kube-scheduler"
    hosts = {each["name"]: each["hostPath"]["path"] for each in pod["spec"]["volumes"] if "hostPath" in each}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert hosts == {name: path for name, path in mounts.items() if name != "tmp"}
    assert set(hosts.values()) == {"/etc/kubernetes/scheduler.conf", "/etc/kubernetes/stowplan"}
    assert container["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"
    assert "needs these files in /etc/kubernetes/stowplan: config.yaml" in done.stderr
    assert "--beside-static-pod" not in done.stderr


def test_what_a_static_pods_plugins_need_besides(folder):
    config = f"{STATIC}profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: Colours}}]}}}}}}]\n"
    done = folder.run(config, IMAGE, folder.plugin(), "--static-pod")
    assert "config.yaml, deploy_colours.py" in done.stderr
    assert "apply what --beside-static-pod prints" in done.stderr
    (container,) = next(yaml.safe_load_all(done.stdout))["spec"]["containers"]
    assert "--plugin-dir=/etc/kubernetes/stowplan" in container["command"]
    done = folder.run(config, folder.plugin(), "--beside-static-pod")
    objects = list(yaml.safe_load_all(done.stdout))
    assert [each["kind"] for each in objects] == [
        "CustomResourceDefinition",
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterRole",
    ]
    assert allowed(objects) == {
        "colours.example.com": {"list", "watch"},
        "colours/status.example.com": {"patch"},
    }
    (subject,) = objects[2]["subjects"]
    assert (subject["kind"], subject["name"]) == ("User", "system:kube-scheduler")
    (role,) = yaml.safe_load_all(folder.run(STATIC, "--beside-static-pod").stdout)
    assert role["metadata"]["name"] == "stowplan:viewer"


# What cannot work


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        pytest.param(
            STATIC,
            [IMAGE],
            "clientConnection.kubeconfig: the pod does not have the file /etc/kubernetes/scheduler.conf",
            id="a kubeconfig of this machine",
        ),
        pytest.param(
            f"{OURS}leaderElection: {{leaderElect: false}}\n",
            [IMAGE],
            "leaderElection.leaderElect: is false, so 2 replicas would schedule the same pods",
            id="replicas without a lease",
        ),
        pytest.param(
            f"{OURS}extenders: [{{urlPrefix: 'https://e', filterVerb: f, tlsConfig: {{caFile: /ca.crt}}}}]\n",
            [IMAGE],
            "extenders[0].tlsConfig.caFile: the pod does not have the file /ca.crt: set its contents as",
            id="an extender's certificate",
        ),
        pytest.param(
            f"{HEAD}profiles: [{{plugins: {{score: {{enabled: [{{name: Nowhere}}]}}}}}}]\n",
            [IMAGE],
            'ScorePlugin "Nowhere" does not exist',
            id="a plugin that is not there",
        ),
        pytest.param(f"{HEAD}nonsense: 1\n", [IMAGE], 'unknown field "nonsense"', id="a field"),
        pytest.param(
            OURS, [IMAGE, "--static-pod"], "clientConnection.kubeconfig: is required", id="no kubeconfig"
        ),
        pytest.param(OURS, [], "--image: is empty", id="no image"),
        pytest.param(
            OURS, [IMAGE, "--name=Mine"], "--name: 'Mine' is not a valid Kubernetes name", id="a name"
        ),
        pytest.param(
            OURS,
            [IMAGE, "--namespace=a.b"],
            "--namespace: 'a.b' is not a valid Kubernetes name",
            id="a namespace",
        ),
        pytest.param(OURS, [IMAGE, "--replicas=0"], "--replicas: 0 is too small", id="no replicas"),
        pytest.param(
            STATIC,
            [IMAGE, "--static-pod", "--replicas=2"],
            "--replicas cannot be used for a static pod",
            id="replicas",
        ),
        pytest.param(
            STATIC,
            [IMAGE, "--static-pod", "--journal-claim=kept"],
            "--journal-claim cannot be used for a static pod",
            id="a claim on a host",
        ),
        pytest.param(
            OURS,
            [IMAGE, "--journal-claim=kept"],
            "--journal-claim: 2 replicas cannot share a journal: use --replicas=1",
            id="a journal for two",
        ),
        pytest.param(
            OURS, [IMAGE, "--journal-size=much"], "--journal-size: 'much' is not a quantity", id="a size"
        ),
        pytest.param(OURS, [IMAGE, "--journal-size=0"], "--journal-size: 0 is too small", id="no size"),
        pytest.param(
            "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\n"
            "algorithmSource: {policy: {configMap: {namespace: kube-system, name: old}}}\n",
            [IMAGE],
            "its Policy is in ConfigMap kube-system/old",
            id="a Policy that is elsewhere",
        ),
    ],
)
def test_what_cannot_work_is_refused_and_named(folder, config, options, message):
    done = folder.run(config, *options)
    assert done.exit_code != 0
    assert done.stdout == ""
    said = f"{done.stderr}{done.exception}"
    assert message in said


def test_too_much_for_a_config_map(folder):
    done = folder.run(WITH_COLOURS, IMAGE, folder.plugin(PLUGIN + "#" * (1 << 20)))
    assert "but the limit of a ConfigMap is 1,048,576: install the plugins in the image" in str(
        done.exception
    )


def test_what_should_be_known_is_said_beside_the_manifests(folder):
    done = folder.run(HEAD, IMAGE)
    assert done.exit_code == 0
    assert (
        "a profile is named default-scheduler, so kube-scheduler would schedule the same pods" in done.stderr
    )
    assert folder.run(OURS, IMAGE).stderr == ""


def test_a_plugin_that_the_image_does_not_have_is_named(folder, monkeypatch, tmp_path):
    (tmp_path / "deploy_elsewhere.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    config = f"{OURS}  plugins: {{score: {{enabled: [{{name: 'deploy_elsewhere:Colours'}}]}}}}\n"
    done = folder.run(config, IMAGE)
    assert done.exit_code == 0
    assert "Colours is in the module deploy_elsewhere (" in done.stderr
    assert "which the image must contain" in done.stderr


def test_an_older_configuration_is_rendered_as_v1(folder):
    old = "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n"
    done = folder.run(f"{old}profiles:\n- schedulerName: old\n", IMAGE)
    assert "converted from" in done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    kept = yaml.safe_load(of_kind(objects, "ConfigMap")["data"]["config.yaml"])
    assert kept["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert kept["profiles"][0]["schedulerName"] == "old"


def test_controllers_are_deployed_with_their_rights_alone(folder):
    before = folder.render()
    objects = folder.render(OURS, "--controllers")
    added = objects[len(before) :]
    assert objects[: len(before)] == before
    assert [each["kind"] for each in added] == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Deployment",
    ]
    command = pod_of(added)["containers"][0]["command"]
    assert command[:3] == ["stowplan", "controllers", "--leader-elect"]
    lease = next(rule for rule in of_kind(added, "Role")["rules"] if "resourceNames" in rule)
    assert f"--leader-elect-resource-name={lease['resourceNames'][0]}" in command
    assert allowed(added)["podgroups/status.scheduling.x-k8s.io"] == {"patch"}
    assert allowed(added)["pods"] == {"list", "watch"}
    selector = of_kind(added, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= of_kind(before, "Service")["spec"]["selector"].items()
    scheduler = of_kind(before, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= scheduler.items()


def test_controllers_are_no_part_of_a_static_pod(folder):
    done = folder.run(OURS, IMAGE, "--static-pod", "--controllers")
    assert "--controllers cannot be used for a static pod" in done.output


# As docs/deploy.md has it

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
COMMANDS = re.findall(r"^stowplan (manifests .*?)(?: > [\w.-]+)?$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_work(folder, monkeypatch, command):
    second, instead = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (folder.path / "scheduler.yaml").write_text(second)
    (folder.path / "config.yaml").write_text(instead)
    folder.plugin()
    monkeypatch.chdir(folder.path)
    done = CliRunner().invoke(stowplan, command.split())
    assert done.exit_code == 0, done.output
    if "--print-values" in command:
        assert yaml.safe_load(done.stdout)["pluginFiles"].keys() == {"deploy_colours.py"}
        return
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout) if each]
    if "--beside-static-pod" in command:
        assert kinds == ["ClusterRole"]
    else:
        assert ("Pod" if "--static-pod" in command else "Deployment") in kinds


def test_the_page_has_every_option():
    assert len(COMMANDS) == 10
    shown = CliRunner().invoke(stowplan, ["manifests", "--help"]).stdout
    options = set(re.findall(r"--[a-z][-a-z]+", shown)) - {"--help"}
    assert options <= set(re.findall(r"--[a-z][-a-z]+", PAGE))


# A shadow


def test_a_shadow_may_only_read_the_cluster(folder):
    objects = folder.render(WITH_COLOURS, folder.plugin(), "--shadow")
    rights = allowed(objects)
    reviews = {"tokenreviews.authentication.k8s.io", "subjectaccessreviews.authorization.k8s.io"}
    assert all(verbs == {"create"} for resource, verbs in rights.items() if resource in reviews)
    others = {verb for resource, verbs in rights.items() if resource not in reviews for verb in verbs}
    assert others <= {"get", "list", "watch"}
    assert rights["colours.example.com"] == {"list", "watch"}
    assert "colours/status.example.com" not in rights
    assert not {"Role", "CustomResourceDefinition", "PodDisruptionBudget"} & {
        each["kind"] for each in objects
    }
    deployment = of_kind(objects, "Deployment")
    assert (deployment["metadata"]["name"], deployment["spec"]["replicas"]) == ("stowplan-shadow", 1)
    (container,) = pod_of(objects)["containers"]
    assert container["command"][:3] == ["stowplan", "shadow", "--no-page"]


def test_a_shadow_is_one_and_has_no_controllers(folder):
    for option in ("--replicas=2", "--controllers"):
        done = folder.run(OURS, IMAGE, "--shadow", option)
        assert done.exit_code == 2
        assert "cannot be used with --shadow" in done.output
