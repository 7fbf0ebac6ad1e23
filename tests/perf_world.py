"""A made-up folder in the format of scheduler_perf, in which every operation occurs."""

from __future__ import annotations

from pathlib import Path

import yaml

CONFIG = """
- name: Everything
  labels: [common]
  featureGates: {SchedulerQueueingHints: true}
  defaultPodTemplatePath: templates/pod.yaml
  workloadTemplate:
  - {opcode: createNodes, countParam: $nodes, nodeTemplatePath: templates/node.yaml,
     labelNodePrepareStrategy: {labelKey: zone, labelValues: [a, b]}}
  - {opcode: createNamespaces, prefix: set, count: 2, namespaceTemplatePath: templates/namespace.yaml}
  - {opcode: createPodSets, countParam: $sets, namespacePrefix: set,
     createPodsOp: {opcode: createPods, count: 2}}
  - {opcode: churn, mode: recreate, number: 1, templatePaths: [templates/service.yaml],
     intervalMilliseconds: 50}
  - {opcode: sleep, duration: 200ms}
  - {opcode: startCollectingMetrics, name: big, namespaces: [big], labelSelector: {size: big}}
  - {opcode: createPods, countParam: $pods, podTemplatePath: templates/big-pod.yaml, namespace: big,
     skipWaitToCompletion: true}
  - {opcode: barrier, stageRequirement: Attempted}
  - {opcode: updateAny, templatePath: templates/bigger-node.yaml, countParam: $nodes, updatePerSecond: 100}
  - {opcode: barrier, labelSelector: {size: big}}
  - {opcode: stopCollectingMetrics}
  - {opcode: deletePods, namespace: big, deletePodsPerSecond: 100, labelSelector: {size: big}}
  - {opcode: createPods, count: 3, namespace: volumes, persistentVolumeTemplatePath: templates/volume.yaml,
     persistentVolumeClaimTemplatePath: templates/claim.yaml, collectMetrics: true}
  workloads:
  - {name: tiny, params: {nodes: 2, sets: 2, pods: 3}, labels: [quick], threshold: 5}
  - {name: huge, params: {nodes: 5000, sets: 2, pods: 3}, featureGates: {SchedulerQueueingHints: false}}
- name: Devices
  featureGates: {DynamicResourceAllocation: true}
  workloadTemplate:
  - {opcode: createNodes, count: 1, nodeTemplatePath: templates/device-node.yaml}
  - {opcode: createResourceDriver, driverName: test-driver, nodes: with-devices-*,
     maxClaimsPerNodeParam: $devices}
  - {opcode: createAny, templatePath: templates/class.yaml}
  - {opcode: createResourceClaims, count: 1, namespace: held, templatePath: templates/device-claim.yaml}
  - {opcode: allocResourceClaims, namespace: held}
  - {opcode: createAny, templatePath: templates/claim-template.yaml, namespace: steady}
  - {opcode: createPods, countParam: $pods, namespace: steady, podTemplatePath: templates/device-pod.yaml,
     steadyStateParam: $steady, durationParam: $duration, collectMetrics: true}
  workloads:
  - {name: tiny, params: {devices: 3, pods: 2, steady: true, duration: 8s}, labels: [quick]}
"""

NODE = """
apiVersion: v1
kind: Node
metadata: {name: "node-{{.Index}}"}
status:
  capacity: {cpu: "2", memory: 4Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
"""

POD = """
apiVersion: v1
kind: Pod
metadata: {generateName: pod-}
spec: {containers: [{name: main, image: pause, resources: {requests: {cpu: 10m}}}]}
"""

TEMPLATES = {
    "node": NODE,
    "bigger-node": NODE.replace('cpu: "2"', 'cpu: "{{ AddInt 6 (MultiplyInt 2 .Count) }}"'),
    "device-node": NODE.replace("node-", "with-devices-"),
    "pod": POD,
    "big-pod": POD.replace("generateName: pod-", 'name: "big-{{.Index}}", labels: {size: big}').replace(
        "10m", '"3"'
    ),
    "namespace": "{apiVersion: v1, kind: Namespace, metadata: {labels: {team: blue}}}",
    "service": "{apiVersion: v1, kind: Service, metadata: {generateName: s-}, spec: {ports: [{port: 80}]}}",
    "volume": """
apiVersion: v1
kind: PersistentVolume
spec: {accessModes: [ReadOnlyMany], capacity: {storage: 1Gi}, csi: {driver: disks}}
""",
    "claim": """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {annotations: {pv.kubernetes.io/bind-completed: "true"}}
spec: {accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Gi}}}
""",
    "class": """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: "device.driver == 'test-driver'"}}]}
""",
    "device-claim": """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: "held-{{.Index}}"}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}
""",
    "claim-template": """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
""",
    "device-pod": """
apiVersion: v1
kind: Pod
metadata: {generateName: pod-}
spec:
  containers: [{name: main, image: pause, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
""",
}


def write_world(folder: Path) -> Path:
    """The folder that holds them all; the test cases are in `topic`."""
    templates = folder / "topic" / "templates"
    templates.mkdir(parents=True)
    (folder / "topic" / "performance-config.yaml").write_text(CONFIG)
    for name, text in TEMPLATES.items():
        (templates / f"{name}.yaml").write_text(text)
    return folder


def opcodes() -> set[str]:
    """Those that the test cases use, also within another."""
    ops = [op for case in yaml.safe_load(CONFIG) for op in case["workloadTemplate"]]
    return {op["opcode"] for op in ops}
