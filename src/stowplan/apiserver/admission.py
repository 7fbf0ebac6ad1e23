"""Admission: what the cluster's own objects say about a write, besides the rules of its kind.

`mutate` runs after the kind's own admission and before validation, `check` after validation and before the
object is stored. Both cost next to nothing while no object asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stowplan.api import quota
from stowplan.api.meta import Json
from stowplan.api.quantity import NANO, Quantity, canonical, parse
from stowplan.api.quota import Amounts
from stowplan.apiserver import bodies, managed, policies, rbac, security, times, webhooks
from stowplan.apiserver.context import RequestContext
from stowplan.apiserver.failures import (
    Failure,
    FieldError,
    aggregate,
    bad_request,
    forbidden,
    forbidden_request,
    invalid_object,
)
from stowplan.apiserver.forms import to_stored
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.matching import GROUP, Action, action_of, deletion_of
from stowplan.apiserver.metadata import generate_name
from stowplan.apiserver.rbac import Attributes
from stowplan.apiserver.store import Record
from stowplan.apiserver.strategies import groups

LIMIT_RANGES, QUOTAS = "limitranges", "resourcequotas"
IMMORTAL = ("default", "kube-system", "kube-public")
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
SIGNING_REQUESTS = "certificatesigningrequests.certificates.k8s.io"
RESOURCE_CLAIMS = "resourceclaims.resource.k8s.io"
_CLAIM_KINDS = (RESOURCE_CLAIMS, "resourceclaimtemplates.resource.k8s.io")
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
_NO_ADMIN_ACCESS = (
    f"admin access to devices requires the `{ADMIN_ACCESS}: true` label on the containing namespace"
)
NODE_NAME = "authentication.kubernetes.io/node-name"
MIRROR_POD = "kubernetes.io/config.mirror"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
RUNTIME_CLASSES = "runtimeclasses.node.k8s.io"
MUTATING_POLICIES, VALIDATING_POLICIES, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS = (
    f"{plural}.{GROUP}"
    for plural in (
        "mutatingadmissionpolicybindings",
        "validatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    )
)
_REVIEWED = ("", "status", "approval", "resize", "ephemeralcontainers")
LIMITED = "kubernetes.io/limit-ranger"
_QUOTA_MANAGER = Manager("kube-apiserver", "Update", "v1", "status")


def mutate(context: RequestContext) -> None:
    """Change the object as admission does."""
    resource, objects = context.resource, context.objects
    if resource.collection == "pods" and context.before is None:
        for item in _limits(context) if objects.has_any(LIMIT_RANGES) else ():
            _set_container_defaults(context.data, item)
        if context.access is not None and context.access.authorizer.is_enforced:
            _apply_service_account(context)
        _apply_runtime_class(context)
    if _is_reviewed(context):
        if objects.has_any(MUTATING_POLICIES):
            policies.mutate(action_of(context), lambda new: _replace_data(context, new))
        if objects.has_any(MUTATING_WEBHOOKS):
            webhooks.mutate(action_of(context), lambda new: _replace_data(context, new))
    if resource.group in (rbac.GROUP, "certificates.k8s.io"):
        _check_grants(context)
    if resource.collection == DEFINITIONS and _converts_by_webhook(context.data):
        context.warnings.append(
            "spec.conversion: this server does not call conversion webhooks; "
            "objects are served in all versions as they are stored, with another apiVersion"
        )


def check(context: RequestContext) -> None:
    """Raise Failure unless the object may be stored."""
    objects = context.objects
    if context.resource.name == groups.POD_GROUPS and context.before is None:
        groups.check_workload_exists(context.data, context.namespace, objects)
    elif context.resource.name == "jobs.batch" and context.before is not None and not context.subresource:
        groups.check_parallelism(context.data, context.old, context.namespace, objects)
    if not context.subresource:
        if objects.has_any(LIMIT_RANGES):
            _check_limits(context)
        _check_security(context)
    if _is_reviewed(context):
        if objects.has_any(VALIDATING_POLICIES):
            policies.validate(action_of(context))
        if objects.has_any(VALIDATING_WEBHOOKS):
            _keep_identity(context)
            webhooks.validate(action_of(context))
    if context.resource.collection in _CLAIM_KINDS:
        _check_claim(context)
    if objects.has_any(QUOTAS):
        _charge(context)


def _check_claim(context: RequestContext) -> None:
    """Who may write a claim's status, and which namespaces get access to devices as administrators do."""
    errors = list(_status_errors(context) if context.writes_status else _admin_errors(context))
    if errors:
        name, resource = context.data["metadata"]["name"], context.resource
        raise invalid_object(resource.kind, name, errors, resource.error_group)


