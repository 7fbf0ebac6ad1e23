"""Writes the structure of the Kubernetes API that stowplan.apiserver serves, as two compact data files.

Run as `python tests/controlplane/api_schemas.py`. The second file has what the gates of pod groups add. What
is served and of which form comes from a real kube-apiserver (discovery, table columns and OpenAPI v3, without
descriptions); which fields are left out of JSON when empty, and how Go names their types in its messages,
comes from the Go sources of that version.
"""

from __future__ import annotations

import gzip
import json
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from controlplane.control_plane import ADMIN, ControlPlane, open_url, token_of  # noqa: E402

Json = dict[str, Any]

GROUP_VERSIONS = (
    "v1",
    "apps/v1",
    "batch/v1",
    "policy/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
    "coordination.k8s.io/v1",
    "events.k8s.io/v1",
    "resource.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "autoscaling/v2",
    "autoscaling/v1",
    "discovery.k8s.io/v1",
    "node.k8s.io/v1",
    "networking.k8s.io/v1",
    "admissionregistration.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "certificates.k8s.io/v1",
    "apiregistration.k8s.io/v1",
)
GATES = (
    "GenericWorkload",
    "GangScheduling",
    "TopologyAwareWorkloadScheduling",
    "WorkloadAwarePreemption",
    "WorkloadWithJob",
    "DRAWorkloadResourceClaims",
)
GATED_VERSION = "scheduling.k8s.io/v1alpha2"
GATED_FLAGS = (
    f"--feature-gates={','.join(f'{gate}=true' for gate in GATES)}",
    f"--runtime-config={GATED_VERSION}=true",
)
META = ("name", "namespace", "labels", "annotations")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
TARGET = HERE.parents[1] / "src" / "stowplan" / "apiserver" / "schemas.json.gz"
GATED_TARGET = TARGET.with_name("gated_schemas.json.gz")
MODULES = {
    "io.k8s.api.": "k8s.io/api",
    "io.k8s.apimachinery.": "k8s.io/apimachinery",
    "io.k8s.apiextensions-apiserver.": "k8s.io/apiextensions-apiserver",
    "io.k8s.kube-aggregator.": "k8s.io/kube-aggregator",
}
_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\t(?:(\w+)\s+)?([\w.\[\]*]+)\s+`([^`]*json:\"([^\"]*)\"[^`]*)`", re.MULTILINE)
_NUMBER = re.compile(r'protobuf:"\w+,(\d+)')


def main() -> None:
    data = _collect_from(GROUP_VERSIONS)
    gated = _collect_from((GATED_VERSION,), *GATED_FLAGS)
    known = data["bootstrap"]
    gated["bootstrap"] = [item for item in gated["bootstrap"] if item not in known]
    for part in ("schemas", "fields", "parts"):
        gated[part] = {name: each for name, each in gated[part].items() if name not in data[part]}
    for target, found in ((TARGET, data), (GATED_TARGET, gated)):
        target.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))


def _collect_from(group_versions: tuple[str, ...], *flags: str) -> Json:
    with tempfile.TemporaryDirectory() as folder:
        control_plane = ControlPlane(Path(folder), *flags)
        control_plane.start()
        try:
            return collect(control_plane, group_versions)
        finally:
            control_plane.stop()


def collect(control_plane: ControlPlane, group_versions: tuple[str, ...]) -> Json:
    resources: list[Json] = []
    schemas: Json = {}
    for group_version in group_versions:
        root = f"/api/{group_version}" if "/" not in group_version else f"/apis/{group_version}"
        for resource in control_plane.request("GET", root)["resources"]:
            resources.append({"groupVersion": group_version, **resource})
            if "list" in resource["verbs"]:
                table = _table(control_plane, f"{root}/{resource['name']}")
                resources[-1]["columns"] = [
                    [column["name"], column["type"], column["format"], column["priority"]]
                    for column in table["columnDefinitions"]
                ]
        document = control_plane.request("GET", f"/openapi/v3{root}")
        schemas |= {name: _bare(schema) for name, schema in document["components"]["schemas"].items()}
    fields: Json = {}
    parts: Json = {}
    for name in schemas:
        _go_fields(name, fields, parts)
    return {
        "resources": resources,
        "schemas": schemas,
        "fields": fields,
        "parts": parts,
        "bootstrap": _bootstrap(control_plane),
    }


