"""Kubernetes' scheduler_perf workloads, as they are, with kube-scheduler and Stowplan in turn.

    python benchmarks/scheduler_perf.py --labels short --only misc/ --rounds 3 --resume results.jsonl

Every run has a control plane of its own, with nothing in it, and the scheduler's process is started before
the first operation, as in Kubernetes. CPU is that from the start of the metrics collection until a second
after its end, in which the last events are written. What the scheduler asks of the API server is counted in
an audit log that has its requests alone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

import ceiling
from cluster import BEFORE, CEILING, KUBE_SCHEDULER, STOWPLAN, UNLIMITED, cpu_ms, resident_mb
from perf_files import FileError, Row, choose, default_folder, read_rows
from perf_ops import Window, Workload
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.client.kubeconfig import load
from stowplan.config.gates import gate_warnings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.binaries import version
from controlplane.control_plane import ADMIN, SCHEDULER, ControlPlane, free_ports, token_of
from controlplane.process import Process, ProgramError

Json = dict[str, Any]

SETTLE_SECONDS = 1.0
HINTS = "SchedulerQueueingHints"
OLDER = "--emulated-version=1.33"
"""The last minor version in which queueing hints could be switched off."""
DEVICE_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")
REVIEWS = frozenset(("tokenreviews", "subjectaccessreviews"))
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "users": [SCHEDULER],
            "verbs": ["get", "create", "update", "patch", "delete", "deletecollection"],
        },
        {"level": "None"},
    ],
}


class Result(msgspec.Struct, kw_only=True):
    """One run. CPU is in milliseconds a pod, calls and conflicts are those of the scheduler a pod."""

    row: str
    scheduler: str
    round: int
    params: Json
    server: str = "kube-apiserver"
    nodes: int = 0
    pods: int = 0
    """Measured pods that were bound."""
    wanted: int | None = None
    """Measured pods that should have been bound; None in a steady state."""
    seconds: float = 0.0
    per_second: float = 0.0
    cpu: float = 0.0
    api_server_cpu: float = 0.0
    benchmark_cpu: float = 0.0
    """Of this process, which creates the pods and watches them."""
    rss_mb: float = 0.0
    calls: float | None = None
    conflicts: float | None = None
    by_call: dict[str, float] = {}
    threshold: float = 0.0
    notes: list[str] = []
    error: str = ""

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        return self.row, self.server, self.scheduler, self.round, json.dumps(self.params, sort_keys=True)

    @property
    def is_complete(self) -> bool:
        return not self.error and (self.pods > 0 if self.wanted is None else self.pods == self.wanted)


class EmbeddedControlPlane(ControlPlane):
    """Stowplan's embedded API server in the place of kube-apiserver and etcd; all have the same rights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (port,) = free_ports(1)
        self.server = f"https://127.0.0.1:{port}"
        self.certificate = folder / "certificates" / "apiserver.crt"
        script = Path(__file__).with_name("embedded_api_server.py")
        command = [sys.executable, script, str(port), self.certificate, token_of(ADMIN)]
        self.api_server = Process(command, folder / "api-server.log", lambda: self.is_ready)

    def start(self) -> None:
        self.api_server.start()

    def stop(self) -> None:
        self.disconnect()
        self.api_server.kill()

    def kubeconfig(self, user: str = ADMIN) -> Path:
        return super().kubeconfig(ADMIN)


