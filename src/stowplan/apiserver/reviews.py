"""Reviews of tokens and of access, and tokens for service accounts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver import bodies, forms, pipeline, times
from stowplan.apiserver.bodies import BuiltIn
from stowplan.apiserver.context import RequestContext
from stowplan.apiserver.failures import FieldError, bad_request, conflict, invalid, invalid_object, not_found
from stowplan.apiserver.rbac import Attributes, User
from stowplan.apiserver.tokens import BOUND, ISSUER, Access
from stowplan.http11.messages import Response

Handler = Callable[[RequestContext], Response]

MIN_SECONDS, MAX_SECONDS = 600, 2**32
_UNMANAGED = ("selfsubjectreviews", "selfsubjectrulesreviews")
"""Reviews whose answers do not say who manages their fields."""
_TOKEN_REQUEST = "io.k8s.api.authentication.v1.TokenRequest"


def _decode_review(context: RequestContext) -> Json:
    pipeline.decode_object(context)
    data = context.data
    meta = data.setdefault("metadata", {})
    if context.resource.plural not in _UNMANAGED:
        meta["managedFields"] = msgspec.json.decode(pipeline.first_owners(context).text())
    return data


def _access(context: RequestContext) -> Access:
    assert context.access is not None, "reviews come from clients"
    return context.access


def _review(status: Callable[[RequestContext, Json], Json]) -> Handler:
    def answer(context: RequestContext) -> Response:
        data = _decode_review(context)
        data["status"] = status(context, data.get("spec") or {})
        return forms.render_data(context.form, 201, data)

    return answer


def _authenticate(context: RequestContext, spec: Json) -> Json:
    if not spec.get("token"):
        raise bad_request("token is required for TokenReview in authentication")
    wanted = tuple(spec.get("audiences") or ())
    user, audiences, error = _access(context).user_of(spec["token"], wanted or (ISSUER,))
    if user is None:
        return {"user": {}, "error": error}
    found: Json = {"authenticated": True, "user": user.info()}
    return {**found, "audiences": audiences} if audiences else found


def _who_am_i(context: RequestContext, spec: Json) -> Json:
    context.data["metadata"]["creationTimestamp"] = times.now()
    return {"userInfo": context.user.info()}


def _attributes(spec: Json) -> Attributes:
    asked, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (asked is None) == (path is None):
        said = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        if asked is not None:
            said = "cannot be specified in combination with resourceAttributes"
            raise _unfit(invalid("spec.nonResourceAttributes", path, said))
        raise _unfit(invalid("spec.resourceAttributes", None, said))
    if asked is None:
        return Attributes((path or {}).get("verb", ""), path=(path or {}).get("path", ""))
    fields = ("verb", "group", "resource", "subresource", "namespace", "name")
    return Attributes(*(asked.get(field, "") for field in fields))


def _unfit(error: FieldError) -> Exception:
    return invalid_object("", "", [error], "authorization.k8s.io")


def _access_status(context: RequestContext, user: User, spec: Json) -> Json:
    allowed, reason = _access(context).authorizer.allows(user, _attributes(spec))
    return {"allowed": allowed, **({"reason": reason} if reason else {})}


def _access_of_subject(context: RequestContext, spec: Json) -> Json:
    if not spec.get("user") and not spec.get("groups"):
        raise _unfit(invalid("spec.user", "", "at least one of user or group must be specified"))
    if context.namespace and (asked := spec.get("resourceAttributes")) is not None:
        given = asked.get("namespace", "")
        if given != context.namespace:
            said = "must match metadata.namespace"
            raise _unfit(invalid("spec.resourceAttributes.namespace", given, said))
    user = User(spec.get("user", ""), spec.get("uid", ""), tuple(spec.get("groups") or ()))
    return _access_status(context, user, spec)


def _rules(context: RequestContext, spec: Json) -> Json:
    namespace = spec.get("namespace", "")
    if not namespace:
        raise bad_request("no namespace on request")
    context.data["spec"] = {}
    everything = not _access(context).authorizer.is_enforced
    found = _access(context).authorizer.rules_of(context.user, namespace)
    if everything:
        every = ["*"]
        found = [{"verbs": every, "apiGroups": every, "resources": every}]
        found.append({"verbs": every, "nonResourceURLs": every})
    return {
        "resourceRules": [rule for rule in found if rule.get("resources")],
        "nonResourceRules": [rule for rule in found if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def request_token(context: RequestContext) -> Response:
    """A token for a service account."""
    objects = context.objects
    account = objects.get(context.resource, context.namespace, context.name).data()
    validation = context.read_options().validation
    kind = ("authentication.k8s.io/v1", "TokenRequest")
    data, _ = bodies.read_object(context.request, BuiltIn(_TOKEN_REQUEST), *kind, validation)
    spec = data.setdefault("spec", {})
    spec["audiences"] = spec.get("audiences") or [ISSUER]
    if spec.get("expirationSeconds") is None:
        spec["expirationSeconds"] = 3600
    seconds, at = spec["expirationSeconds"], "spec.expirationSeconds"
    said = "may not specify a duration less than 10 minutes" if seconds < MIN_SECONDS else ""
    if seconds > MAX_SECONDS:
        said = "may not specify a duration larger than 2^32 seconds"
    if said:
        errors = [invalid(at, seconds, said)]
        raise invalid_object("TokenRequest", "", errors, "authentication.k8s.io")
    bound = _bound_to(context, spec.get("boundObjectRef"))
    token = _access(context).tokens.issue(account, spec["audiences"], seconds, bound)
    data["status"] = {"token": token, "expirationTimestamp": times.later(seconds)}
    meta = account["metadata"]
    data["metadata"] = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
    data["metadata"]["creationTimestamp"] = times.now()
    return forms.render_data(context.form, 201, data)


def _bound_to(context: RequestContext, reference: Json | None) -> Json:
    """What a token is bound to, as claims."""
    if reference is None:
        return {}
    kind, name = reference.get("kind", ""), reference.get("name", "")
    collection = BOUND.get(kind.lower())
    if collection is None:
        said = f'cannot bind token for serviceaccount "{context.name}" to object "{name}" of kind "{kind}"'
        raise bad_request(said)
    namespace = "" if collection == "nodes" else context.namespace
    record = context.objects.find(collection, name, namespace)
    if record is None:
        raise not_found(name, collection)
    if reference.get("uid") and reference["uid"] != record.uid:
        said = (
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
        )
        raise conflict(name, collection, "", f"{said}The object might have been deleted and then recreated")
    found: Json = {kind.lower(): {"name": name, "uid": record.uid}}
    node = record.data()["spec"].get("nodeName", "") if collection == "pods" else ""
    if node and (known := context.objects.find("nodes", node)) is not None:
        found["node"] = {"name": node, "uid": known.uid}
    return found


REVIEWS: dict[str, Handler] = {
    "selfsubjectaccessreviews": _review(lambda context, spec: _access_status(context, context.user, spec)),
    "subjectaccessreviews": _review(_access_of_subject),
    "localsubjectaccessreviews": _review(_access_of_subject),
    "selfsubjectrulesreviews": _review(_rules),
    "selfsubjectreviews": _review(_who_am_i),
    "tokenreviews": _review(_authenticate),
}