def _admin_errors(context: RequestContext) -> Iterator[FieldError]:
    spec = context.data.get("spec") or {}
    if context.resource.collection != RESOURCE_CLAIMS:
        spec = spec.get("spec") or {}
    requests = (spec.get("devices") or {}).get("requests") or ()
    asked = [number for number, each in enumerate(requests) if (each.get("exactly") or {}).get("adminAccess")]
    if asked and context.before is None and not _has_admin_access(context):
        yield forbidden(f"spec.devices.requests[{asked[0]}].adminAccess", _NO_ADMIN_ACCESS)


def _status_errors(context: RequestContext) -> Iterator[FieldError]:
    new, old = context.data.get("status") or {}, context.old.get("status") or {}
    results = [(each.get("allocation") or {}).get("devices", {}).get("results") or [] for each in (new, old)]
    asked, had = ([number for number, each in enumerate(part) if each.get("adminAccess")] for part in results)
    if asked and not had and not _has_admin_access(context):
        yield forbidden(f"status.allocation.devices.results[{asked[0]}].adminAccess", _NO_ADMIN_ACCESS)
    if context.access is None or not context.access.authorizer.is_enforced:
        return
    verb = context.verb
    if any(new.get(field) != old.get(field) for field in ("allocation", "reservedFor")):
        wanted = Attributes(verb, "resource.k8s.io", "resourceclaims", "binding")
        if said := _denial(context, [wanted]):
            why = "changing status.allocation or status.reservedFor requires"
            why = f'{why} resource="resourceclaims/binding", verb="{verb}" permission: {said}'
            yield forbidden("status.allocation", why)
    if not new.get("allocation"):
        return
    verbs = [f"arbitrary-node:{verb}"]
    if _is_on_node(context.user, new["allocation"]):
        verbs.insert(0, f"associated-node:{verb}")
    parts = [{_device_key(each): each for each in status.get("devices") or ()} for status in (new, old)]
    changed = {key[0] for key in parts[0].keys() | parts[1].keys() if parts[0].get(key) != parts[1].get(key)}
    for driver in sorted(changed):
        kind = ("resource.k8s.io", "resourceclaims", "driver")
        if said := _denial(context, [Attributes(each, *kind, context.namespace, driver) for each in verbs]):
            why = 'changing status.devices requires resource="resourceclaims/driver",'
            yield forbidden("status.devices", f'{why} verb="[{" ".join(verbs)}]" permission: {said}')


def _has_admin_access(context: RequestContext) -> bool:
    found = context.objects.find("namespaces", context.namespace)
    return found is not None and found.labels.get(ADMIN_ACCESS) == "true"


def _denial(context: RequestContext, wanted: list[Attributes]) -> str:
    """Why the user may do none of these; empty if he may."""
    said = ""
    assert context.access is not None
    for each in wanted:
        try:
            context.access.authorizer.check(context.user, each)
        except Failure as failure:
            said = said or failure.message
        else:
            return ""
    return said