class Meter:
    """What a window of a run cost: readings at its ends, and the sums of all windows."""

    def __init__(self, control_plane: ControlPlane, audit_log: Path) -> None:
        self._control_plane, self._audit_log = control_plane, audit_log
        self.scheduler: Process | None = None
        self.windows: list[Window] = []
        self.cpu = self.api_server_cpu = self.benchmark_cpu = self.rss_mb = 0.0
        self.calls: Counter[str] = Counter()
        self.conflicts = 0
        self._before: tuple[float, float, float, int] | None = None

    async def start(self, window: Window) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        self._before = self._read()
        self.windows.append(window)

    async def stop(self, window: Window) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        self.finish()

    def finish(self) -> None:
        """Take the last readings; also of a window that a time limit has ended."""
        if self._before is None or self.scheduler is None:
            return
        cpu, api_server_cpu, benchmark_cpu, audited = self._before
        cpu_now, api_server_cpu_now, benchmark_cpu_now, audited_now = self._read()
        self.cpu += cpu_now - cpu
        self.api_server_cpu += api_server_cpu_now - api_server_cpu
        self.benchmark_cpu += benchmark_cpu_now - benchmark_cpu
        self.rss_mb = max(self.rss_mb, resident_mb(self.scheduler.pid))
        for name, code in self._audited(audited, audited_now):
            self.calls[name] += 1
            self.conflicts += code == 409
        self._before = None

    def _read(self) -> tuple[float, float, float, int]:
        plane = self._control_plane
        pids = [plane.api_server.pid] + ([plane.etcd.pid] if hasattr(plane, "etcd") else [])
        size = self._audit_log.stat().st_size if self._audit_log.exists() else 0
        assert self.scheduler is not None
        own = time.process_time() * 1000
        return cpu_ms(self.scheduler.pid), sum(map(cpu_ms, pids)), own, size

    def _audited(self, start: int, end: int) -> Iterator[tuple[str, int]]:
        if start == end:
            return
        with self._audit_log.open("rb") as file:
            file.seek(start)
            for line in file.read(end - start).splitlines():
                event = msgspec.json.decode(line)
                target = event.get("objectRef", {})
                resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
                if resource and resource not in REVIEWS:
                    yield f"{event['verb']} {resource}", event.get("responseStatus", {}).get("code", 0)


class Runner:
    def __init__(self, folder: Path, *, embedded: bool, before: Path | None, timeout: float) -> None:
        self.folder, self.embedded, self.before, self.timeout = folder, embedded, before, timeout

    async def run(self, row: Row, scheduler: str, number: int) -> Result:
        result = Result(
            row=row.name,
            scheduler=scheduler,
            round=number,
            params=row.params,
            server="embedded" if self.embedded else "kube-apiserver",
            threshold=row.threshold,
            notes=notes_on(row, scheduler),
        )
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="run-") as place:
            folder = Path(place)
            audit_log = folder / "audit.log"
            plane = EmbeddedControlPlane(folder) if self.embedded else _control_plane(row, folder, audit_log)
            meter = Meter(plane, audit_log)
            try:
                await asyncio.to_thread(plane.start)
                await self._measure(row, scheduler, plane, meter, result)
            except (ProgramError, FileError) as error:
                result.error = str(error)
            except ApiError as error:
                result.error = error.message
            except BaseExceptionGroup as group:
                if not group.subgroup((ApiError, FileError, OSError)):
                    raise
                result.error = "; ".join(sorted({str(each) for each in _leaves(group)}))[:500]
            finally:
                plane.stop()
                self._keep_logs(folder, row, scheduler)
        return result

    async def _measure(
        self, row: Row, scheduler: str, plane: ControlPlane, meter: Meter, result: Result
    ) -> None:
        connection = load(str(plane.kubeconfig(ADMIN)))
        async with (
            ApiClient(
                connection, qps=UNLIMITED, burst=UNLIMITED, timeout=600, user_agent="scheduler-perf"
            ) as api,
            self._scheduler(scheduler, row, plane) as process,
        ):
            meter.scheduler = process
            workload = Workload(row, api, meter.start, meter.stop)
            try:
                async with asyncio.timeout(self.timeout):
                    await workload.run()
            except TimeoutError:
                result.error = f"not done after {self.timeout:.0f} s"
            meter.finish()
        result.nodes = workload.node_count
        _fill(result, meter)

    @asynccontextmanager
    async def _scheduler(self, name: str, row: Row, plane: ControlPlane) -> AsyncIterator[Process]:
        """Starting and stopping wait, so they have other threads."""
        config = {}
        if row.scheduler_config_path:
            document = yaml.safe_load((row.folder / row.scheduler_config_path).read_text())
            config = {key: document[key] for key in document.keys() - {"apiVersion", "kind"}}
        flags = scheduler_flags(row)
        if name == CEILING:
            running = ceiling.running(plane)
        elif name == KUBE_SCHEDULER:
            running = plane.kube_scheduler(*flags, **config)
        else:
            running = plane.stowplan(*flags, source=self.before if name == BEFORE else None, **config)
        process = await asyncio.to_thread(running.__enter__)
        try:
            yield process
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)

    def _keep_logs(self, folder: Path, row: Row, scheduler: str) -> None:
        for log in folder.glob("*.log"):
            if log.name != "audit.log":
                log.replace(
                    self.folder / f"{row.name.replace('/', '-')}.{scheduler.replace(' ', '-')}.{log.name}"
                )


