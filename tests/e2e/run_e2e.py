"""Run Kubernetes' own end-to-end tests, unmodified, against `stowplan up`, and write a table of the results.

`make e2e` runs the groups below. Results are kept in the cache folder, so
that an interrupted run continues where it stopped (`--again` forgets them). `--real` runs them on a real
control plane instead, with `stowplan run` as its scheduler and simulated nodes. `--write` writes
docs/conformance.md from all results that are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from controlplane.binaries import cache_folder, program  # noqa: E402

Json = dict[str, Any]

PAGE = ROOT / "docs" / "conformance.md"
NODES = "{count: 4, cpu: 8, zones: [a, b]}"
START_SECONDS = 60.0
MISSING = ("webserver:404", "foo:non-existent")
"""Images that no registry has, as the tests take for granted: nodes cannot pull them."""
BATCH = 12
"""Tests in one process; results are kept after each batch."""
ALPHA = ("Alpha", "Feature:OffByDefault")


class Group(NamedTuple):
    """Tests that have all of these labels; `left_out` have one of those."""

    title: str
    labels: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    pattern: str = ""


def conformance(title: str, sig: str, pattern: str = "") -> Group:
    kind = "API-only conformance" if pattern else "conformance"
    return Group(f"{title}: {kind} tests of {sig}", (sig, "Conformance"), (), pattern)


GROUPS = {
    "scheduling": Group("Scheduling: all tests of sig-scheduling", ("sig-scheduling",)),
    "apps": conformance("Workloads", "sig-apps"),
    "machinery": conformance("API", "sig-api-machinery"),
    "auth": conformance("Access", "sig-auth", r"^(?!.*(OIDC|mount (an|projected)))"),
    "network": conformance(
        "Network",
        "sig-network",
        r"API Server|Endpoints?(Controller|Slice|SliceMirroring)? (?!.*multiple)|Ingress|ServiceCIDR|"
        r"Services should (complete|delete|find)",
    ),
    "node": conformance(
        "Nodes",
        "sig-node",
        r"ConfigMap should (fail|run|update)|should update the ephemeral|Lease|TaintManager|Node Lifecycle|"
        r"PodTemplates|Pods Extended|Pods should (allow|be|delete|get|patch|run)|RuntimeClass|"
        r"Secrets should (fail|patch)|reject invalid sysctls|CRUD",
    ),
    "storage": conformance(
        "Storage",
        "sig-storage",
        r"CSI|immutable|StorageClass|VolumeAttach|VolumeAttributes|PersistentVolumes",
    ),
    "events": conformance("Events", "sig-instrumentation"),
    "devices": Group("Devices: the control plane tests of DRA", ("DRA",), ALPHA, "control plane"),
}

REASONS = (
    (r"checking pod responses|serve a basic image", "asks a program in a container"),
    (
        r"FailIndex|backoffLimitPerIndex|on exit code to fail|succeeded(Count|Indexes) rule|"
        r"on DisruptionTarget",
        "runs a shell script with conditions in a container",
    ),
    (
        r"halt if any stateful pod is unhealthy|Burst scaling|rolling updates and roll backs",
        "breaks the readiness probe of a program in a container",
    ),
    (
        r"webhook configuration to be ready|ConversionWebhook|CustomResourceFieldSelectors|Aggregator",
        "runs a server in a container",
    ),
    (r"Workload API availability|PodGroup API availability", "an alpha API that is off by default"),
)
"""Why a test cannot pass, by what its name or its failure says."""
CONTAINER = "in a container"


class Spec(NamedTuple):
    name: str
    labels: frozenset[str]


class Result(NamedTuple):
    name: str
    outcome: str
    seconds: float
    message: str = ""


def specs(kubeconfig: Path) -> list[Spec]:
    """All tests that there are."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "specs.json")
        flags = ["-ginkgo.dry-run", f"-ginkgo.json-report={report}"]
        subprocess.run(_command(kubeconfig, *flags), check=True, capture_output=True)
        suites = json.loads(report.read_text())
    found = []
    for item in (each for suite in suites for each in suite["SpecReports"]):
        if item["LeafNodeType"] == "It":
            texts = [*(item["ContainerHierarchyTexts"] or ()), item["LeafNodeText"]]
            inherited = [label for labels in item["ContainerHierarchyLabels"] or () for label in labels or ()]
            found.append(Spec(" ".join(texts), frozenset([*inherited, *(item["LeafNodeLabels"] or ())])))
    return sorted(found)


