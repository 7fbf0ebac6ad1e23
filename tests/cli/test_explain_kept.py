"""`stowplan explain` of decisions that were made: from a journal, and from a scheduler that serves."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from decisions_served import BAD_TOKEN, Served, free_port, served

from make import make_node, make_pod, planner
from stowplan.cli import scheduler_client
from stowplan.journal import Attempt, Decisions, Outcome
from stowplan.journal.writer import JournalWriter
from stowplan.web import Source, make_pages, mount

NODES = 5000
EXPLAIN = "/page/api/explain"


@pytest.fixture
def explain(run_stowplan, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setenv("HOME", "/nowhere")
    return partial(run_stowplan, "explain")


def kept(decisions: Decisions, *names: str, nodes: int = 3) -> None:
    placing = planner([make_node(f"n{number}") for number in range(nodes)])
    for name in names:
        decision = placing.decide(make_pod(name, requests={"cpu": "50" if name == "huge" else "1"}))
        outcome = Outcome.UNSCHEDULABLE if decision.chosen is None else Outcome.SCHEDULED
        attempt = Attempt("default-scheduler", 1, 1_800_000_000.0, 0.1, outcome, decision.message)
        decisions.keep(decision, attempt)
    decisions.flush()


@pytest.fixture
def journal(tmp_path) -> Path:
    writer = JournalWriter(tmp_path / "journal")
    kept(Decisions(write=writer.add), "p", "huge", "<b>bold</b>")
    writer.close()
    return tmp_path / "journal"


class Scheduler(NamedTuple):
    decisions: Decisions
    server: Served
    authority: Path


@pytest.fixture
def scheduler(tmp_path):
    """All that it keeps, and nothing to schedule."""
    decisions = Decisions()
    source = Source(decisions, lambda: None, lambda: None, lambda: None)
    with served(tmp_path, nullcontext(mount(make_pages(source))), EXPLAIN) as found:
        yield Scheduler(decisions, found, tmp_path / "kube-scheduler.crt")


def test_a_decision_of_a_journal(explain, journal):
    run = explain("p", "--journal", journal)
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith("Pod default/p went to n0, attempt 1 at 2027-01-15 08:00:00 UTC")
    assert run.out.endswith(
        "No change of a weight would move it to another node.\n\n"
        "For changes of other kinds, use --server, or explain the pod on the cluster.\n"
    )
    assert "ask the scheduler" not in explain("p", "--journal", journal, "--no-changes").out
    assert explain("huge", "--journal", journal).out.endswith(
        "For changes that would let it fit, use --server, or explain the pod on the cluster.\n"
    )
    run = explain("pod/p", "default/huge", "--journal", journal, "-o", "json")
    found = [json.loads(line) for line in run.out.splitlines()]
    assert [(each["outcome"], each["node"]) for each in found] == [("placed", "n0"), ("pending", None)]


def test_of_several_pods_those_that_a_journal_has_are_told(explain, journal):
    run = explain("q", "p", "huge", "--journal", journal, "-o", "json")
    assert run.status == 1
    assert [json.loads(line)["pod"] for line in run.out.splitlines()] == ["default/p", "default/huge"]
    assert run.err.startswith(
        f"stowplan: {journal}: no decision for pod default/q; the journal has decisions"
    )
    run = explain("p", "q", "--journal", journal / "nowhere")
    assert (run.status, run.out, run.err.count("no such directory")) == (1, "", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["q", "--journal", "{}"],
            "{}: no decision for pod default/q; the journal has decisions written from 20",
        ),
        (["p", "-n", "shop", "--journal", "{}"], "{}: no decision for pod shop/p; the journal has"),
        (
            ["p", "--journal", "{}/nowhere"],
            "{}/nowhere: no such directory; pass the one given to --journal",
        ),
        (["deploy/p", "--journal", "{}"], "deploy/p: expected a pod, not a Deployment"),
        (
            ["p", "--node", "n9", "--journal", "{}"],
            "node n9 did not exist at the time of the decision (known: n0",
        ),
    ],
    ids=["unknown pod", "other namespace", "no directory", "a workload", "unknown node"],
)
def test_what_a_journal_does_not_have(explain, journal, arguments, message):
    run = explain(*(each.format(journal) for each in arguments))
    assert (run.status, run.out) == (1, "")
    assert run.err.startswith(f"stowplan: {message.format(journal)}")


def test_a_journal_with_a_damaged_file(explain, journal):
    (file,) = journal.glob("*.parquet")
    later = journal / "decisions-20300101T000000.000000Z-20300101T000000.000000Z.parquet"
    later.write_bytes(file.read_bytes()[:-50])
    run = explain("p", "--journal", journal)
    assert run.status == 0
    assert run.out.startswith("Pod default/p went to n0")
    assert run.err.startswith(f"{later}: skipping unreadable file: ")
    file.write_bytes(b"")
    run = explain("p", "--journal", journal)
    assert run.status == 1
    assert run.err.count("skipping unreadable file") == 2
    assert "no decision for pod default/p" in run.err


def test_names_are_shown_not_obeyed(explain, journal):
    assert explain("<b>bold</b>", "--journal", journal).status == 1  # a name with a slash has a namespace
    run = explain("default/<b>bold</b>", "--journal", journal)
    assert run.out.startswith("Pod default/<b>bold</b> went to n")


def test_a_running_scheduler(explain, scheduler):
    kept(scheduler.decisions, "p")
    _, url, _, token, _ = scheduler.server.flags
    asked = ("--server", url, "--token-file", token, "--certificate-authority", scheduler.authority)
    asked += ("--no-changes",)
    run = explain("p", *asked)
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith("Pod default/p went to n0, attempt 1 at 2027-01-15 08:00:00 UTC")
    run = explain("p", "--node", "n1", *asked)
    assert "Node n1 fits: rank 2 of 3" in run.out
    run = explain("q", *asked)
    assert (run.status, run.out) == (1, "")
    assert run.err.startswith("stowplan: pod default/q not found")
    run = explain("q", "p", "--node", "n1", *asked, "-o", "json")
    assert (run.status, json.loads(run.out)["pod"]) == (1, "default/p")
    assert run.err.startswith("stowplan: pod default/q not found")
    run = explain("p", "--node", "n9", *asked)
    assert (run.status, run.out) == (1, "")
    assert run.err.startswith("stowplan: node n9 did not exist at the time of the decision (known: n0")


@pytest.mark.parametrize(
    ("token", "message"),
    [
        pytest.param(
            "mellon",
            'forbidden: User "somebody" cannot get path "/page/api/explain"; this requires a role with '
            'nonResourceURLs "/page/*" and verb get: bind the ClusterRole whose name ends in ":viewer", '
            "which `stowplan manifests` prints",
            id="without the right",
        ),
        pytest.param(
            BAD_TOKEN,
            "Unauthorized; the credentials were not accepted: check that the token of --token-file, "
            "or the token or certificate of the kubeconfig's user, is valid and has not expired",
            id="unknown",
        ),
    ],
)
def test_who_may_not_ask(explain, scheduler, tmp_path, token, message):
    (tmp_path / "other").write_text(token)
    url = scheduler.server.url
    run = explain("p", "--server", url, "--insecure-skip-tls-verify", "--token-file", tmp_path / "other")
    assert (run.status, run.out, run.err) == (1, "", f"stowplan: {url}: {message}\n")


def test_a_scheduler_that_is_not_trusted(explain, scheduler):
    url = scheduler.server.url
    run = explain("p", "--server", url, "--token-file", scheduler.server.token)
    assert (run.status, run.out) == (1, "")
    assert run.err.startswith(f"stowplan: {url}: its certificate is not trusted (")
    assert run.err.endswith(
        "); name it, or the authority that signed it, with --certificate-authority FILE, or skip the check "
        "with --insecure-skip-tls-verify\n"
    )
    assert "kubeconfig" not in run.err


def test_a_scheduler_that_is_not_there(explain, tmp_path, scheduler):
    url = f"https://127.0.0.1:{free_port()}"
    run = explain("p", "--server", url, "--token-file", scheduler.server.token)
    assert run.status == 1
    assert run.err.startswith(f"stowplan: {url}: GET {url}{EXPLAIN}: cannot connect (Connection refused)")
    assert run.err.endswith("; is a scheduler there?\n")


def test_another_server_than_a_scheduler_with_a_page(explain, tmp_path):
    """As an API server answers, and a kube-scheduler."""
    with served(tmp_path, nullcontext({}), EXPLAIN) as found:
        run = explain("p", *found.flags)
    assert (run.status, run.out) == (1, "")
    assert run.err == (
        f"stowplan: {found.url}: {EXPLAIN} not found; is this a Stowplan scheduler, and not another one or "
        "the API server?\n"
    )


def test_a_server_that_stays_silent_is_not_waited_for(explain, monkeypatch, tmp_path):
    monkeypatch.setattr(scheduler_client, "SECONDS", 0.2)
    (tmp_path / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        run = explain("p", "--server", url, "--token-file", tmp_path / "token")
    assert (run.status, run.out) == (1, "")
    assert run.err == f"stowplan: {url}: no answer within 0.2 s; is a scheduler there?\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "https://x", "--journal", "y"], "--server and --journal are mutually exclusive"),
        (["-f", "x", "--journal", "y"], "-f and --journal are mutually exclusive"),
        (["-f", "x", "--context", "y"], "-f cannot be combined with"),
    ],
    ids=["server and journal", "files and journal", "files and context"],
)
def test_only_one_place_is_asked(explain, arguments, message):
    run = explain("p", *arguments)
    assert run.status == 2
    assert message in run.err


def loaded_for(*words) -> set[str]:
    """The modules that a command has loaded when it ends."""
    script = (
        "import sys; from stowplan.cli import stowplan; stowplan.main(sys.argv[1:], standalone_mode=False)"
    )
    script += "; print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", script, "explain", *map(str, words)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())


def test_little_is_loaded_to_ask(scheduler, journal):
    """The engine is not needed to read what it decided, and would take longer to load than all else."""
    found = loaded_for("p", "--journal", journal)
    assert "stowplan.explain.recorded" in found
    assert not {"aiohttp", "stowplan.cycle", "stowplan.api.manifests", "stowplan.plugins"} & found
    kept(scheduler.decisions, "p")
    found = loaded_for("p", "--no-changes", *scheduler.server.flags)
    assert "stowplan.cli.scheduler_client" in found
    assert not {"aiohttp", "numpy", "stowplan.cluster", "stowplan.config", "stowplan.journal"} & found


def test_an_answer_of_many_nodes_is_cut_short(explain, scheduler, tmp_path):
    writer = JournalWriter(tmp_path / "many")
    scheduler.decisions.write = writer.add
    kept(scheduler.decisions, "p", nodes=NODES)
    writer.close()
    for asked in (
        scheduler.server.flags,
        ("--journal", tmp_path / "many"),
    ):
        run = explain("p", *asked)
        assert f"… and {NODES - 20} more nodes that fit" in run.out
