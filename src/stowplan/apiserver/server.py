"""The API server without a transport: a request in, an answer or a stream of events out.

`ApiServer(store).handle(request)` is the door for everything: the HTTPS front, tests, and whoever runs in the
same process. It knows nothing of sockets, and nothing of who the client is: all clients may do everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stowplan.apiserver import bodies, bootstrap, discovery, health, openapi, openapi_v2, reviews
from stowplan.apiserver.custom import CustomResources
from stowplan.apiserver.failures import (
    Failure,
    bad_request,
    internal,
    method_not_allowed,
    not_found,
    unknown_resource,
)
from stowplan.apiserver.messages import Answer, Query, Request, Stream
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.options import list_options
from stowplan.apiserver.reading import answer_list, selection_of
from stowplan.apiserver.resources import Resources
from stowplan.apiserver.store import Store
from stowplan.apiserver.subresources import SUBRESOURCES
from stowplan.apiserver.verbs import Target, Verbs
from stowplan.apiserver.watching import Watch
from stowplan.errors import QuantityError
from stowplan.log import error as log_error

Json = dict[str, Any]

LARGE_YAML = 16 * 1024
_NO_PAGE = Answer(404, b"404 page not found\n", "text/plain; charset=utf-8")
_ON_OBJECT = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ON_COLLECTION = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


class ApiServer:
    """One Kubernetes API over one store."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        self.objects = Objects(self.store)
        self.resources = Resources()
        self.verbs = Verbs(self.objects, self.resources)
        for resource in self.resources:
            self.objects.collection(resource)
        self.custom = CustomResources(self.objects, self.resources)
        bootstrap.fill(self.objects, self.resources)
        self.store.commit()

    @property
    def token(self) -> str:
        """The token of the one who may do everything; a TokenReview accepts it."""
        return self.verbs.token

    @token.setter
    def token(self, token: str) -> None:
        self.verbs.token = token

    async def handle(self, request: Request) -> Answer | Stream:
        """Never raises for what a client did."""
        answer: Answer | Stream
        try:
            if request.body and bodies.is_yaml(bodies.media_of(request), request.body):
                await self._convert_yaml(request)
            answer = self._answer(request)
        except Failure as failure:
            answer = Answer.refusal(failure)
        except QuantityError as error:
            answer = Answer.refusal(bad_request(str(error)))
        except RecursionError:  # most is found out before
            answer = Answer.refusal(bad_request("the object is nested too deeply"))
        except Exception as error:
            log_error("Request failed", error, method=request.method, path=request.path)
            answer = Answer.refusal(internal(f"Internal error occurred: {error}"))
        if request.method != "GET":
            try:
                # A rejection waits as well: it may rest on a write of somebody else that now fails.
                await self.store.committed()
            except Failure as failure:
                return Answer.refusal(failure)
        return answer

    @staticmethod
    async def _convert_yaml(request: Request) -> None:
        """YAML takes its time: a large document is read in a thread, so that others go on meanwhile."""
        if len(request.body) > LARGE_YAML:
            request.body = await asyncio.to_thread(bodies.yaml_to_json, request.body)
        else:
            request.body = bodies.yaml_to_json(request.body)

    def _answer(self, request: Request) -> Answer | Stream:
        parts = [part for part in request.path.split("/") if part]
        match parts:
            case ["api", version, *rest] if rest:
                return self._resource(request, "", version, rest)
            case ["apis", group, version, *rest] if rest:
                return self._resource(request, group, version, rest)
        if len(parts) == 3 and parts[0] == "apis" and not self.resources.serves(parts[1], parts[2]):
            return self._no_version(parts[1])
        for page in (discovery.answer, openapi.answer, openapi_v2.answer, health.answer):
            found = page(self.resources, request, parts)
            if found is not None:
                if request.method != "GET" and page is not health.answer:
                    raise method_not_allowed()
                return found
        return _NO_PAGE

    def _no_version(self, group: str) -> Answer:
        if self.resources.serves(group):
            raise unknown_resource()
        return _NO_PAGE

    def _resource(self, request: Request, group: str, version: str, rest: list[str]) -> Answer | Stream:
        if not self.resources.serves(group, version):
            return self._no_version(group)
        watch_path = rest[0] == "watch" and len(rest) > 1
        rest = rest[1:] if watch_path else rest
        namespace = ""
        if (
            rest[0] == "namespaces"
            and len(rest) > 2
            and (len(rest) > 3 or not self._is_below_namespace(rest[2]))
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
        target = Target(resource, namespace, name, request, Query(request.query))
        if below:
            return self._subresource(target, below)
        if watch_path or (request.method == "GET" and target.query.flag("watch")):
            return self._watch(target)
        return self._verb(target)

    def _is_below_namespace(self, part: str) -> bool:
        namespaces = self.resources.find("", "v1", "namespaces")
        return namespaces is not None and part in namespaces.subresources

    def _verb(self, target: Target) -> Answer:
        method, resource = target.request.method, target.resource
        verb = (_ON_OBJECT if target.name else _ON_COLLECTION).get(method)
        all_namespaces = resource.namespaced and not target.namespace
        is_there = verb in resource.verbs and (not all_namespaces or verb == "list")
        if not is_there or verb is None:
            raise method_not_allowed()
        if verb == "list":
            return self._list(target)
        if resource.plural in reviews.REVIEWS and "list" not in resource.verbs:
            return reviews.REVIEWS[resource.plural](self.verbs, target)
        run: Callable[[Target], Answer] = getattr(self.verbs, verb)
        return run(target)

    def _list(self, target: Target) -> Answer:
        resource, options = target.resource, list_options(target.query)
        form = target.form
        selection = selection_of(resource, target.namespace, options)
        return answer_list(resource, self.objects.collection(resource), selection, options, form)

    def _watch(self, target: Target) -> Stream:
        resource, options = target.resource, list_options(target.query)
        options.watch = True
        selection = selection_of(resource, target.namespace, options, target.name)
        watch = Watch(resource, self.objects.collection(resource), selection, options, target.form)
        return Stream(watch.chunks())

    def _subresource(self, target: Target, below: str) -> Answer:
        known = target.resource.subresources[below]
        verb = {**_ON_OBJECT, "POST": "create"}.get(target.request.method, "")
        if verb not in known.verbs:
            raise method_not_allowed()
        run = SUBRESOURCES.get(below)
        if run is None:
            raise unknown_resource()
        return run(self.verbs, target, verb)
