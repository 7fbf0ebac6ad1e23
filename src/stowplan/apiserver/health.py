"""Health, version and the other small pages."""

from __future__ import annotations

from stowplan.apiserver.messages import Answer, Request
from stowplan.apiserver.resources import Resources

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


def answer(resources: Resources, request: Request, parts: list[str]) -> Answer | None:
    match parts:
        case ["version"]:
            return Answer.of(200, VERSION)
        case ["healthz" | "livez" | "readyz", *_]:
            return Answer(200, b"ok", "text/plain; charset=utf-8")
        case []:
            paths = ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]
            return Answer.of(200, {"paths": paths})
    return None
