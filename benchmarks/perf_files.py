"""The files of Kubernetes' scheduler_perf: test cases, their operations and the templates of their objects.

Nothing here talks to a cluster. Each `performance-config.yaml` lists test cases; each of them is a sequence
of operations, and workloads that give its parameters their values.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

Json = dict[str, Any]
Render = Callable[[Mapping[str, Any]], str]

CONFIG = "performance-config.yaml"
IN_MODULE = "test/integration/scheduler_perf"
ACTION = re.compile(r"\{\{(-\s)?\s*(.*?)\s*(\s-)?\}\}", re.DOTALL)
WORD = re.compile(r'\s*(?:(\.\w+)|(-?\d+(?:\.\d+)?)|"([^"]*)"|(\w+)|([()|]))')
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class FileError(Exception):
    """A file cannot be used; the message names it and says what is wrong."""


class Op(
    msgspec.Struct, kw_only=True, rename="camel", tag_field="opcode", forbid_unknown_fields=True, frozen=True
):
    """An operation. A field `xParam` names the parameter that gives `x` its value."""


class Barrier(Op, tag="barrier"):
    namespaces: tuple[str, ...] = ()
    label_selector: dict[str, str] = {}
    stage_requirement: str = "Scheduled"


class CreateNodes(Op, tag="createNodes"):
    count: int = 0
    count_param: str = ""
    node_template_path: str = ""
    node_allocatable_strategy: Json = {}
    label_node_prepare_strategy: Json = {}
    unique_node_label_strategy: Json = {}


class CreateNamespaces(Op, tag="createNamespaces"):
    prefix: str
    count: int = 0
    count_param: str = ""
    namespace_template_path: str = ""


class CreatePods(Op, tag="createPods"):
    count: int = 0
    count_param: str = ""
    steady_state: bool = False
    steady_state_param: str = ""
    duration: str = "0s"
    duration_param: str = ""
    collect_metrics: bool = False
    namespace: str = ""
    pod_template_path: str = ""
    skip_wait_to_completion: bool = False
    persistent_volume_template_path: str = ""
    persistent_volume_claim_template_path: str = ""


class CreatePodSets(Op, tag="createPodSets"):
    namespace_prefix: str
    create_pods_op: CreatePods
    count: int = 0
    count_param: str = ""


class DeletePods(Op, tag="deletePods"):
    namespace: str
    label_selector: dict[str, str] = {}
    skip_wait_to_completion: bool = False
    delete_pods_per_second: int = 0


class Churn(Op, tag="churn"):
    mode: str
    template_paths: tuple[str, ...]
    number: int = 0
    interval_milliseconds: int = 500
    namespace: str = ""


class Sleep(Op, tag="sleep"):
    duration: str = "0s"
    duration_param: str = ""


class StartCollectingMetrics(Op, tag="startCollectingMetrics"):
    namespaces: tuple[str, ...]
    name: str = ""
    label_selector: dict[str, str] = {}


class StopCollectingMetrics(Op, tag="stopCollectingMetrics"):
    pass


class CreateAny(Op, tag="createAny"):
    template_path: str
    namespace: str = ""
    count: int = 1
    count_param: str = ""


class UpdateAny(Op, tag="updateAny"):
    template_path: str
    namespace: str = ""
    count: int = 1
    count_param: str = ""
    update_per_second: int = 0
    subresources: tuple[str, ...] = ()


class CreateResourceClaims(Op, tag="createResourceClaims"):
    namespace: str
    template_path: str
    count: int = 0
    count_param: str = ""


class CreateResourceDriver(Op, tag="createResourceDriver"):
    driver_name: str
    nodes: str
    max_claims_per_node: int = 0
    max_claims_per_node_param: str = ""


class AllocResourceClaims(Op, tag="allocResourceClaims"):
    namespace: str = ""


AnyOp = (
    Barrier
    | CreateNodes
    | CreateNamespaces
    | CreatePods
    | CreatePodSets
    | DeletePods
    | Churn
    | Sleep
    | StartCollectingMetrics
    | StopCollectingMetrics
    | CreateAny
    | UpdateAny
    | CreateResourceClaims
    | CreateResourceDriver
    | AllocResourceClaims
)


class _Workload(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    name: str
    params: Json
    labels: list[str] = []
    feature_gates: dict[str, bool] = {}
    threshold: float | dict[str, float] = 0.0
    threshold_metric_selector: Json = {}


class _TestCase(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    name: str
    workload_template: list[AnyOp]
    workloads: list[_Workload]
    labels: list[str] = []
    feature_gates: dict[str, bool] = {}
    scheduler_config_path: str = ""
    default_pod_template_path: str = ""
    metrics_collector_config: Json = {}
    default_threshold_metric_selector: Json = {}


class Row(msgspec.Struct, frozen=True):
    """A workload of a test case, ready to run."""

    topic: str
    """The folder of its file, as seen from the folder of all."""
    test_case: str
    workload: str
    labels: frozenset[str]
    gates: dict[str, bool]
    params: Json
    template: tuple[AnyOp, ...]
    folder: Path
    """Paths in the operations start here."""
    threshold: float = 0.0
    """Pods a second that Kubernetes' own runs must exceed; 0 for none."""
    scheduler_config_path: str = ""
    default_pod_template_path: str = ""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.test_case}/{self.workload}"

    def with_params(self, changes: Mapping[str, str]) -> Row:
        """Replace values of parameters that the workload has; others are ignored."""
        params = dict(self.params)
        for key, text in changes.items():
            if key in params:
                params[key] = _parse_like(params[key], key, text)
        return msgspec.structs.replace(self, params=params)

    def ops(self) -> Iterator[AnyOp]:
        """The operations with the values of their parameters; sets of pods are operations of their own."""
        for op in self.template:
            if isinstance(op, CreatePodSets):
                for number in range(self._resolve(op).count):
                    namespace = f"{op.namespace_prefix}-{number}"
                    yield self._resolve(msgspec.structs.replace(op.create_pods_op, namespace=namespace))
            else:
                yield self._resolve(op)

    def _resolve(self, op: Any) -> Any:
        changes = {}
        for field in op.__struct_fields__:
            parameter = getattr(op, field) if field.endswith("_param") else ""
            if parameter:
                key = parameter.removeprefix("$")
                if key not in self.params:
                    raise FileError(f"{self.name}: parameter {key!r} has no value")
                changes[field.removesuffix("_param")] = self.params[key]
        return msgspec.structs.replace(op, **changes) if changes else op