def _bootstrap(control_plane: ControlPlane) -> list[Json]:
    """The roles and bindings that kube-apiserver creates in every cluster."""
    found = []
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        path = f"/apis/rbac.authorization.k8s.io/v1/{kind.lower()}s"
        for item in control_plane.request("GET", path)["items"]:
            meta = {key: item["metadata"][key] for key in META if key in item["metadata"]}
            found.append({"kind": kind, **item, "metadata": meta})
    return found


def _table(control_plane: ControlPlane, path: str) -> Json:
    headers = {"Authorization": f"Bearer {token_of(ADMIN)}", "Accept": TABLE}
    asked = urllib.request.Request(control_plane.server + path, headers=headers)
    with open_url(asked, ssl.create_default_context(cafile=str(control_plane.certificate))) as answer:
        table: Json = json.loads(answer.read())
    return table


def _bare(schema: Any, is_map_of_fields: bool = False) -> Any:
    """The schema without its sentences."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value, key == "properties" and not is_map_of_fields)
        for key, value in schema.items()
        if is_map_of_fields or key not in ("description", "x-kubernetes-unions")
    }


def _go_fields(schema: str, fields: Json, parts: Json) -> None:
    """Per JSON field of a schema: Go's type of it, when it is left out of JSON, and its protobuf number.

    What JSON has inline is a message of its own in protobuf: `parts` has those, by their numbers.
    """
    for prefix, module in MODULES.items():
        if schema.startswith(prefix):
            package, _, struct = schema.removeprefix(prefix).rpartition(".")
            folder = _folder(module) / package.replace(".", "/")
            if found := _fields(folder, struct):
                fields[schema] = found
            for number, inner in _inlined(folder, struct):
                part = f"{schema.rpartition('.')[0]}.{inner}"
                parts.setdefault(schema, {})[number] = part
                fields.setdefault(part, _fields(folder, inner))
                for deeper, innermost in _inlined(folder, inner):
                    parts.setdefault(part, {})[deeper] = f"{schema.rpartition('.')[0]}.{innermost}"
                    fields.setdefault(f"{schema.rpartition('.')[0]}.{innermost}", _fields(folder, innermost))


def _inlined(folder: Path, struct: str) -> list[tuple[str, str]]:
    found = []
    for _, kind, tags, tag in _FIELD.findall(_structs(folder).get(struct, "")):
        number = _NUMBER.search(tags)
        if tag.startswith(",") and number and "." not in kind:
            found.append((number[1], kind.lstrip("*")))
    return found


@cache
def _folder(module: str) -> Path:
    command = ["go", "list", "-m", "-f", "{{.Dir}}", module]
    return Path(subprocess.run(command, cwd=HERE, check=True, capture_output=True, text=True).stdout.strip())


@cache
def _structs(folder: Path) -> dict[str, str]:
    source = "\n".join(
        path.read_text() for path in sorted(folder.glob("*.go")) if not path.name.startswith("zz_")
    )
    return dict(_STRUCT.findall(source))


def _fields(folder: Path, struct: str) -> Json:
    found: Json = {}
    for name, kind, tags, tag in _FIELD.findall(_structs(folder).get(struct, "")):
        key, _, options = tag.partition(",")
        number = _NUMBER.search(tags)
        if key:
            found[key] = [_qualified(kind, folder), _omission(options), int(number[1]) if number else 0]
        elif not name or "inline" in options:
            inner = _fields(folder, kind.lstrip("*")) if "." not in kind else {}
            # Inside a message of its own a field has a number that means nothing here.
            found |= {key: [*facts[:2], 0 if number else facts[2]] for key, facts in inner.items()}
    return found


def _omission(options: str) -> int:
    """0: never left out; 1: when empty, which a struct never is; 2: when zero, a struct too."""
    return 2 if "omitzero" in options else int("omitempty" in options)


def _qualified(kind: str, folder: Path) -> str:
    """A type as Go prints it: names of the package itself with the package's name before them."""
    match = re.fullmatch(r"((?:\*|\[\]|map\[[\w.]+\])*)([\w.]+)", kind)
    assert match is not None, kind
    name = match[2].replace("metav1.", "v1.")
    return match[1] + (f"{folder.name}.{name}" if name[0].isupper() else name)


if __name__ == "__main__":
    main()