def _is_on_node(user: rbac.User, allocation: Json) -> bool:
    """Whether a service account belongs to a pod on the one node that the devices are on."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    fields = terms[0].get("matchFields") or [] if len(terms) == 1 else []
    if len(fields) != 1 or terms[0].get("matchExpressions") or not user.name.startswith(rbac.ACCOUNT_PREFIX):
        return False
    name = {"key": "metadata.name", "operator": "In", "values": list(user.extra.get(NODE_NAME, ()))}
    return len(name["values"]) == 1 and fields[0] == name


def _device_key(device: Json) -> tuple[str, ...]:
    return tuple(device.get(field, "") for field in ("driver", "pool", "device", "shareID"))


def check_delete(context: RequestContext, record: Record) -> None:
    """Raise Failure unless the object may be deleted."""
    if context.resource.collection == "namespaces" and record.key[1] in IMMORTAL:
        raise forbidden_request(record.key[1], "namespaces", "", "this namespace may not be deleted")
    if context.objects.has_any(VALIDATING_POLICIES):
        policies.validate(deletion_of(context, record))
    if context.objects.has_any(VALIDATING_WEBHOOKS):
        webhooks.validate(deletion_of(context, record))


def _is_reviewed(context: RequestContext) -> bool:
    """Whether policies and webhooks see the write: not the server's own, nor one that is not an object."""
    return context.access is not None and context.subresource in _REVIEWED


def _keep_identity(context: RequestContext) -> None:
    """What the server makes up is the same whenever the request is attempted again."""
    if context.before is None:
        meta, memory = context.data["metadata"], context.request.memory
        for field in ("uid", "creationTimestamp"):
            meta[field] = memory.setdefault(field, meta[field])


def _replace_data(context: RequestContext, new: Json) -> Action:
    """Continue with another object, in the form that is kept, and with its defaults."""
    resource, data = context.resource, context.data
    meta = data["metadata"]
    found, _ = bodies.normalize(new, resource.codec, bad_request)
    stored = to_stored(resource, found)
    kept = stored.pop("metadata", None) or {}
    for part, wanted in ((meta, kept), (data, {**stored, "metadata": meta})):  # others hold on to both
        part.clear()
        part.update(wanted)
    resource.strategy.default(data)
    return action_of(context)


def _converts_by_webhook(data: Json) -> bool:
    conversion = (data.get("spec") or {}).get("conversion") or {}
    return bool(conversion.get("strategy") == "Webhook")


def _check_grants(context: RequestContext) -> None:
    """Users cannot grant more than they have; a signing request names the user who makes it."""
    resource, data, access = context.resource, context.data, context.access
    if resource.collection == SIGNING_REQUESTS and context.before is None:
        data["spec"] |= context.user.info()
    if resource.group != rbac.GROUP or access is None:
        return
    if context.before is not None and _granting_part(data) == _granting_part(context.old):
        return
    authorizer = access.authorizer
    check = authorizer.check_role if resource.plural.endswith("roles") else authorizer.check_binding
    check(context.user, resource.plural, context.namespace, data)


def _granting_part(data: Json) -> Json:
    """The part of a role or binding that grants rights, directly or through aggregated roles."""
    meta = data.get("metadata") or {}
    parts = ("rules", "aggregationRule", "subjects", "roleRef")
    found = {part: data.get(part) or None for part in parts}
    return {**found, **{part: meta.get(part) or None for part in ("labels", "annotations")}}


def check_may_create(context: RequestContext) -> None:
    """An update or a patch that creates the object needs the right to create it."""
    access, resource = context.access, context.resource
    if access is not None and access.authorizer.is_enforced:
        asked = rbac.Attributes(
            "create", resource.group, resource.plural, "", context.namespace, context.name
        )
        access.authorizer.check(context.user, asked)


def _in_namespace(context: RequestContext, collection: str) -> list[Record]:
    namespace = context.namespace
    if not namespace:
        return []
    found = [each for each in context.objects.all(collection) if each.key[0] == namespace]
    return sorted(found, key=lambda each: each.key)


def reject(context: RequestContext, why: str) -> Failure:
    resource, meta = context.resource, context.data["metadata"]
    return forbidden_request(meta.get("name", "") or context.name, resource.plural, resource.group, why)