def default_folder(version: str) -> Path:
    """The folder in Go's module cache."""
    cache_folder = subprocess.run(["go", "env", "GOMODCACHE"], check=True, capture_output=True, text=True)
    return Path(cache_folder.stdout.strip(), f"k8s.io/kubernetes@{version}", IN_MODULE)


def read_rows(folder: Path) -> list[Row]:
    """All workloads of all files below a folder."""
    paths = sorted(folder.rglob(CONFIG))
    if not paths:
        raise FileError(f"{folder}: no {CONFIG} in it or below it")
    return [row for path in paths for row in _rows_of(path, path.parent.relative_to(folder).as_posix())]


def _rows_of(path: Path, topic: str) -> Iterator[Row]:
    try:
        cases = msgspec.convert(_load_yaml(path.read_text(), path), list[_TestCase], strict=False)
    except msgspec.ValidationError as error:
        raise FileError(f"{path}: {error}") from None
    for case in cases:
        for workload in case.workloads:
            yield Row(
                topic=topic,
                test_case=case.name,
                workload=workload.name,
                labels=frozenset(case.labels + workload.labels),
                gates=case.feature_gates | workload.feature_gates,
                params=workload.params,
                template=tuple(case.workload_template),
                folder=path.parent,
                threshold=_threshold(workload.threshold, topic),
                scheduler_config_path=case.scheduler_config_path,
                default_pod_template_path=case.default_pod_template_path,
            )


def _threshold(given: float | dict[str, float], topic: str) -> float:
    return given.get(topic.partition("/")[0], 0.0) if isinstance(given, dict) else given


def has_labels(row: Row, labels: str) -> bool:
    """Whether a row has all labels, and none of those with a minus; a plus is as good as nothing."""
    for label in filter(None, labels.split(",")):
        if (label.lstrip("+-") in row.labels) == label.startswith("-"):
            return False
    return True


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as 1m30s."""
    parts = DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        raise FileError(f"{text!r} is not a duration; a valid one is 10s or 1m30s")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def _parse_like(known: Any, key: str, text: str) -> Any:
    try:
        if isinstance(known, bool):
            return {"true": True, "false": False}[text]
        return type(known)(text)
    except (KeyError, ValueError):
        raise FileError(f"{key}={text}: not a {type(known).__name__} as {known!r} is") from None


class Template:
    """Objects made from a file: a Go template of YAML, with `.Index` and `.Count`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = _parse_template(path)

    @property
    def is_constant(self) -> bool:
        return all(isinstance(part, str) for part in self.parts)

    def render(self, index: int, count: int) -> Json:
        env = {"Index": index, "Count": count}
        try:
            text = "".join(part if isinstance(part, str) else part(env) for part in self.parts)
        except (KeyError, ValueError, ZeroDivisionError) as error:
            raise FileError(f"{self.path}: cannot render: {error!r}") from None
        return _load_yaml(text, self.path)

    def encode_all(self, count: int, change: Callable[[Json, int], None]) -> Iterator[bytes]:
        """JSON of `count` objects; `change` adds to each what is not in the file."""
        constant = json.dumps(self.render(0, count)) if self.is_constant else ""
        for index in range(count):
            item = json.loads(constant) if constant else self.render(index, count)
            change(item, index)
            yield json.dumps(item).encode()


