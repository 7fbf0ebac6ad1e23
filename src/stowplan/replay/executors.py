"""Runs many replays: in this process, in several, or on a Dask cluster.

A replay depends on its trace, its configuration and its options alone, so it gives the same results
wherever it runs, and can be run again if a worker dies."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Protocol

import msgspec

from stowplan.config import load
from stowplan.errors import InputError, StowplanError, missing_extra
from stowplan.framework.registry import Registry
from stowplan.replay.engine import Progress, ReplayOptions, replay
from stowplan.replay.results import Results
from stowplan.replay.trace import Event, Trace

ExecutorName = Literal["processes", "dask"]
ProgressOf = Callable[[str], AbstractContextManager[Progress]]
"""Shows how far the replay of this name is."""
SMALL_TRACE = 2000
"""Events of a trace that is replayed sooner than a process starts."""
MAX_BROKEN_POOLS = 3
CONNECT_SECONDS, WORKER_SECONDS = 10, 60
"""How long to wait for the Dask scheduler, and for its first worker."""


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """One replay of a trace that the executor knows."""

    name: str
    config: dict[str, Any] | None = None
    """The configuration as in a file; None for the default one."""
    options: ReplayOptions = ReplayOptions()
    plugin_dirs: tuple[str, ...] = ()
    until: float | None = None
    """Replay only the events before this time."""


class Executor(Protocol):
    def run(self, jobs: Sequence[ReplayJob]) -> Iterator[tuple[int, Results]]:
        """Run all jobs; yield the place of each and its results as soon as they are there."""
        ...


def run_job(trace: Trace, job: ReplayJob, on_progress: Progress = lambda done, total: None) -> Results:
    registry = Registry.installed(job.plugin_dirs)
    config = None if job.config is None else load(job.config, registry).config
    if job.until is not None:
        events = [event for event in trace.events if event.time < job.until]
        trace = Trace(events, trace.source)
    return replay(trace, config, registry=registry, options=job.options, on_progress=on_progress)


@contextmanager
def _no_progress(name: str) -> Iterator[Progress]:
    yield lambda done, total: None


@contextmanager
def open_executor(
    name: ExecutorName,
    trace: Trace,
    *,
    jobs: int | None = None,
    address: str | None = None,
    progress_of: ProgressOf = _no_progress,
) -> Iterator[Executor]:
    """An executor for replays of `trace`, with up to `jobs` processes or on the Dask cluster at `address`."""
    if name == "dask":
        if not address:
            raise InputError("is required with --executor dask", what="--scheduler-address")
        executor = DaskExecutor(trace, address)
        try:
            yield executor
        finally:
            executor.close()
    elif address:
        raise InputError("requires --executor dask", what="--scheduler-address")
    else:
        if jobs is None:
            jobs = 1 if len(trace.events) < SMALL_TRACE else _cpu_count()
        processes = Processes(trace, jobs, progress_of)
        try:
            yield processes
        finally:
            processes.close()


def _cpu_count() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """Runs replays in worker processes, or in this one if there is no more than one to run at a time."""

    def __init__(self, trace: Trace, jobs: int, progress_of: ProgressOf = _no_progress) -> None:
        self._trace, self._jobs, self._progress_of = trace, jobs, progress_of
        self._pool: ProcessPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def run(self, jobs: Sequence[ReplayJob]) -> Iterator[tuple[int, Results]]:
        if min(self._jobs, len(jobs)) < 2:
            for place, job in enumerate(jobs):
                with self._progress_of(job.name) as on_progress:
                    yield place, run_job(self._trace, job, on_progress)
            return
        left, broken = dict(enumerate(jobs)), 0
        while left:
            try:
                running = {self._open().submit(_run_here, job): place for place, job in left.items()}
                for future in as_completed(running):
                    found = future.result()
                    del left[running[future]]
                    yield running[future], found
            except BrokenProcessPool:  # a worker was killed; what it had is run again
                self.close()
                broken += 1
                if broken == MAX_BROKEN_POOLS:
                    names = ", ".join(job.name for job in left.values())
                    raise StowplanError(
                        f"worker processes were killed {broken} times, perhaps for want of memory; "
                        f"try a smaller --jobs. Replays left: {names}"
                    ) from None

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not a fork, which would copy locks that threads of pyarrow hold.
            context = multiprocessing.get_context("spawn")
            packed = (pack_trace(self._trace),)
            self._pool = ProcessPoolExecutor(self._jobs, context, initializer=_keep_trace, initargs=packed)
        return self._pool


_kept: list[Trace] = []
"""The trace of this worker process."""


def _keep_trace(packed: bytes) -> None:
    _kept[:] = [unpack_trace(packed)]


def _run_here(job: ReplayJob) -> Results:
    return run_job(_kept[0], job)


class _Packed(msgspec.Struct):
    source: str
    events: list[Event]


def pack_trace(trace: Trace) -> bytes:
    return zlib.compress(msgspec.json.encode(_Packed(trace.source, trace.events)), 1)


def unpack_trace(packed: bytes) -> Trace:
    found = msgspec.json.decode(zlib.decompress(packed), type=_Packed)
    return Trace(found.events, found.source)


class DaskExecutor:
    """Runs replays on the workers of a Dask cluster."""

    def __init__(self, trace: Trace, address: str) -> None:
        self._distributed = _import_distributed()
        self._packed, self._address = pack_trace(trace), address
        try:
            self.client: Any = self._distributed.Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False
            )
        except (OSError, ValueError) as error:
            text = f"cannot connect to the Dask scheduler: {error}"
            raise InputError(text, what="--scheduler-address", where=address) from None

    def close(self) -> None:
        self.client.close()

    def run(self, jobs: Sequence[ReplayJob]) -> Iterator[tuple[int, Results]]:
        client = self.client
        try:
            client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except TimeoutError:
            text = "the Dask scheduler has no workers; start some with: dask worker ADDRESS --nthreads 1"
            raise InputError(text, what="--scheduler-address", where=self._address) from None
        # A task rather than scattered data: the scheduler runs it again if the worker that has it dies.
        digest = hashlib.sha256(self._packed).hexdigest()
        trace = client.submit(unpack_trace, self._packed, key=f"stowplan-trace-{digest}")
        running = {
            client.submit(_run_alone, trace, job, key=f"stowplan-replay-{place}-{os.urandom(8).hex()}"): place
            for place, job in enumerate(jobs)
        }
        try:
            for future in self._distributed.as_completed(list(running), loop=client.loop):
                yield running[future], self._result(future, jobs[running[future]])
        finally:
            client.cancel([each for each in running if not each.done()])

    def _result(self, future: Any, job: ReplayJob) -> Results:
        try:
            found: Results = future.result()
            return found
        except self._distributed.KilledWorker as error:
            raise StowplanError(f"{job.name}: every worker that ran this replay died: {error}") from None


_alone = threading.Lock()


def _run_alone(trace: Trace, job: ReplayJob) -> Results:
    """One at a time in each process, as threads of one worker would only get in each other's way."""
    with _alone:
        return run_job(trace, job)


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise missing_extra("--executor dask", "dask.distributed", "dask") from None
    return distributed