def _check_security(context: RequestContext) -> None:
    """Reject pods that the labels of their namespace forbid, and warn of those that they only warn of."""
    if context.resource.name == "namespaces" and context.before is not None:
        _warn_about_existing_pods(context)
        return
    found = context.objects.find("namespaces", context.namespace) if context.namespace else None
    if found is None or len(found.labels) < 2:  # every namespace has a label with its name
        return
    name, labels = context.resource.name, dict(found.labels)
    pod = security.template_in(name, context.data)
    if pod is None or (context.before is not None and pod == security.template_in(name, context.old)):
        return
    if name == "pods" and (said := security.violations(labels, "enforce", pod)):
        raise reject(context, f"violates {said}")
    if said := security.violations(labels, "warn", pod):
        context.warnings.append(f"would violate {said}")


def _warn_about_existing_pods(context: RequestContext) -> None:
    """Warn of pods that the new labels of their namespace would not let in."""
    name = context.data["metadata"]["name"]
    old, new = (each["metadata"].get("labels") or {} for each in (context.old, context.data))
    if old != new:
        records = (each for each in context.objects.all("pods") if each.key[0] == name)
        pods = (each.data() for each in sorted(records, key=lambda each: each.key))
        context.warnings += security.warnings_about_existing(name, old, new, pods)


def _apply_service_account(context: RequestContext) -> None:
    """A pod acts as a service account, and mounts its token; this matters only where rights are enforced."""
    spec, meta = context.data["spec"], context.data["metadata"]
    if MIRROR_POD in (meta.get("annotations") or {}):
        return
    name = spec.get("serviceAccountName") or "default"
    found = context.objects.find("serviceaccounts", name, context.namespace)
    if found is None and name != "default":
        why = (
            f'error looking up service account {context.namespace}/{name}: serviceaccount "{name}" not found'
        )
        raise reject(context, why)
    if found is None:
        return  # a namespace gets its default account a moment after it was created
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    account = found.data()
    if account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = account["imagePullSecrets"]
    mounts = account.get("automountServiceAccountToken", True)
    given = spec.get("automountServiceAccountToken")
    containers = [each for kind in ("initContainers", "containers") for each in spec.get(kind) or ()]
    without = [each for each in containers if not _mounts(each, TOKEN_PATH)]
    if not without or not (mounts if given is None else given):
        return
    volume = {"generateName": "kube-api-access-"}
    generate_name(volume)
    volume["name"] = context.request.memory.setdefault("token volume", volume["name"])
    for container in without:
        mount = {"name": volume["name"], "readOnly": True, "mountPath": TOKEN_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    root, place = (
        [{"key": "ca.crt", "path": "ca.crt"}],
        {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
    )
    sources: list[Json] = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": root}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": place}]}},
    ]
    projected = {"defaultMode": 420, "sources": sources}
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": volume["name"], "projected": projected}]


def _mounts(container: Json, path: str) -> bool:
    return any(each.get("mountPath") == path for each in container.get("volumeMounts") or ())