def scheduler_flags(row: Row) -> list[str]:
    """The feature gates of the row, as of a version that lets them be switched off."""
    gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in sorted(row.gates.items()))
    flags = [f"--feature-gates={gates}"] if gates else []
    if row.gates.get(HINTS) is False:
        flags.append(OLDER)
    return flags


def notes_on(row: Row, scheduler: str) -> list[str]:
    """Gates that the scheduler does not have; kube-scheduler has all."""
    if scheduler in (KUBE_SCHEDULER, CEILING):
        return []
    return [warning.removeprefix("--feature-gates: ") for warning in gate_warnings(row.gates)]


def _control_plane(row: Row, folder: Path, audit_log: Path) -> ControlPlane:
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(AUDIT_POLICY))
    flags = [
        "--disable-admission-plugins=Priority",  # the pods of the files name no class
        f"--audit-policy-file={policy}",
        f"--audit-log-path={audit_log}",
    ]
    # The scheduler's gates mean nothing to the API server, and some are locked.
    gates = {gate: on for gate, on in row.gates.items() if not gate.startswith("Scheduler")}
    if gates:
        flags.append("--feature-gates=" + ",".join(f"{gate}={str(on).lower()}" for gate, on in gates.items()))
    if gates.get("DynamicResourceAllocation"):
        served = ",".join(f"resource.k8s.io/{each}=true" for each in DEVICE_VERSIONS)
        flags.append(f"--runtime-config={served}")
    return ControlPlane(folder, *flags)


def _fill(result: Result, meter: Meter) -> None:
    windows = meter.windows
    result.pods = sum(window.bound for window in windows)
    wanted = [window.wanted for window in windows]
    result.wanted = None if None in wanted else sum(each or 0 for each in wanted)
    result.seconds = round(sum(window.last - window.began for window in windows), 3)
    pods = max(result.pods, 1)
    result.per_second = round(result.pods / result.seconds, 1) if result.seconds else 0.0
    result.cpu = round(meter.cpu / pods, 3)
    result.api_server_cpu = round(meter.api_server_cpu / pods, 3)
    result.benchmark_cpu = round(meter.benchmark_cpu / pods, 3)
    result.rss_mb = round(meter.rss_mb, 1)
    if result.server != "embedded":
        result.calls = round(meter.calls.total() / pods, 2)
        result.conflicts = round(meter.conflicts / pods, 3)
        result.by_call = {name: round(count / pods, 2) for name, count in meter.calls.most_common() if count}


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


HEADER = (
    "| workload | nodes | pods | CPU ms a pod | ratio | pods/s | ratio | API server CPU | calls | conflicts "
    "| RSS MB | note |\n" + "|---" * 12 + "|"
)


class Compared(msgspec.Struct):
    """The medians of a row; `theirs` is kube-scheduler's."""

    ours: Result
    theirs: Result | None

    @property
    def cpu_ratio(self) -> float | None:
        return self.ours.cpu / self.theirs.cpu if self.theirs and self.theirs.cpu else None

    @property
    def rate_ratio(self) -> float | None:
        return (
            self.ours.per_second / self.theirs.per_second if self.theirs and self.theirs.per_second else None
        )

    @property
    def is_behind(self) -> bool:
        if self.ours.scheduler == CEILING:
            return False
        incomplete = not self.ours.is_complete and (self.theirs is None or self.theirs.is_complete)
        return incomplete or (self.cpu_ratio or 0) >= 1 or (self.rate_ratio or 1) < 1


