"""Replays in several processes and on a real Dask cluster: the same bytes, and nothing lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from small_trace import busy_trace

from stowplan.cli import stowplan
from stowplan.errors import InputError
from stowplan.replay import ReplayOptions, write_trace
from stowplan.replay.executors import DaskExecutor, ReplayJob, open_executor, pack_trace, unpack_trace

WAIT_SECONDS = 60
BASE = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def jobs(count=4):
    """One replay for each seed."""
    return [
        ReplayJob(name=f"seed {seed}", config=BASE, options=ReplayOptions(seed=seed)) for seed in range(count)
    ]


def written(tmp_path, found):
    """The bytes of the results files, in order of the jobs."""
    texts = []
    for _, results in sorted(found, key=lambda each: each[0]):
        results.write(tmp_path / "out.jsonl")
        texts.append((tmp_path / "out.jsonl").read_bytes())
    return texts


def run_with(tmp_path, trace, wanted, **more):
    with open_executor(more.pop("name", "processes"), trace, **more) as executor:
        return written(tmp_path, executor.run(wanted))


def test_a_packed_trace_is_the_same():
    trace = busy_trace()
    assert unpack_trace(pack_trace(trace)).events == trace.events


def test_processes_give_the_bytes_of_one_even_if_one_is_killed(tmp_path):
    trace = busy_trace()
    one = run_with(tmp_path, trace, jobs(), jobs=1)
    assert len(set(one)) > 1
    with open_executor("processes", trace, jobs=2) as executor:
        running = executor.run(jobs())
        found = [next(running)]
        (victim, *_) = multiprocessing.active_children()
        os.kill(victim.pid, signal.SIGKILL)
        found += running
        assert written(tmp_path, found) == one
        wrong = ReplayJob(name="wrong", config={**BASE, "profiles": [{"pluginConfig": [{"nam": 1}]}]})
        with pytest.raises(InputError, match=r'unknown field "profiles\[0\].pluginConfig\[0\].nam"'):
            list(executor.run([wrong, wrong]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--executor", "dask"], "--scheduler-address: is required with --executor dask"),
        (["--scheduler-address", "tcp://127.0.0.1:1"], "--scheduler-address: requires --executor dask"),
    ],
)
def test_options_that_belong_together(tmp_path, words, said):
    write_trace(tmp_path / "trace.jsonl", busy_trace().events)
    config = tmp_path / "a.yaml"
    config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    (tmp_path / "b.yaml").write_text(config.read_text())
    found = CliRunner().invoke(
        stowplan,
        [
            "compare",
            *map(str, (tmp_path / "trace.jsonl", "--config", config, "--config", tmp_path / "b.yaml")),
            *words,
        ],
    )
    assert said in str(found.exception)


class DaskCluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder):
        self._folder, self.processes = folder, []
        file = folder / "scheduler.json"
        self.start(
            "scheduler", "--port", "0", "--no-dashboard", "--host", "127.0.0.1", "--scheduler-file", file
        )
        deadline = time.monotonic() + WAIT_SECONDS
        while not (file.exists() and file.read_text().strip()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        self.address = json.loads(file.read_text())["address"]
        self.workers = [
            self.start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
            for _ in range(2)
        ]

    def start(self, kind, *words):
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *map(str, words)]
        log = (self._folder / f"{kind}.log").open("a")
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        log.close()
        self.processes.append(process)
        return process

    def stop(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def dask_cluster(tmp_path_factory):
    cluster = DaskCluster(tmp_path_factory.mktemp("dask"))
    yield cluster
    cluster.stop()


def test_dask_gives_the_bytes_of_one_process_even_if_a_worker_is_killed(tmp_path, dask_cluster):
    trace = busy_trace(nodes=9, pods=60)
    one = run_with(tmp_path, trace, jobs(6), jobs=1)
    with open_executor("dask", trace, address=dask_cluster.address) as executor:
        assert isinstance(executor, DaskExecutor)
        executor.client.wait_for_workers(2, timeout=WAIT_SECONDS)
        running = executor.run(jobs(6))
        found = [next(running)]
        assert all(executor.client.processing().values())  # both workers have something to lose
        dask_cluster.workers[0].send_signal(signal.SIGKILL)
        found += running
    assert dask_cluster.workers[0].wait(WAIT_SECONDS) == -signal.SIGKILL
    assert written(tmp_path, found) == one


def test_a_study_on_dask_writes_the_same_report(tmp_path, dask_cluster):
    write_trace(tmp_path / "trace.jsonl", busy_trace(pods=20).events)
    on_dask = ("--executor", "dask", "--scheduler-address", dask_cluster.address)
    for folder, words in (("here", ("--jobs", "1")), ("dask", on_dask)):
        more = ("--objective", "nodes.used", "--trials", "3", "--output-dir", tmp_path / folder, *words)
        found = CliRunner().invoke(stowplan, ["tune", *map(str, (tmp_path / "trace.jsonl", *more))])
        assert found.exit_code == 0, found.output
    for name in ("report.json", "report.md", "best.yaml"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "dask" / name).read_bytes()


def test_no_dask_scheduler_at_the_address():
    text = r"tcp://127\.0\.0\.1:1: --scheduler-address: cannot connect to the Dask scheduler"
    with (
        pytest.raises(InputError, match=text),
        open_executor("dask", busy_trace(), address="tcp://127.0.0.1:1"),
    ):
        pass