def _apply_runtime_class(context: RequestContext) -> None:
    """A pod has the overhead of its RuntimeClass, and goes to the nodes that have the runtime."""
    spec = context.data["spec"]
    name, given = spec.get("runtimeClassName"), spec.get("overhead")
    if not name:
        if given:
            why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise reject(context, why)
        return
    record = context.objects.find(RUNTIME_CLASSES, name)
    if record is None:
        raise reject(context, f'pod rejected: RuntimeClass "{name}" not found')
    found = record.data()
    overhead = (found.get("overhead") or {}).get("podFixed") or {}
    if given and given != overhead:
        raise reject(context, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    if overhead:
        spec["overhead"] = overhead
    scheduling = found.get("scheduling") or {}
    selector, own = scheduling.get("nodeSelector") or {}, spec.get("nodeSelector") or {}
    for key in sorted(selector):
        if own.get(key, selector[key]) != selector[key]:
            why = f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {selector[key]}; "
            raise reject(context, f"{why}pod.spec.nodeSelector[{key}] = {own[key]}")
    if selector:
        spec["nodeSelector"] = {**own, **selector}
    more, tolerations = scheduling.get("tolerations") or [], spec.get("tolerations") or []
    if more:
        spec["tolerations"] = [*tolerations, *(each for each in more if each not in tolerations)]


# Limit ranges.


def _limits(context: RequestContext) -> Iterator[list[Json]]:
    """The limits of each range in the namespace."""
    for record in _in_namespace(context, LIMIT_RANGES):
        yield (record.data().get("spec") or {}).get("limits") or []


def _set_container_defaults(pod: Json, limits: list[Json]) -> None:
    requests: Json = {}
    bounds: Json = {}
    for item in limits:
        if item.get("type") == "Container":
            requests |= item.get("defaultRequest") or {}
            bounds |= item.get("default") or {}
    said = []
    for field, what in (("containers", "container"), ("initContainers", "init container")):
        for container in pod["spec"].get(field) or ():
            resources = container.setdefault("resources", {})
            for part, defaults in (("requests", requests), ("limits", bounds)):
                given = resources.get(part) or {}
                added = {name: defaults[name] for name in sorted(defaults) if name not in given}
                if added:
                    resources[part] = {**given, **added}
                    said.append(f"{', '.join(added)} {part[:-1]} for {what} {container.get('name', '')}")
    if said:
        meta = pod["metadata"]
        text = f"LimitRanger plugin set: {'; '.join(said)}"
        meta["annotations"] = {**(meta.get("annotations") or {}), LIMITED: text}


def _check_limits(context: RequestContext) -> None:
    collection = context.resource.collection
    is_pod = collection == "pods" and context.before is None
    if not is_pod and collection != "persistentvolumeclaims":
        return
    for limits in _limits(context):
        errors = list(_pod_errors(context.data, limits) if is_pod else _claim_errors(context.data, limits))
        if errors:
            raise reject(context, aggregate(errors))


def _pod_errors(pod: Json, limits: list[Json]) -> Iterator[str]:
    spec = pod["spec"]
    for item in limits:
        if item.get("type") == "Container":
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
                given = container.get("resources") or {}
                yield from _limit_errors(
                    item, quota.read(given.get("requests")), quota.read(given.get("limits"))
                )
        elif item.get("type") == "Pod":
            parts = [quota.pod_amounts(spec, part, overhead=False) for part in ("requests", "limits")]
            yield from _limit_errors(item, *parts)


def _limit_errors(item: Json, requests: Amounts, limits: Amounts) -> Iterator[str]:
    kind = item["type"]
    for name, least in sorted((item.get("min") or {}).items()):
        said = f"minimum {name} usage per {kind} is {least}"
        if name not in requests:
            yield f"{said}.  No request is specified"
        elif requests[name] < parse(least):
            yield f"{said}, but request is {canonical(requests[name])}"
        elif name in limits and limits[name] < parse(least):
            yield f"{said}, but limit is {canonical(limits[name])}"
    for name, most in sorted((item.get("max") or {}).items()):
        said = f"maximum {name} usage per {kind} is {most}"
        if name not in limits:
            yield f"{said}.  No limit is specified"
        elif limits[name] > parse(most):
            yield f"{said}, but limit is {canonical(limits[name])}"
        elif name in requests and requests[name] > parse(most):
            yield f"{said}, but request is {canonical(requests[name])}"
    for name, ratio in sorted((item.get("maxLimitRequestRatio") or {}).items()):
        said = f"{name} max limit to request ratio per {kind} is {ratio}"
        if not requests.get(name):
            yield f"{said}, but no request is specified or request is 0"
        elif not limits.get(name):
            yield f"{said}, but no limit is specified or limit is 0"
        elif limits[name] * NANO > parse(ratio) * requests[name]:
            yield f"{said}, but provided ratio is {limits[name] / requests[name]:f}"


def _claim_errors(claim: Json, limits: list[Json]) -> Iterator[str]:
    requests = quota.read((claim["spec"].get("resources") or {}).get("requests"))
    for item in limits:
        if item.get("type") != "PersistentVolumeClaim":
            continue
        yield from _limit_errors({"type": item["type"], "min": item.get("min")}, requests, {})
        for name, most in sorted((item.get("max") or {}).items()):
            said = f"maximum {name} usage per PersistentVolumeClaim is {most}"
            if name not in requests:
                yield f"{said}.  No request is specified"
            elif requests[name] > parse(most):
                yield f"{said}, but request is {canonical(requests[name])}"


# Quotas.


def _charge(context: RequestContext) -> None:
    """Count the object in the quotas of its namespace; a 403 if one of them has no room for it."""
    resource = context.resource
    if not context.namespace or not _is_charged(context):
        return
    name = resource.name
    charged: list[tuple[Record, Json]] = []
    for record in _in_namespace(context, QUOTAS):
        data = record.data()
        status = data.get("status") or {}
        hard, used = quota.read(status.get("hard")), quota.read(status.get("used"))
        names = quota.counted_names(name, hard)
        if not names or not quota.matches_scopes(name, data.get("spec") or {}, context.data):
            continue
        if name == quota.PODS and (lacking := quota.missing_names(names, context.data["spec"])):
            raise reject(context, f"failed quota: {record.key[1]}: must specify {lacking}")
        if any(each not in used for each in names):
            why = f"status unknown for quota: {record.key[1]}, resources: {','.join(sorted(names))}"
            raise reject(context, why)
        new = _growth(context, data.get("spec") or {})
        asked = {each: new[each] for each in hard if new.get(each)}
        total = {each: quota.add(used.get(each, Quantity(0)), asked[each]) for each in asked}
        exceeded = sorted(each for each in asked if total[each] > hard[each])
        if exceeded:
            shown = (
                f"{what}: {','.join(f'{each}={canonical(amounts[each])}' for each in exceeded)}"
                for what, amounts in (("requested", asked), ("used", used), ("limited", hard))
            )
            raise reject(context, f"exceeded quota: {record.key[1]}, {', '.join(shown)}")
        if total:
            data["status"] = {**status, "used": quota.write({**used, **total})}
            charged.append((record, data))
    is_there = context.before is None and context.objects.latest(
        resource, context.namespace, context.data["metadata"]["name"]
    )
    if context.dry_run or is_there:
        return
    for record, data in charged:
        quotas, before = context.objects.resources.kept_in(QUOTAS), record.managed or managed.NOBODY
        texts = (record.body, msgspec.json.encode(data))
        owners = managed.Updated(before, quotas.schema, *texts, _QUOTA_MANAGER, times.now())
        context.objects.put(quotas, record.key, data, owners)


def _is_charged(context: RequestContext) -> bool:
    """Whether a write of this kind can change what is used."""
    if context.before is None:
        return not context.subresource
    kind = context.resource.collection
    if kind == quota.PODS:
        spec, old = context.data["spec"], context.old["spec"]
        is_resized = context.subresource == "resize"
        changed = (spec.get("activeDeadlineSeconds") is None) != (old.get("activeDeadlineSeconds") is None)
        return is_resized or (not context.subresource and changed)
    return kind in (quota.SERVICES, quota.CLAIMS) and not context.subresource


def _growth(context: RequestContext, quota_spec: Json) -> Amounts:
    """What the object adds to a quota that matches it."""
    name = context.resource.name
    new = quota.usage_of(name, context.data)
    if context.before is None or not quota.matches_scopes(name, quota_spec, context.old):
        return new
    old = quota.usage_of(name, context.old)
    return {each: _difference(new[each], old.get(each, Quantity(0))) for each in new}


def _difference(new: Quantity, old: Quantity) -> Quantity:
    left = max(new - old, 0)
    return Quantity.binary(left) if new.is_binary else Quantity(left)
