"""The cells of each kind's row in a table, as `kubectl get` shows them; those of pods are in pod_cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.api.meta import Json
from stowplan.apiserver.pod_cells import pod_cells
from stowplan.apiserver.times import UNKNOWN, human, seconds_now, seconds_of, since

_NONE, _UNSET = "<none>", "<unset>"


def age(item: Json) -> str:
    return since(item["metadata"].get("creationTimestamp"))


def _at(item: object, *path: str, default: object = None) -> Any:
    for part in path:
        item = item.get(part) if isinstance(item, dict) else None
    return default if item is None else item


def _labels(labels: Json | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or _NONE


def selector_text(selector: Json) -> str:
    """A label selector as the query of a request has it."""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        key, values = term["key"], ",".join(sorted(term.get("values") or []))
        words = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        parts.append(words.get(term["operator"], f"!{key}"))
    return ",".join(parts)


def _selector(selector: Json | None) -> str:
    return _NONE if selector is None else selector_text(selector) or _NONE


def _template(item: Json, *path: str) -> list[str]:
    containers = _at(item, *path, "spec", "containers", default=[])
    names = ",".join(each.get("name", "") for each in containers)
    return [names or _NONE, ",".join(each.get("image", "") for each in containers) or _NONE]


def _node(item: Json) -> list[object]:
    conditions = _at(item, "status", "conditions", default=[])
    ready = next((each["status"] for each in conditions if each["type"] == "Ready"), None)
    state = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    if _at(item, "spec", "unschedulable"):
        state += ",SchedulingDisabled"
    prefix, labels = "node-role.kubernetes.io/", _at(item, "metadata", "labels", default={})
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix}
    roles |= {value for key, value in labels.items() if key == "kubernetes.io/role" and value}
    info = _at(item, "status", "nodeInfo", default={})
    addresses = {
        each["type"]: each["address"] for each in reversed(_at(item, "status", "addresses", default=[]))
    }
    return [
        item["metadata"]["name"],
        state,
        ",".join(sorted(roles)) or _NONE,
        age(item),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _service(item: Json) -> list[object]:
    def node_port(port: Json) -> str:
        return f":{port['nodePort']}" if port.get("nodePort") else ""

    spec, kind = item.get("spec", {}), _at(item, "spec", "type", default="ClusterIP")
    external = {"ExternalName": spec.get("externalName", ""), "LoadBalancer": "<pending>"}.get(kind, _NONE)
    if spec.get("externalIPs"):
        external = ",".join(spec["externalIPs"])
    ports = ",".join(
        f"{port['port']}{node_port(port)}/{port.get('protocol', 'TCP')}" for port in spec.get("ports") or []
    )
    return [
        item["metadata"]["name"],
        kind,
        spec.get("clusterIP") or _NONE,
        external,
        ports or _NONE,
        age(item),
        _labels(spec.get("selector")),
    ]


def _claim(item: Json) -> list[object]:
    phase = (
        "Terminating"
        if item["metadata"].get("deletionTimestamp")
        else _at(item, "status", "phase", default="")
    )
    bound = bool(_at(item, "spec", "volumeName"))
    return [
        item["metadata"]["name"],
        phase,
        _at(item, "spec", "volumeName", default=""),
        _at(item, "status", "capacity", "storage", default="") if bound else "",
        _modes(_at(item, "status", "accessModes")) if bound else "",
        _at(item, "spec", "storageClassName", default=""),
        _at(item, "spec", "volumeAttributesClassName", default=_UNSET),
        age(item),
        _at(item, "spec", "volumeMode", default=_UNSET),
    ]


def _volume(item: Json) -> list[object]:
    phase = (
        "Terminating"
        if item["metadata"].get("deletionTimestamp")
        else _at(item, "status", "phase", default="")
    )
    claim = _at(item, "spec", "claimRef")
    return [
        item["metadata"]["name"],
        _at(item, "spec", "capacity", "storage", default=""),
        _modes(_at(item, "spec", "accessModes")),
        _at(item, "spec", "persistentVolumeReclaimPolicy", default=""),
        phase,
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        _at(item, "spec", "storageClassName", default=""),
        _at(item, "spec", "volumeAttributesClassName", default=_UNSET),
        _at(item, "status", "reason", default=""),
        age(item),
        _at(item, "spec", "volumeMode", default=_UNSET),
    ]


def _modes(modes: list[str] | None) -> str:
    short = {
        "ReadWriteOnce": "RWO",
        "ReadOnlyMany": "ROX",
        "ReadWriteMany": "RWX",
        "ReadWriteOncePod": "RWOP",
    }
    return ",".join(short.get(mode, mode) for mode in modes or [])


def _deployment(item: Json) -> list[object]:
    status = item.get("status", {})
    return [
        item["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{_at(item, 'spec', 'replicas', default=0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age(item),
        *_template(item, "spec", "template"),
        _selector(_at(item, "spec", "selector")),
    ]


def _replica_set(item: Json) -> list[object]:
    status, selector = item.get("status", {}), _at(item, "spec", "selector")
    is_controller = item["kind"] == "ReplicationController"
    return [
        item["metadata"]["name"],
        _at(item, "spec", "replicas", default=0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        age(item),
        *_template(item, "spec", "template"),
        _labels(selector) if is_controller else _selector(selector),
    ]


def _stateful_set(item: Json) -> list[object]:
    ready = f"{_at(item, 'status', 'readyReplicas', default=0)}/{_at(item, 'spec', 'replicas', default=0)}"
    return [item["metadata"]["name"], ready, age(item), *_template(item, "spec", "template")]


def _daemon_set(item: Json) -> list[object]:
    status = item.get("status", {})
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    return [
        item["metadata"]["name"],
        *(status.get(name, 0) for name in names),
        _labels(_at(item, "spec", "template", "spec", "nodeSelector")),
        age(item),
        *_template(item, "spec", "template"),
        _selector(_at(item, "spec", "selector")),
    ]


def _job(item: Json) -> list[object]:
    spec, status = item.get("spec", {}), item.get("status", {})
    conditions = [each["type"] for each in status.get("conditions") or [] if each.get("status") == "True"]
    state = "Terminating" if item["metadata"].get("deletionTimestamp") else "Running"
    for kind in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if kind in conditions:
            state = kind
            break
    done, wanted, parallel = status.get("succeeded", 0), spec.get("completions"), spec.get("parallelism") or 0
    completions = (
        f"{done}/{wanted}"
        if wanted is not None
        else f"{done}/1 of {parallel}"
        if parallel > 1
        else f"{done}/1"
    )
    took = ""
    if status.get("startTime"):
        done_at = status.get("completionTime")
        end = seconds_of(done_at) if done_at else seconds_now()
        took = human(end - seconds_of(status["startTime"]))
    return [
        item["metadata"]["name"],
        state,
        completions,
        took,
        age(item),
        *_template(item, "spec", "template"),
        _selector(spec.get("selector")),
    ]


def _cron_job(item: Json) -> list[object]:
    spec, status = item.get("spec", {}), item.get("status", {})
    last = status.get("lastScheduleTime")
    return [
        item["metadata"]["name"],
        spec.get("schedule", ""),
        spec.get("timeZone") or _NONE,
        str(bool(spec.get("suspend"))),
        len(status.get("active") or []),
        since(last) if last else _NONE,
        age(item),
        *_template(spec, "jobTemplate", "spec", "template"),
        _selector(_at(spec, "jobTemplate", "spec", "selector")),
    ]


def _budget(item: Json) -> list[object]:
    spec = item.get("spec", {})
    bounds = [
        str(spec[name]) if spec.get(name) is not None else "N/A"
        for name in ("minAvailable", "maxUnavailable")
    ]
    return [
        item["metadata"]["name"],
        *bounds,
        _at(item, "status", "disruptionsAllowed", default=0),
        age(item),
    ]


def _pod_group(item: Json) -> list[object]:
    policy = "Gang" if _at(item, "spec", "schedulingPolicy", "gang") is not None else "Basic"
    workload = _at(item, "spec", "podGroupTemplateRef", "workload", "workloadName", default=_NONE)
    conditions = {each["type"]: each for each in _at(item, "status", "conditions", default=[])}
    state = "Pending"
    if scheduled := conditions.get("PodGroupScheduled"):
        state = "Scheduled" if scheduled["status"] == "True" else "Unschedulable"
    if disrupted := conditions.get("DisruptionTarget"):
        state = disrupted["reason"]
    return [_name(item), policy, workload, state, age(item)]


def _event(item: Json) -> list[object]:
    about = item.get("involvedObject") or item.get("regarding") or {}
    source = item.get("source") or item.get("deprecatedSource") or {}
    first = item.get("firstTimestamp") or item.get("deprecatedFirstTimestamp") or item.get("eventTime")
    last = item.get("lastTimestamp") or item.get("deprecatedLastTimestamp") or first
    series = item.get("series") or {}
    last = series.get("lastObservedTime") or last
    component = (
        source.get("component") or item.get("reportingComponent") or item.get("reportingController", "")
    )
    host = source.get("host") or item.get("reportingInstance") or ""
    count = series.get("count") or item.get("count") or item.get("deprecatedCount") or 1
    return [
        since(last),
        item.get("type", ""),
        item.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        (item.get("message") or item.get("note") or "").strip(),
        since(first),
        count,
        item["metadata"]["name"],
    ]


def _storage_class(item: Json) -> list[object]:
    marked = _at(item, "metadata", "annotations", default={})
    key = "storageclass.kubernetes.io/is-default-class"
    is_default = "true" in (marked.get(key), marked.get(key.replace("storageclass.", "storageclass.beta.")))
    return [
        item["metadata"]["name"] + (" (default)" if is_default else ""),
        item.get("provisioner", ""),
        item.get("reclaimPolicy", ""),
        item.get("volumeBindingMode", ""),
        bool(item.get("allowVolumeExpansion")),
        age(item),
    ]


def _driver(item: Json) -> list[object]:
    spec = item.get("spec", {})
    return [
        _name(item),
        bool(spec.get("attachRequired")),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        ",".join(each.get("audience", "") for each in spec.get("tokenRequests") or []) or _UNSET,
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or []) or _UNSET,
        age(item),
    ]


def _resource_claim(item: Json) -> list[object]:
    states = ["deleted"] if item["metadata"].get("deletionTimestamp") else []
    if _at(item, "status", "allocation") is not None:
        states.append("allocated")
    if _at(item, "status", "reservedFor"):
        states.append("reserved")
    return [
        item["metadata"]["name"],
        ",".join(states) if _at(item, "status", "allocation") else ",".join([*states, "pending"]),
        age(item),
    ]


def _binding(item: Json) -> list[object]:
    role, subjects = item.get("roleRef", {}), item.get("subjects") or []

    def of(kind: str) -> str:
        return ", ".join(
            f"{each.get('namespace')}/{each['name']}" if kind == "ServiceAccount" else each["name"]
            for each in subjects
            if each.get("kind") == kind
        )

    return [
        item["metadata"]["name"],
        f"{role.get('kind')}/{role.get('name')}",
        age(item),
        of("User"),
        of("Group"),
        of("ServiceAccount"),
    ]


def _name(item: Json) -> str:
    name: str = item["metadata"]["name"]
    return name


def _parent(item: Json) -> str:
    """Who uses an address: `services/default/kubernetes`."""
    parent = _at(item, "spec", "parentRef", default={})
    kind = ".".join(filter(None, (parent.get("resource"), parent.get("group"))))
    return "/".join(filter(None, (kind, parent.get("namespace"), parent.get("name"))))


def _api_service(item: Json) -> list[object]:
    service = _at(item, "spec", "service")
    shown = f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "Local"
    available = (
        each["status"] if each["status"] == "True" else f"{each['status']} ({each.get('reason', '')})"
        for each in _at(item, "status", "conditions", default=())
        if each["type"] == "Available"
    )
    return [_name(item), shown, next(available, UNKNOWN), age(item)]


def _webhooks(item: Json) -> list[object]:
    return [_name(item), len(item.get("webhooks") or ()), age(item)]


def _policy(item: Json, part: str) -> list[object]:
    kind = _at(item, "spec", "paramKind")
    params = f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else _UNSET
    return [_name(item), len(_at(item, "spec", part, default=())), params, age(item)]


def _policy_binding(item: Json) -> list[object]:
    reference, params = _at(item, "spec", "paramRef", default={}), _UNSET
    if reference.get("name"):
        params = f"{reference.get('namespace') or '*'}/{reference['name']}"
    elif reference.get("selector") is not None:
        params = selector_text(reference["selector"])
    return [_name(item), _at(item, "spec", "policyName", default=""), params, age(item)]


def _flow_schema(item: Json) -> list[object]:
    spec = item.get("spec") or {}
    dangling = (
        each["status"] for each in _at(item, "status", "conditions", default=()) if each["type"] == "Dangling"
    )
    return [
        _name(item),
        _at(spec, "priorityLevelConfiguration", "name", default=""),
        spec.get("matchingPrecedence", 0),
        _at(spec, "distinguisherMethod", "type", default=_NONE),
        age(item),
        next(dangling, "?"),
    ]


def _priority_level(item: Json) -> list[object]:
    limited = _at(item, "spec", "limited", default={})
    queuing = _at(limited, "limitResponse", "queuing", default={})
    return [
        _name(item),
        _at(item, "spec", "type", default=""),
        limited.get("nominalConcurrencyShares", _NONE),
        *(queuing.get(field, _NONE) for field in ("queues", "handSize", "queueLengthLimit")),
        age(item),
    ]


def _signing_request(item: Json) -> list[object]:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    types = {each["type"] for each in status.get("conditions") or ()}
    shown = "Denied" if "Denied" in types else "Approved" if "Approved" in types else "Pending"
    shown += ",Failed" if "Failed" in types else ""
    shown += ",Issued" if status.get("certificate") else ""
    seconds = spec.get("expirationSeconds")
    return [
        _name(item),
        age(item),
        spec.get("signerName") or _NONE,
        spec.get("username", ""),
        _NONE if seconds is None else human(seconds),
        shown,
    ]


def _some(found: list[str], none: str = _NONE) -> str:
    """The first three, and how many more there are."""
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    return ",".join(found[:3]) + more if found else none


def _endpoints(item: Json) -> list[object]:
    found = [
        f"{address['ip']}:{port['port']}" if port else address["ip"]
        for subset in item.get("subsets") or ()
        for port in subset.get("ports") or (None,)
        for address in subset.get("addresses") or ()
    ]
    return [_name(item), _some(found), age(item)]


def _endpoint_slice(item: Json) -> list[object]:
    ports = [str(each.get("port") or each.get("name") or "*") for each in item.get("ports") or ()]
    addresses = [address for each in item.get("endpoints") or () for address in each.get("addresses") or ()]
    shown = (_some(ports, _UNSET), _some(addresses, _UNSET))
    return [_name(item), item.get("addressType", ""), *shown, age(item)]


def _quota(item: Json) -> list[object]:
    hard, used = (_at(item, "status", field, default={}) for field in ("hard", "used"))
    texts = {name: f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard)}
    limits = [text for name, text in texts.items() if name.startswith("limits.")]
    others = [text for name, text in texts.items() if not name.startswith("limits.")]
    return [_name(item), ", ".join(others), ", ".join(limits), age(item)]


def _ingress_class(item: Json) -> list[object]:
    parameters = _at(item, "spec", "parameters", default=None)
    shown = _NONE
    if parameters:
        group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
        shown = f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"
    return [_name(item), _at(item, "spec", "controller", default=""), shown, age(item)]


def _ingress(item: Json) -> list[object]:
    spec, balancer = item["spec"], _at(item, "status", "loadBalancer", default={})
    hosts = [each["host"] for each in spec.get("rules") or () if each.get("host")]
    places = [each.get("ip") or each.get("hostname", "") for each in balancer.get("ingress") or ()]
    ports = "80, 443" if spec.get("tls") else "80"
    kind = spec.get("ingressClassName") or _NONE
    return [_name(item), kind, _some(hosts, "*"), ",".join(places), ports, age(item)]


def _network_policy(item: Json) -> list[object]:
    return [_name(item), _selector(_at(item, "spec", "podSelector")), age(item)]


def _autoscaler(item: Json) -> list[object]:
    spec, status = item["spec"], item.get("status") or {}
    target = spec.get("scaleTargetRef") or {}
    current = status.get("currentMetrics") or []
    metrics = spec.get("metrics") or []
    percent = spec.get("targetCPUUtilizationPercentage")
    shown = [_metric(each, current[at] if at < len(current) else {}) for at, each in enumerate(metrics)]
    if percent is not None:  # of v1
        now = status.get("currentCPUUtilizationPercentage")
        shown = [f"cpu: {UNKNOWN if now is None else f'{now}%'}/{percent}%"]
    more = f" + {len(shown) - 2} more..." if len(shown) > 2 else ""
    return [
        _name(item),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        ", ".join(shown[:2]) + more if shown else _NONE,
        str(spec["minReplicas"]) if spec.get("minReplicas") is not None else _UNSET,
        spec.get("maxReplicas", 0),
        status.get("currentReplicas", 0),
        age(item),
    ]


def _metric(wanted: Json, current: Json) -> str:
    """Only the resources of pods are measured here; of other metrics the kind is shown."""
    resource = wanted.get("resource") or wanted.get("containerResource")
    if resource is None:
        return f"{UNKNOWN}/{wanted.get('type', '')}"
    now = (current.get("resource") or current.get("containerResource") or {}).get("current") or {}
    target = resource.get("target") or {}
    if (percent := target.get("averageUtilization")) is not None:
        seen = now.get("averageUtilization")
        return f"{resource['name']}: {UNKNOWN if seen is None else f'{seen}%'}/{percent}%"
    return f"{resource['name']}: {now.get('averageValue') or UNKNOWN}/{target.get('averageValue', '')}"


def _revision(item: Json) -> list[object]:
    owners = item["metadata"].get("ownerReferences") or ()
    owner = next((each for each in owners if each.get("controller")), None)
    shown = _NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        shown = f"{owner['kind'].lower()}{f'.{group}' if group else ''}/{owner['name']}"
    return [_name(item), shown, item.get("revision", 0), age(item)]


def _attachment(item: Json) -> list[object]:
    spec = item["spec"]
    volume = _at(spec, "source", "persistentVolumeName", default="")
    attached = bool(_at(item, "status", "attached", default=False))
    return [_name(item), spec.get("attacher", ""), volume, spec.get("nodeName", ""), attached, age(item)]


def _pod_template(item: Json) -> list[object]:
    labels = _labels(_at(item, "template", "metadata", "labels"))
    return [_name(item), *_template(item, "template"), labels]


CELLS: dict[str, Callable[[Json], list[object]]] = {
    "pods": lambda item: pod_cells(item, age(item)),
    "nodes": _node,
    "namespaces": lambda item: [_name(item), _at(item, "status", "phase", default=""), age(item)],
    "services": _service,
    "configmaps": lambda item: [
        _name(item),
        len(item.get("data") or {}) + len(item.get("binaryData") or {}),
        age(item),
    ],
    "secrets": lambda item: [_name(item), item.get("type", ""), len(item.get("data") or {}), age(item)],
    "endpoints": _endpoints,
    "endpointslices.discovery.k8s.io": _endpoint_slice,
    "resourcequotas": _quota,
    "podtemplates": _pod_template,
    "controllerrevisions.apps": _revision,
    "horizontalpodautoscalers.autoscaling": _autoscaler,
    "ingressclasses.networking.k8s.io": _ingress_class,
    "ingresses.networking.k8s.io": _ingress,
    "networkpolicies.networking.k8s.io": _network_policy,
    "volumeattachments.storage.k8s.io": _attachment,
    "events": _event,
    "events.events.k8s.io": _event,
    "persistentvolumeclaims": _claim,
    "persistentvolumes": _volume,
    "replicationcontrollers": _replica_set,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _daemon_set,
    "jobs.batch": _job,
    "cronjobs.batch": _cron_job,
    "poddisruptionbudgets.policy": _budget,
    "podgroups.scheduling.k8s.io": _pod_group,
    "priorityclasses.scheduling.k8s.io": lambda item: [
        _name(item),
        item.get("value", 0),
        bool(item.get("globalDefault")),
        age(item),
        item.get("preemptionPolicy", ""),
    ],
    "storageclasses.storage.k8s.io": _storage_class,
    "csinodes.storage.k8s.io": lambda item: [
        _name(item),
        len(_at(item, "spec", "drivers", default=[])),
        age(item),
    ],
    "csidrivers.storage.k8s.io": _driver,
    "leases.coordination.k8s.io": lambda item: [
        _name(item),
        _at(item, "spec", "holderIdentity", default=""),
        age(item),
    ],
    "resourceclaims.resource.k8s.io": _resource_claim,
    "resourceslices.resource.k8s.io": lambda item: [
        _name(item),
        _at(item, "spec", "nodeName", default=""),
        _at(item, "spec", "driver", default=""),
        _at(item, "spec", "pool", "name", default=""),
        age(item),
    ],
    "scales.autoscaling": lambda item: [
        _name(item),
        _at(item, "spec", "replicas", default=0),
        _at(item, "status", "replicas", default=0),
        age(item),
    ],
    "ipaddresses.networking.k8s.io": lambda item: [_name(item), _parent(item), age(item)],
    "servicecidrs.networking.k8s.io": lambda item: [
        _name(item),
        ",".join(_at(item, "spec", "cidrs", default=[])),
        age(item),
    ],
    "apiservices.apiregistration.k8s.io": _api_service,
    "runtimeclasses.node.k8s.io": lambda item: [_name(item), item.get("handler", ""), age(item)],
    **{
        f"{kind}webhookconfigurations.admissionregistration.k8s.io": _webhooks
        for kind in ("validating", "mutating")
    },
    "validatingadmissionpolicies.admissionregistration.k8s.io": lambda item: _policy(item, "validations"),
    "mutatingadmissionpolicies.admissionregistration.k8s.io": lambda item: _policy(item, "mutations"),
    **{
        f"{kind}admissionpolicybindings.admissionregistration.k8s.io": _policy_binding
        for kind in ("validating", "mutating")
    },
    "flowschemas.flowcontrol.apiserver.k8s.io": _flow_schema,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": _priority_level,
    "certificatesigningrequests.certificates.k8s.io": _signing_request,
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
}