@cache
def template_of(path: Path) -> Template:
    return Template(path.resolve())


def _load_yaml(text: str, path: Path) -> Any:
    try:
        return yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise FileError(f"{path}: {error}") from None


def _parse_template(path: Path) -> list[str | Render]:
    try:
        text = path.read_text()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    parts: list[str | Render] = []
    end, trims = 0, False
    for found in ACTION.finditer(text):
        literal = text[end : found.start()]
        literal = literal.lstrip() if trims else literal
        parts.append(literal.rstrip() if found[1] else literal)
        parts.append(_parse_action(found[2], path))
        end, trims = found.end(), bool(found[3])
    parts.append(text[end:].lstrip() if trims else text[end:])
    return parts


def _parse_action(text: str, path: Path) -> Render:
    words = _split(text, path)
    value = _parse_pipeline(words, text, path)
    if words:
        raise FileError(f"{path}: cannot parse {{{{{text}}}}}: unexpected {words[0]!r}")
    return lambda env: _show(value(env))


def _split(text: str, path: Path) -> list[Any]:
    """Words of an action: field names and parentheses as str, numbers as such, strings as a tuple of one."""
    words: list[Any] = []
    end = 0
    while text[end:].strip():
        found = WORD.match(text, end)
        if found is None:
            raise FileError(f"{path}: cannot parse {{{{{text}}}}} at {text[end:].strip()!r}")
        field, number, string, name, mark = found.groups()
        if number is not None:
            words.append(float(number) if "." in number else int(number))
        elif string is not None:
            words.append((string,))
        else:
            words.append(field or name or mark)
        end = found.end()
    return words


def _parse_pipeline(words: list[Any], text: str, path: Path) -> Callable[[Mapping[str, Any]], Any]:
    """Commands divided by `|`: each gets the value of the one before as its last argument."""
    value = _parse_command(words, text, path, None)
    while words[:1] == ["|"]:
        del words[0]
        value = _parse_command(words, text, path, value)
    return value


def _parse_command(words: list[Any], text: str, path: Path, piped: Any) -> Callable[[Mapping[str, Any]], Any]:
    name = words[0] if words and isinstance(words[0], str) else ""
    if not name[:1].isalpha():
        return _parse_operand(words, text, path)
    del words[0]
    function = FUNCTIONS.get(name)
    if function is None:
        known = ", ".join(FUNCTIONS)
        raise FileError(f"{path}: unknown function {name!r} in {{{{{text}}}}} (known: {known})")
    operands = []
    while words and words[0] not in ("|", ")"):
        operands.append(_parse_operand(words, text, path))
    if piped is not None:
        operands.append(piped)
    return lambda env: function(*(operand(env) for operand in operands))


def _parse_operand(words: list[Any], text: str, path: Path) -> Callable[[Mapping[str, Any]], Any]:
    if not words:
        raise FileError(f"{path}: cannot parse {{{{{text}}}}}: it ends too early")
    word = words.pop(0)
    if word == "(":
        value = _parse_pipeline(words, text, path)
        if words[:1] != [")"]:
            raise FileError(f"{path}: cannot parse {{{{{text}}}}}: a parenthesis is not closed")
        del words[0]
        return value
    if isinstance(word, tuple):
        return lambda env: word[0]
    if isinstance(word, str):
        if not word.startswith("."):
            raise FileError(f"{path}: cannot parse {{{{{text}}}}}: unexpected {word!r}")
        return lambda env: env[word[1:]]
    return lambda env: word


def _show(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _sum(*numbers: Any) -> float:
    return math.fsum(map(float, numbers))


def _product(*numbers: Any) -> float:
    return math.prod(map(float, numbers))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "AddFloat": _sum,
    "AddInt": lambda *numbers: int(_sum(*numbers)),
    "DivideFloat": lambda a, b: float(a) / float(b),
    "DivideInt": lambda a, b: int(float(a) / float(b)),
    "Mod": lambda a, b: int(math.fmod(int(float(a)), int(float(b)))),
    "MultiplyFloat": _product,
    "MultiplyInt": lambda *numbers: int(_product(*numbers)),
    "SubtractFloat": lambda a, b: float(a) - float(b),
    "SubtractInt": lambda a, b: int(float(a) - float(b)),
}
"""Those of scheduler_perf; integers are floats cut towards zero there, too."""


def choose(rows: Sequence[Row], labels: str, only: str) -> list[Row]:
    return [row for row in rows if has_labels(row, labels) and re.search(only, row.name)]