def chosen(group: Group, known: list[Spec]) -> list[Spec]:
    return [
        spec
        for spec in known
        if spec.labels >= set(group.labels)
        and not spec.labels & set(group.left_out)
        and re.search(group.pattern, spec.name)
    ]


def _command(kubeconfig: Path, *flags: str) -> list[str]:
    fixed = ["-provider=skeleton", "-ginkgo.no-color", "-disable-log-dump", "-allowed-not-ready-nodes=-1"]
    return [str(program("e2e.test")), f"-kubeconfig={kubeconfig}", *fixed, *flags]


def run_batch(batch: list[Spec], kubeconfig: Path, seconds: float, folder: Path) -> list[Result]:
    """Run tests in one process; what follows a test that takes too long has no result."""
    names, report, log = (
        {spec.name for spec in batch},
        folder / "report.json",
        folder / f"e2e-{time.time():.0f}.log",
    )
    report.unlink(missing_ok=True)
    focus = "|".join(re.escape(spec.name) for spec in batch)
    flags = [f"-ginkgo.focus={focus}", "-ginkgo.v", f"-ginkgo.json-report={report}"]
    with log.open("w") as out:
        process = subprocess.Popen(
            _command(kubeconfig, *flags),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        )
        try:
            _watch(process, log, seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if not report.exists():
        text = log.read_text(errors="replace")[-300:]
        return [Result(batch[0].name, "failed", 0.0, f"no report: {text}")]
    found = []
    for suite in json.loads(report.read_text()):
        for item in suite["SpecReports"] or ():
            name = " ".join([*(item["ContainerHierarchyTexts"] or ()), item["LeafNodeText"]])
            result = _result_of(name, item)
            if name in names and result is not None:
                found.append(result)
    return found


def _result_of(name: str, item: Json) -> Result | None:
    failure = item.get("Failure") or {}
    message, state = " ".join(str(failure.get("Message", "")).split()), item["State"]
    if state == "skipped" and not message:
        return None  # its turn has not come
    outcome = "timeout" if state == "interrupted" else state
    return Result(name, outcome, round(item["RunTime"] / 1e9, 1), message[:500])


def _watch(process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    """Wait for the end; interrupt the process when one test takes too long."""
    done, since, is_interrupted = 0, time.monotonic(), False
    while process.poll() is None:
        time.sleep(0.5)
        finished = log.read_bytes().count("\n• ".encode())
        if finished != done:
            done, since = finished, time.monotonic()
        elif time.monotonic() - since > (60 if is_interrupted else seconds):
            if is_interrupted:
                return
            process.send_signal(signal.SIGINT)
            is_interrupted, since = True, time.monotonic()


@contextmanager
def embedded(folder: Path) -> Iterator[Path]:
    """`stowplan up` in a process of its own."""
    kubeconfig = folder / "up.kubeconfig"
    with _running(
        [
            *(sys.executable, "-m", "stowplan.cli", "up", "--rbac"),
            *(f"--nodes={NODES}", f"--kubeconfig={kubeconfig}"),
            *(f"--missing-image={pattern}" for pattern in MISSING),
        ],
        folder / "up.log",
    ) as log:
        _wait_for(log, "Ready in")
        yield kubeconfig


@contextmanager
def real(folder: Path) -> Iterator[Path]:
    """etcd, kube-apiserver, kube-controller-manager, simulated nodes and `stowplan run`."""
    from controlplane.control_plane import ControlPlane

    plane = ControlPlane(folder)
    plane.start()
    kubeconfig = plane.kubeconfig()
    try:
        manager = [
            str(program("kube-controller-manager")),
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--controllers=*,-nodeipam,-serviceaccount-token-controller",
            f"--root-ca-file={plane.certificate}",
        ]
        nodes = [sys.executable, str(HERE / "e2e_nodes.py"), str(kubeconfig), NODES]
        stowplan = [sys.executable, "-m", "stowplan.cli", "run", f"--kubeconfig={kubeconfig}"]
        stowplan += ["--leader-elect=false", "--secure-port=0"]
        with (
            _running(manager, folder / "manager.log"),
            _running(nodes, folder / "nodes.log"),
            _running(stowplan, folder / "run.log"),
        ):
            time.sleep(15)
            yield kubeconfig
    finally:
        plane.stop()


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[Path]:
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(log: Path, text: str) -> None:
    end = time.monotonic() + START_SECONDS
    while text not in log.read_text():
        if time.monotonic() > end:
            raise TimeoutError(f"no {text!r} in {log}:\n{log.read_text()}")
        time.sleep(0.1)


class Kept:
    """Results in a file, one in a line; of several of a test the last counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, Result] = {}
        self.changed = path.stat().st_mtime if path.exists() else 0.0
        if path.exists():
            for line in path.read_text().splitlines():
                result = Result(*json.loads(line))
                self.results[result.name] = result

    def add(self, result: Result) -> None:
        self.results[result.name] = result
        with self._path.open("a") as file:
            file.write(json.dumps(list(result)) + "\n")


def page(kept: dict[str, Kept], groups: dict[str, list[Spec]]) -> str:
    """The results as Markdown."""
    version = cache_folder().name.split("-")[1]
    lines = [
        "# Conformance",
        "",
        f"Kubernetes' own end-to-end tests ({version}, unmodified) against `stowplan up --rbac`, and against",
        "`stowplan run` on a real control plane with simulated nodes. `make e2e` runs them and writes this",
        "page; `tests/e2e/run_e2e.py --help` lists how to run some of them. Last run: "
        + _last_run(kept)
        + ".",
        "",
        "Containers are simulated, so tests that need the program in one cannot pass: the table counts them",
        "separately, and all tests that do not pass are listed below it with the reason.",
        "",
        "| tests | " + " | ".join(f"`{name}`" for name in kept) + " |",
        "|---|" + "---|" * len(kept),
    ]
    for key, known in groups.items():
        cells = []
        for each in kept.values():
            ran = [(spec, each.results[spec.name]) for spec in known if spec.name in each.results]
            passed = sum(result.outcome == "passed" for _, result in ran)
            missed = [pair for pair in ran if pair[1].outcome != "passed"]
            needing = sum(CONTAINER in _reason(spec, [result]) for spec, result in missed)
            more = f"; {needing} more need containers" if needing else ""
            cells.append(f"{passed} of {len(ran) - needing}{more}" if ran else "not run")
        lines.append(f"| {GROUPS[key].title} | " + " | ".join(cells) + " |")
    for key, known in groups.items():
        rows = []
        for spec in known:
            results = [each.results.get(spec.name) for each in kept.values()]
            if any(result is not None and result.outcome != "passed" for result in results):
                cells = [result.outcome if result is not None else "" for result in results]
                rows.append(
                    f"| {_plain(spec.name)} | " + " | ".join(cells) + f" | {_reason(spec, results)} |"
                )
        if rows:
            head = "| test | " + " | ".join(f"`{name}`" for name in kept) + " | why |"
            lines += ["", f"## {GROUPS[key].title}", "", head, "|---|" + "---|" * (len(kept) + 1), *rows]
    return "\n".join(lines) + "\n"


def _last_run(kept: dict[str, Kept]) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(max(each.changed for each in kept.values())))


def _plain(name: str) -> str:
    return re.sub(r"\[[^]]*\] ?", "", name).replace("|", "\\|").strip()


def _reason(spec: Spec, results: list[Result | None]) -> str:
    texts = [spec.name, *(result.message for result in results if result is not None)]
    for pattern, why in REASONS:
        if any(re.search(pattern, text) for text in texts):
            return why
    said = next((result.message for result in results if result is not None and result.message), "")
    return said[:160].replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("groups", nargs="*", help=f"groups to run: {', '.join(GROUPS)} (default: all)")
    asked.add_argument("--real", action="store_true", help="run on a real control plane")
    asked.add_argument("--again", action="store_true", help="run tests again that have a result")
    asked.add_argument("--failed", action="store_true", help="run tests again that did not pass")
    asked.add_argument("--match", default="", help="run only tests whose names match this pattern")
    asked.add_argument(
        "--seconds", type=float, default=420, help="most seconds a test may take (default: 420)"
    )
    asked.add_argument(
        "--jobs", type=int, default=1, help="tests at the same time, except serial ones (default: 1)"
    )
    asked.add_argument("--write", action="store_true", help="write docs/conformance.md")
    asked.add_argument("--logs", type=Path, help="folder to keep logs in (default: delete them)")
    asked.add_argument("--kubeconfig", type=Path, help="run on this cluster instead of a new one")
    given = asked.parse_args()
    results = cache_folder().parent.parent / "e2e"
    results.mkdir(parents=True, exist_ok=True)
    kept = {
        name: Kept(results / f"{name.replace(' ', '-')}.jsonl") for name in ("stowplan up", "stowplan run")
    }
    mine = kept["stowplan run" if given.real else "stowplan up"]
    with _folder(given.logs) as folder:
        start = real if given.real else embedded
        with _given(given.kubeconfig) if given.kubeconfig else start(folder) as kubeconfig:
            known = specs(kubeconfig)
            groups = {name: chosen(group, known) for name, group in GROUPS.items()}
            wanted = [spec for name in given.groups or GROUPS for spec in groups[name]]
            wanted = [spec for spec in wanted if re.search(given.match, spec.name)]
            if not given.again:
                done = mine.results
                wanted = [
                    spec
                    for spec in wanted
                    if spec.name not in done or (given.failed and done[spec.name].outcome != "passed")
                ]
            run_all(wanted, kubeconfig, given, folder, mine)
    if given.write:
        PAGE.write_text(page(kept, groups))


@contextmanager
def _folder(logs: Path | None) -> Iterator[Path]:
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        yield logs
    else:
        with tempfile.TemporaryDirectory(prefix="stowplan-e2e-") as folder:
            yield Path(folder)


@contextmanager
def _given(kubeconfig: Path) -> Iterator[Path]:
    yield kubeconfig


def run_all(
    wanted: list[Spec], kubeconfig: Path, given: argparse.Namespace, folder: Path, kept: Kept
) -> None:
    """Run tests, several at a time except those that must run alone."""
    alone = [spec for spec in wanted if spec.labels & {"Serial", "Disruptive"}]
    others = [spec for spec in wanted if spec not in alone]
    shares = [others[start :: given.jobs] for start in range(given.jobs)]
    folders = [Path(tempfile.mkdtemp(dir=folder)) for _ in shares]
    run = partial(_run_share, kubeconfig=kubeconfig, seconds=given.seconds, kept=kept)
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(run, shares, folders))
    run(alone, folder)


def _run_share(wanted: list[Spec], folder: Path, kubeconfig: Path, seconds: float, kept: Kept) -> None:
    while wanted:
        batch = wanted[:BATCH]
        results = run_batch(batch, kubeconfig, seconds, folder)
        if not results:
            results = [Result(batch[0].name, "failed", 0.0, "no result")]
        for result in results:
            kept.add(result)
            sys.stdout.write(
                f"{result.outcome:8} {result.seconds:6.1f} s  {result.name}  {result.message[:200]}\n"
            )
        sys.stdout.flush()
        done = {result.name for result in results}
        wanted = [spec for spec in wanted if spec.name not in done]


if __name__ == "__main__":
    main()
