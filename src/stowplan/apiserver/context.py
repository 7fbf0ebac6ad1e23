"""One request, as the steps of the server pass it on."""

from __future__ import annotations

from dataclasses import dataclass, field

from stowplan.api.meta import Json
from stowplan.apiserver import bodies, forms, managed
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.options import Form, Query, WriteOptions, write_options
from stowplan.apiserver.rbac import ADMIN, User
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.store import Record
from stowplan.apiserver.tokens import Access
from stowplan.http11.messages import Request

_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
_INTERNAL, _SERVER = Request("", ""), Manager("kube-apiserver", "Update", "v1")


@dataclass(slots=True)
class RequestContext:
    """One request on its way through the server. The router fills in the first part, the steps the second."""

    objects: Objects
    resource: Resource
    namespace: str = ""
    name: str = ""
    verb: str = "create"
    subresource: str = ""
    request: Request = _INTERNAL
    """Empty for writes of the server's own."""
    query: Query = field(default_factory=lambda: Query(""))
    access: Access | None = None
    """Who may do what; None for writes of the server's own."""

    manager: Manager = _SERVER
    dry_run: bool = False
    before: Record | None = None
    """The object that is replaced; None while it does not exist."""
    old: Json = field(default_factory=dict)
    """What `before` contains."""
    data: Json = field(default_factory=dict)
    """The object to write, in the version that is stored."""
    owners: managed.AnyManaged | None = None
    """Its managedFields, if the request decides them itself."""
    warnings: list[str] = field(default_factory=list)
    record: Record | None = None
    """What was stored."""

    @property
    def media(self) -> str:
        return bodies.media_type(self.request.headers.get("content-type", ""))

    @property
    def form(self) -> Form:
        request = self.request
        return forms.form_of(request.headers.get("accept", ""), self.query("includeObject"), request.is_bare)

    @property
    def user(self) -> User:
        return self.request.user if isinstance(self.request.user, User) else ADMIN

    @property
    def writes_status(self) -> bool:
        return self.manager.subresource in ("status", "approval")

    def read_options(self, *, is_apply: bool = False) -> WriteOptions:
        """The options of a write; they say who manages the fields, and whether anything is kept."""
        options = write_options(self.request, self.query, _OPTIONS[self.verb], is_apply)
        operation = "Apply" if is_apply else "Update"
        self.manager = Manager(options.manager, operation, self.resource.group_version, self.subresource)
        self.dry_run = options.dry_run
        return options

    def load(self) -> Record:
        """Fill in the object to replace; a 404 if there is none."""
        before = self.objects.get(self.resource, self.namespace, self.name)
        is_custom = self.resource.is_custom
        self.before, self.old = before, forms.served(self.resource, before) if is_custom else before.data()
        return before
