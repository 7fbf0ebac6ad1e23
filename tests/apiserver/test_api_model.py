"""Random operations on the API server and on a dictionary, which must agree; a watcher sees every change."""

from __future__ import annotations

import asyncio
from typing import Any

from api_staging import Staged
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NAMES = st.sampled_from("abc")
DATA = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("123"), max_size=3)


class ApiModel(RuleBasedStateMachine):
    """The model: what each object holds, and the version it was last written in."""

    def __init__(self) -> None:
        super().__init__()
        self.api = Staged()
        self.start = self.api.server.store.version
        self.model: dict[str, dict[str, str]] = {}
        self.versions: dict[str, str] = {}
        self.changes: list[tuple[str, str]] = []

    def ask(self, method: str, target: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return asyncio.run(self.api(method, CONFIG_MAPS + target, body, **headers))

    @rule(name=NAMES, data=DATA)
    def create(self, name: str, data: dict[str, str]) -> None:
        status, answer = self.ask("POST", "", {"metadata": {"name": name}, "data": data})
        assert status == (409 if name in self.model else 201)
        if status == 201:
            self.written(name, data, answer, "ADDED")

    @rule(name=NAMES, data=DATA, is_stale=st.booleans())
    def update(self, name: str, data: dict[str, str], is_stale: bool) -> None:
        version = "1" if is_stale else self.versions.get(name, "")
        body = {"metadata": {"name": name, "resourceVersion": version}, "data": data}
        status, answer = self.ask("PUT", f"/{name}", body)
        assert status == (404 if name not in self.model else 409 if is_stale else 200)
        if status == 200:
            self.written(name, data, answer, "MODIFIED")

    @rule(
        name=NAMES,
        data=st.dictionaries(st.sampled_from("xyz"), st.none() | st.sampled_from("45"), max_size=3),
    )
    def patch(self, name: str, data: dict[str, str | None]) -> None:
        media = "application/merge-patch+json"
        status, answer = self.ask("PATCH", f"/{name}", {"data": data}, content_type=media)
        assert status == (200 if name in self.model else 404)
        if status == 200:
            merged: dict[str, Any] = {**self.model[name], **data}
            kept = {key: value for key, value in merged.items() if value is not None}
            self.written(name, kept, answer, "MODIFIED")

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        status, _ = self.ask("DELETE", f"/{name}")
        assert status == (200 if name in self.model else 404)
        if self.model.pop(name, None) is not None:
            self.changes.append(("DELETED", name))
            del self.versions[name]

    def written(self, name: str, data: dict[str, str], answer: Any, kind: str) -> None:
        version = answer["metadata"]["resourceVersion"]
        if version != self.versions.get(name):
            self.changes.append((kind, name))
        else:
            assert self.model[name] == data  # the same version means that nothing changed
        self.model[name], self.versions[name] = dict(data), version

    @invariant()
    def list_agrees(self) -> None:
        _, found = self.ask("GET", "")
        assert {item["metadata"]["name"]: item.get("data", {}) for item in found["items"]} == self.model
        assert [item["metadata"]["name"] for item in found["items"]] == sorted(self.model)

    def teardown(self) -> None:
        _, found = self.ask("GET", f"?watch=1&resourceVersion={self.start}")
        events = found if isinstance(found, list) else [found]
        assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == self.changes


TestApiModel = ApiModel.TestCase
TestApiModel.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