def compare(results: Sequence[Result]) -> list[Compared]:
    """Each row and Stowplan once, those that are not ahead first."""
    groups: dict[tuple[str, ...], dict[str, list[Result]]] = {}
    for each in results:
        row, server, scheduler, _, params = each.key
        groups.setdefault((row, server, params), {}).setdefault(scheduler, []).append(each)
    compared = []
    for group in groups.values():
        theirs = _median_of(group[KUBE_SCHEDULER]) if KUBE_SCHEDULER in group else None
        ours = {name: rounds for name, rounds in group.items() if name != KUBE_SCHEDULER} or {
            KUBE_SCHEDULER: group[KUBE_SCHEDULER]
        }
        compared += [Compared(_median_of(rounds), theirs) for rounds in ours.values()]
    return sorted(compared, key=lambda each: (not each.is_behind, -(each.cpu_ratio or 0)))


def _median_of(rounds: list[Result]) -> Result:
    """The rounds as one, field by field; incomplete if one of them is."""
    changes: Json = {}
    for field in (
        "per_second",
        "cpu",
        "api_server_cpu",
        "benchmark_cpu",
        "rss_mb",
        "calls",
        "conflicts",
        "pods",
        "seconds",
    ):
        values = [getattr(each, field) for each in rounds]
        changes[field] = None if None in values else statistics.median(values)
    worst = next((each for each in rounds if not each.is_complete), rounds[0])
    return msgspec.structs.replace(worst, **{**changes, "pods": worst.pods})


def table(results: Sequence[Result]) -> str:
    """Both sides of a figure are Stowplan's and kube-scheduler's."""
    compared = compare(results)
    notes = list(dict.fromkeys(note for each in compared for note in each.ours.notes))
    lines = [HEADER]
    for each in compared:
        ours, theirs = each.ours, each.theirs
        marks = [f"[{notes.index(note) + 1}]" for note in ours.notes]
        marks += [f"{side.scheduler}: {_fault(side)}" for side in (ours, theirs) if side and _fault(side)]
        label = ours.row + ("" if ours.scheduler == STOWPLAN else f" ({ours.scheduler})")
        lines.append(
            f"| {label} | {ours.nodes:,} | {ours.pods:,} "
            f"| {_both(each, 'cpu', '.2f')} | {_ratio(each.cpu_ratio)} "
            f"| {_both(each, 'per_second', ',.0f')} | {_ratio(each.rate_ratio)} "
            f"| {_both(each, 'api_server_cpu', '.2f')} | {_both(each, 'calls', '.2f')} "
            f"| {_both(each, 'conflicts', '.2f')} | {_both(each, 'rss_mb', ',.0f')} | {' '.join(marks)} |"
        )
    behind = sum(each.is_behind for each in compared)
    lines.append(f"\n{len(compared)} rows, {behind} not ahead.")
    lines += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(lines)


def _both(compared: Compared, field: str, form: str) -> str:
    sides = (compared.ours, compared.theirs)
    values = [getattr(side, field) for side in sides if side is not None]
    return " / ".join("" if value is None else format(value, form) for value in values)


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _fault(result: Result) -> str:
    if result.error:
        return result.error.splitlines()[0][:120] + (
            f" ({result.pods} of {result.wanted})" if result.wanted else ""
        )
    wanted = "" if result.wanted is None else f" of {result.wanted}"
    return "" if result.is_complete else f"{result.pods}{wanted} bound"


