"""The API server without a transport: a request in, a response or a stream of events out.

`ApiServer(store).handle(request)` handles everything: the HTTPS server, tests, and clients in the
same process. It knows nothing of sockets. Whoever calls it may do everything, unless the request names its
user and the server enforces RBAC.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable

from stowplan.api.meta import Json
from stowplan.apiserver import (
    admission,
    bodies,
    containers,
    discovery,
    forms,
    openapi,
    pipeline,
    schemas,
    times,
    webhooks,
)
from stowplan.apiserver.context import RequestContext
from stowplan.apiserver.custom import CustomResources
from stowplan.apiserver.failures import (
    Failure,
    bad_request,
    internal,
    method_not_allowed,
    not_found,
    unknown_resource,
)
from stowplan.apiserver.faults import Faults
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.options import Query, delete_options, list_options
from stowplan.apiserver.rbac import (
    ADMIN,
    Aggregation,
    User,
    acting_user,
    attributes_of,
    bootstrap_objects,
    impersonates,
)
from stowplan.apiserver.reading import Watch, answer_list, selection_of
from stowplan.apiserver.resources import Resources
from stowplan.apiserver.store import Store
from stowplan.apiserver.strategies.groups import are_served
from stowplan.apiserver.subresources import CREATED_ONLY, SUBRESOURCES, get
from stowplan.apiserver.tokens import ISSUER, Access
from stowplan.config.gates import NO_GATES, FeatureGates
from stowplan.errors import QuantityError
from stowplan.http11.messages import Request, Response, Stream
from stowplan.log import error as log_error

RANGES = "servicecidrs.networking.k8s.io"
API_SERVICES = "apiservices.apiregistration.k8s.io"
LARGE_YAML = 16 * 1024
VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.4",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
"""The version of the API that is served."""
OPENID = {
    "issuer": ISSUER,
    "jwks_uri": f"{ISSUER}/openid/v1/jwks",
    "response_types_supported": ["id_token"],
    "subject_types_supported": ["public"],
    "id_token_signing_alg_values_supported": ["ES256"],
}
_PATHS = ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
_NO_PAGE = Response(404, b"404 page not found\n", "text/plain; charset=utf-8")
_ON_OBJECT = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OF_CONTAINERS = ("log", "exec", "attach", "portforward", "proxy")
_ON_SUBRESOURCE = {**_ON_OBJECT, "POST": "create"}
_ON_COLLECTION = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


class ApiServer:
    """One Kubernetes API over one store; `now` is its clock, in seconds since 1970."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        rbac: bool = False,
        now: Callable[[], float] = time.time,
        gates: FeatureGates = NO_GATES,
    ) -> None:
        self._now = now
        times.CLOCK.set(now)
        self.store = store or Store()
        self.faults = Faults()
        """What goes wrong on purpose."""
        self.resources = Resources(gates)
        self._below_namespace = frozenset(self.resources.kept_in("namespaces").subresources)
        self.objects = Objects(self.store, self.resources)
        self.access = Access(self.objects, rbac=rbac, now=now)
        for resource in self.resources:
            self.objects.collection(resource).is_bounded = schemas.is_bounded(resource.schema)
        self.custom = CustomResources(self.objects)
        self.containers: containers.Containers | None = None
        """Answers for containers on nodes, if somebody simulates them."""
        self.proxied: dict[str, Callable[[Request], Awaitable[Response]]] = {}
        """Answers for the pages of other components, by the first part of their paths."""
        containers.serve_metrics(self.resources)
        self.aggregation = Aggregation(self.objects)
        _create_defaults(self.objects)
        if rbac:
            for collection, item in bootstrap_objects(with_groups=are_served(gates)):
                _create(self.objects, collection, item, item["metadata"].get("namespace", ""))
        self.store.commit()

    async def advertise(self, host: str, port: int) -> None:
        """Publish where the server listens, as the endpoints of the Service `kubernetes`."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = ipaddress.ip_address("127.0.0.1")
        where, ports = str(address), [{"name": "https", "port": port, "protocol": "TCP"}]
        family = {"addressType": f"IPv{address.version}"}
        ready = {"addresses": [where], "conditions": {"ready": True}}
        for collection, label, body in (
            (
                "endpoints",
                "endpointslice.kubernetes.io/skip-mirror=true",
                {"subsets": [{"addresses": [{"ip": where}], "ports": ports}]},
            ),
            (
                "endpointslices.discovery.k8s.io",
                "kubernetes.io/service-name=kubernetes",
                {**family, "endpoints": [ready], "ports": ports},
            ),
        ):
            resource = self.resources.kept_in(collection)
            if (known := self.objects.latest(resource, "default", "kubernetes")) is not None:
                self.objects.remove(resource, known.key, known.data())
            metadata = {"name": "kubernetes", "labels": dict([label.split("=")])}
            _create(self.objects, collection, {"metadata": metadata, **body}, "default")
        await self.store.committed()

    async def handle(self, request: Request) -> Response | Stream:
        """Handle a request; never raises because of what a client sent."""
        answer: Response | Stream
        times.CLOCK.set(self._now)
        try:
            given = request.headers.get("content-type", "")
            if "yaml" in given and request.body and bodies.is_yaml(bodies.media_type(given), request.body):
                await self._convert_yaml(request)
            if self.access.authorizer.is_enforced or impersonates(request):
                self._authorize(request)
            if self.faults:
                await self.faults.act(request)
            request.memory = {}
            if self.proxied and (proxied := self.proxied.get(request.path.split("/", 2)[1])):
                return await proxied(request)
            try:
                answer = self._answer(request)
            except webhooks.Pending as pending:
                answer = await self._answer_with_webhooks(request, pending)
        except Failure as failure:
            answer = failure.response()
        except QuantityError as error:
            answer = bad_request(str(error)).response()
        except RecursionError:  # most is found out before
            answer = bad_request("the object is nested too deeply").response()
        except Exception as error:
            log_error("Request failed", error, method=request.method, path=request.path)
            answer = internal(f"Internal error occurred: {error}").response()
        if request.method != "GET":
            try:
                # A rejection waits as well: it may rest on a write of somebody else that now fails.
                await self.store.committed()
            except Failure as failure:
                return failure.response()
        return answer

    async def _answer_with_webhooks(self, request: Request, pending: webhooks.Pending) -> Response | Stream:
        """Answer the request again, as long as webhooks have to be called for it."""
        while True:
            await webhooks.answer(pending.calls, request.memory)
            try:
                return self._answer(request)
            except webhooks.Pending as more:
                pending = more

    def _authorize(self, request: Request) -> None:
        """Find out whom the request acts as, and reject what that user may not do."""
        user = request.user if isinstance(request.user, User) else ADMIN
        if impersonates(request):
            user = acting_user(request, user, self.access.authorizer)
        request.user = user
        if self.access.authorizer.is_enforced:
            self.access.authorizer.check(user, attributes_of(request))

    @staticmethod
    async def _convert_yaml(request: Request) -> None:
        """YAML is slow: convert a large document in a thread, so that other requests continue."""
        if len(request.body) > LARGE_YAML:
            request.body, request.duplicates = await asyncio.to_thread(bodies.yaml_to_json, request.body)
        else:
            request.body, request.duplicates = bodies.yaml_to_json(request.body)

    def _answer(self, request: Request) -> Response | Stream:
        parts = list(filter(None, request.path.split("/")))
        match parts:
            case ["api", version, *rest] if rest:
                return self._serve(request, "", version, rest)
            case ["apis", group, version, *rest] if rest:
                return self._serve(request, group, version, rest)
            case ["version"]:
                return Response.of(200, VERSION)
            case ["openid", "v1", "jwks"]:
                return Response.of(200, self.access.tokens.keys())
            case [".well-known", "openid-configuration"]:
                return Response.of(200, OPENID)
            case ["healthz" | "livez" | "readyz", *_]:
                return Response(200, b"ok", "text/plain; charset=utf-8")
            case []:
                return Response.of(200, {"paths": _PATHS})
            case ["apis", group, version] if not self.resources.serves(group, version):
                return self._no_version(group)
        for page in (discovery.answer, openapi.answer):
            found = page(self.resources, request, parts)
            if found is not None:
                if request.method != "GET":
                    raise method_not_allowed()
                return found
        return _NO_PAGE

    def _no_version(self, group: str) -> Response:
        if self.resources.serves_built_in(group):
            raise unknown_resource()
        return _NO_PAGE

    def _serve(self, request: Request, group: str, version: str, rest: list[str]) -> Response | Stream:
        """Find the resource that the path names, and run the verb that the method means."""
        if not self.resources.serves(group, version):
            return self._no_version(group)
        is_watch = rest[0] == "watch" and len(rest) > 1
        rest = rest[1:] if is_watch else rest
        namespace = ""
        if (
            rest[0] == "namespaces"
            and len(rest) > 2
            and (len(rest) > 3 or rest[2] not in self._below_namespace)
        ):
            namespace, rest = rest[1], rest[2:]
        plural, name, below = rest[0], rest[1] if len(rest) > 1 else "", "/".join(rest[2:])
        resource = self.resources.find(group, version, plural)
        if resource is None or (namespace and not resource.namespaced):
            raise unknown_resource()
        if resource.namespaced and name and not namespace:
            raise unknown_resource()
        if below and below not in resource.subresources:
            raise not_found(name, plural, group) if resource.is_custom else unknown_resource()
        verbs = _ON_SUBRESOURCE if below else _ON_OBJECT if name else _ON_COLLECTION
        query = Query(request.query)
        context = RequestContext(
            self.objects,
            resource,
            namespace,
            name,
            verbs.get(request.method, ""),
            below,
            request,
            query,
            self.access,
        )
        if below:
            if context.verb not in resource.subresources[below].verbs:
                raise method_not_allowed()
            if below in _OF_CONTAINERS and plural == "pods":
                return containers.answer(self.containers, context)
            if below not in SUBRESOURCES:
                raise unknown_resource()
            return SUBRESOURCES[below](context)
        if group == containers.METRICS:
            return containers.metrics(self.containers, context)
        if is_watch and request.method != "GET":
            raise method_not_allowed()
        if is_watch or (request.method == "GET" and query.flag("watch")):
            return self._watch(context)
        if context.verb not in resource.verbs:
            raise method_not_allowed()
        if resource.namespaced and not namespace and context.verb != "list":
            raise method_not_allowed()
        if plural in CREATED_ONLY and "list" not in resource.verbs:
            return CREATED_ONLY[plural](context)
        return _VERBS[context.verb](context)

    def _watch(self, context: RequestContext) -> Stream:
        resource, options = context.resource, list_options(context.query)
        options.watch = True
        selection = selection_of(resource, context.namespace, options, context.name)
        watch = Watch(resource, context.objects.collection(resource), selection, options, context.form)
        watch.request = context.request
        self.faults.watches.add(watch)
        return Stream(watch.chunks())


def _list(context: RequestContext) -> Response:
    resource, options, form = context.resource, list_options(context.query), context.form
    selection = selection_of(resource, context.namespace, options)
    return answer_list(resource, context.objects.collection(resource), selection, options, form)


def _delete(context: RequestContext) -> Response:
    form, resource = context.form, context.resource
    options = delete_options(context.request, context.query)
    context.dry_run = options.dry_run
    found = context.objects.latest(resource, context.namespace, context.name)
    if found is not None:
        admission.check_delete(context, found)
    record, is_gone = context.objects.delete(resource, context.namespace, context.name, options)
    if not is_gone or resource.strategy.returns_deleted:
        return forms.render_object(form, resource, record)
    details = {"name": context.name, "group": resource.group, "kind": resource.plural, "uid": record.uid}
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return Response.of(200, {**status, "details": {key: value for key, value in details.items() if value}})


def _delete_collection(context: RequestContext) -> Response:
    form, resource, objects = context.form, context.resource, context.objects
    options = delete_options(context.request, context.query)
    selection = selection_of(resource, context.namespace, list_options(context.query))
    chosen = [record for record in objects.collection(resource).all_latest() if selection.takes(record)]
    chosen.sort(key=lambda record: record.key)
    context.dry_run = options.dry_run
    for record in chosen:
        admission.check_delete(context, record)
    for record in chosen:
        objects.delete(resource, *record.key, options)
    return forms.render_list(form, resource, chosen, {"resourceVersion": str(objects.store.version)})


_VERBS: dict[str, Callable[[RequestContext], Response]] = {
    "get": get,
    "list": _list,
    "create": pipeline.run,
    "update": pipeline.run,
    "patch": pipeline.run,
    "delete": _delete,
    "deletecollection": _delete_collection,
}


def _create_defaults(objects: Objects) -> None:
    """Create what every cluster has from the start, unless it is there."""
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        _create(objects, "namespaces", {"metadata": {"name": name}, "spec": {}})
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        _create(objects, "priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})
    labels = {"component": "apiserver", "provider": "kubernetes"}
    ports = [{"name": "https", "port": 443, "targetPort": 6443}]
    service = {
        "metadata": {"name": "kubernetes", "labels": labels},
        "spec": {"clusterIP": "10.96.0.1", "ports": ports},
    }
    _create(objects, "services", service, "default")
    _create(objects, RANGES, {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}})
    record = objects.find(RANGES, "kubernetes")
    if record is not None and not (data := record.data())["status"].get("conditions"):
        message = "Kubernetes default Service CIDR is ready"
        ready = {"type": "Ready", "status": "True", "reason": "", "message": message}
        data["status"]["conditions"] = [ready | {"lastTransitionTime": times.now()}]
        objects.put(objects.resources.kept_in(RANGES), record.key, data, record.managed)
    for group, version in sorted({(each.group, each.version) for each in objects.resources}):
        _create(objects, API_SERVICES, _api_service(group, version))


def _api_service(group: str, version: str) -> Json:
    """What says that this server itself serves a version of a group."""
    labels = {"kube-aggregator.kubernetes.io/automanaged": "onstart"}
    available = {
        "type": "Available",
        "status": "True",
        "lastTransitionTime": times.now(),
        "reason": "Local",
        "message": "Local APIServices are always available",
    }
    spec = {"version": version, "groupPriorityMinimum": 17000 if group else 18000, "versionPriority": 15}
    return {
        "metadata": {"name": f"{version}.{group}", "labels": labels},
        "spec": {**({"group": group} if group else {}), **spec},
        "status": {"conditions": [available]},
    }


def _create(objects: Objects, collection: str, body: Json, namespace: str = "") -> None:
    resource, name = objects.resources.kept_in(collection), body["metadata"]["name"]
    if objects.latest(resource, namespace, name) is not None:
        return
    context = RequestContext(objects, resource, namespace, name)
    context.manager = Manager("kube-apiserver", "Update", resource.group_version)
    kind = {"kind": resource.kind, "apiVersion": resource.group_version}
    context.data, _ = resource.codec.normalize({**kind, **body})
    pipeline.write(context)