def read_results(path: Path) -> list[Result]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines() if line.strip()]


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option(
    "--labels",
    default="",
    help="Labels that rows must have, or with a minus must not have: short,-performance.",
)
@click.option(
    "--only", default="", metavar="REGEX", help="Run only rows whose name folder/test case/workload matches."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a parameter, such as initNodes. Repeatable.",
)
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, help="Rounds; the table shows medians."
)
@click.option(
    "--scheduler",
    "schedulers",
    default=f"{KUBE_SCHEDULER},{STOWPLAN}",
    show_default=True,
    help=f"Schedulers to run in turn, separated by commas. {CEILING!r} binds each pod to the next node; "
    f"{BEFORE!r} needs --before.",
)
@click.option(
    "--before",
    type=click.Path(exists=True, path_type=Path),
    help=f"Source folder of another checkout, run as {BEFORE!r}.",
)
@click.option(
    "--embedded", is_flag=True, help="Use Stowplan's embedded API server instead of kube-apiserver and etcd."
)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds after which a run is ended.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Append results to FILE, and skip runs it already has.",
)
@click.option(
    "--logs", type=click.Path(path_type=Path), metavar="DIR", help="Keep the logs of all programs in DIR."
)
@click.option("--list", "only_list", is_flag=True, help="List the chosen rows and exit.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    folder: Path | None,
    labels: str,
    only: str,
    changes: tuple[str, ...],
    rounds: int,
    schedulers: str,
    before: Path | None,
    embedded: bool,
    timeout: float,
    resume: Path | None,
    logs: Path | None,
    only_list: bool,
    output: str,
) -> None:
    """Run the scheduler_perf workloads in FOLDER (default: that of the Kubernetes module in Go's cache).

    Each figure of the table is Stowplan's / kube-scheduler's; rows in which Stowplan is not ahead come first.
    Progress goes to standard error. With -o json every run is an object on a line of its own.
    """
    names = schedulers.split(",")
    if unknown := set(names) - {KUBE_SCHEDULER, STOWPLAN, CEILING, BEFORE}:
        raise click.UsageError(f"--scheduler: unknown scheduler {min(unknown)!r}")
    if BEFORE in names and before is None:
        raise click.UsageError(f"--scheduler names {BEFORE!r}: give that checkout's src folder with --before")
    if bad := [each for each in changes if "=" not in each]:
        raise click.UsageError(f"--set {bad[0]}: must be KEY=VALUE")
    overrides = dict(each.split("=", 1) for each in changes)
    try:
        found = choose(read_rows(folder or default_folder(version("k8s.io/kubernetes"))), labels, only)
        rows = [row.with_params(overrides) for row in found]
    except FileError as error:
        raise click.ClickException(str(error)) from None
    if only_list:
        for row in rows:
            click.echo(f"{row.name}  {','.join(sorted(row.labels))}  {json.dumps(row.params)}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the programs are stopped, too
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    with nullcontext(logs) if logs else tempfile.TemporaryDirectory(prefix="scheduler-perf-") as place:
        runner = Runner(Path(place), embedded=embedded, before=before, timeout=timeout)
        results = asyncio.run(run_all(runner, rows, names, rounds, resume, output))
    if output == "table":
        click.echo(table(results))


async def run_all(
    runner: Runner,
    rows: Sequence[Row],
    schedulers: Sequence[str],
    rounds: int,
    resume: Path | None,
    output: str,
) -> list[Result]:
    """All runs, row by row; which scheduler is first alternates from round to round."""
    known = {each.key: each for each in read_results(resume)} if resume else {}
    runs = [
        (row, name, number)
        for row in rows
        for number in range(1, rounds + 1)
        for name in (schedulers if number % 2 else reversed(schedulers))
    ]
    results = []
    for place, (row, name, number) in enumerate(runs, 1):
        server = "embedded" if runner.embedded else "kube-apiserver"
        key = Result(row=row.name, scheduler=name, round=number, params=row.params, server=server).key
        result = known.get(key)
        if result is None:
            began = time.monotonic()
            result = await runner.run(row, name, number)
            if resume:
                with resume.open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
            took = time.monotonic() - began
            click.echo(f"{place}/{len(runs)} {took:.0f} s: {describe(result)}", err=True)
            if output == "json":
                click.echo(msgspec.json.encode(result).decode())
        results.append(result)
    return results


def describe(result: Result) -> str:
    fault = _fault(result)
    return (
        f"{result.row} {result.scheduler}: {result.pods} pods, {result.per_second:,.1f}/s, "
        f"{result.cpu:.2f} ms CPU a pod, API server {result.api_server_cpu:.2f}"
        + (f"; {fault}" if fault else "")
    )


if __name__ == "__main__":
    main()
