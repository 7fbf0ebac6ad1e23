"""`stowplan explain` of decisions that were made: from a journal, and from a scheduler that serves."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from make import make_node, make_pod, planner
from stowplan.cli import main
from stowplan.journal import Attempt, Decisions, Outcome
from stowplan.journal.writer import JournalWriter
from stowplan.scheduler.decision_pages import PATH, decision_pages
from stowplan.serving import Server, ServingOptions

NODES = 5000
TOKEN = "sesame"


class Run(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def explain(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["stowplan", "explain", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        monkeypatch.setenv("KUBECONFIG", "/nowhere")
        monkeypatch.setenv("HOME", "/nowhere")
        with pytest.raises(SystemExit) as ended:
            main()
        return Run(ended.value.code or 0, *capsys.readouterr())

    return run


def kept(decisions: Decisions, *names: str, nodes: int = 3) -> None:
    placing = planner([make_node(f"n{number}") for number in range(nodes)])
    for name in names:
        decision = placing.decide(make_pod(name, requests={"cpu": "50" if name == "huge" else "1"}))
        outcome = Outcome.UNSCHEDULABLE if decision.chosen is None else Outcome.SCHEDULED
        attempt = Attempt("default-scheduler", 1, 1_800_000_000.0, 0.1, outcome, decision.message)
        decisions.keep(decision, attempt)
    decisions.settle()


@pytest.fixture
def journal(tmp_path) -> Path:
    writer = JournalWriter(tmp_path / "journal")
    kept(Decisions(write=writer.add), "p", "huge", "<b>bold</b>")
    writer.close()
    return tmp_path / "journal"


class Scheduler(NamedTuple):
    decisions: Decisions
    url: str
    authority: Path


class Reviewer:
    """Knows one token, whose owner may see /debug/decisions."""

    class User(NamedTuple):
        username: str
        groups: tuple[str, ...] = ()

    async def review_token(self, token):
        return self.User("me" if token == TOKEN else "somebody")

    async def review_access(self, user, groups, path, verb):
        return (user, path, verb) == ("me", PATH, "get")


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler's server in a thread, with all that it keeps and nothing to schedule."""
    decisions = Decisions()
    loop, is_up, port = asyncio.new_event_loop(), threading.Event(), free_port()
    options = ServingOptions(bind_address="127.0.0.1", secure_port=port, cert_dir=str(tmp_path))

    async def serve():
        pages = decision_pages(decisions, lambda: None)
        async with Server(options, pages, tokens=Reviewer(), access=Reviewer()):
            is_up.set()
            await stopping.wait()

    stopping = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert is_up.wait(10)
    yield Scheduler(decisions, f"https://127.0.0.1:{port}", tmp_path / "kube-scheduler.crt")
    loop.call_soon_threadsafe(stopping.set)
    thread.join()
    loop.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def token(tmp_path) -> Path:
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path / "token"


def test_a_decision_of_a_journal(explain, journal):
    run = explain("p", "--journal", journal)
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith("Pod default/p went to n0, attempt 1 at 2027-01-15 08:00:00 UTC")
    run = explain("pod/p", "default/huge", "--journal", journal, "-o", "json")
    found = [json.loads(line) for line in run.out.splitlines()]
    assert [(each["outcome"], each["node"]) for each in found] == [("placed", "n0"), ("pending", None)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q", "--journal", "{}"], "{}: no decision on pod default/q; it has those written from 20"),
        (["p", "-n", "shop", "--journal", "{}"], "{}: no decision on pod shop/p; it has"),
        (
            ["p", "--journal", "{}/nowhere"],
            "{}/nowhere: there is no such directory; give the one of --journal",
        ),
        (["deploy/p", "--journal", "{}"], "deploy/p: only pods are decided; name one, not a Deployment"),
        (["p", "--node", "n9", "--journal", "{}"], "there was no node n9 when it was decided; there is n0"),
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
    assert run.err.startswith(f"{later}: damaged, and skipped: ")
    file.write_bytes(b"")
    run = explain("p", "--journal", journal)
    assert run.status == 1
    assert run.err.count("damaged, and skipped") == 2
    assert "no decision on pod default/p" in run.err


def test_names_are_shown_not_obeyed(explain, journal):
    assert explain("<b>bold</b>", "--journal", journal).status == 1  # a name with a slash has a namespace
    run = explain("default/<b>bold</b>", "--journal", journal)
    assert run.out.startswith("Pod default/<b>bold</b> went to n")


def test_a_running_scheduler(explain, scheduler, token):
    kept(scheduler.decisions, "p")
    asked = ("--server", scheduler.url, "--token-file", token, "--certificate-authority", scheduler.authority)
    run = explain("p", *asked)
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith("Pod default/p went to n0, attempt 1 at 2027-01-15 08:00:00 UTC")
    run = explain("p", "--node", "n1", *asked)
    assert "Node n1 fits: place 2 of 3" in run.out
    run = explain("q", *asked)
    assert (run.status, run.out) == (1, "")
    assert run.err.startswith("stowplan: no pod default/q is known here")


def test_a_scheduler_that_may_not_be_asked_or_is_not_there(explain, scheduler, token, tmp_path):
    server = ("--server", scheduler.url, "--insecure-skip-tls-verify")
    (tmp_path / "other").write_text("mellon")
    run = explain("p", *server, "--token-file", tmp_path / "other")
    assert (run.status, run.out) == (1, "")
    assert 'forbidden: User "somebody" cannot get path "/debug/decisions"' in run.err
    run = explain("p", "--server", scheduler.url, "--token-file", token)
    assert run.status == 1
    assert "--certificate-authority FILE or --insecure-skip-tls-verify" in run.err
    run = explain("p", "--server", f"https://127.0.0.1:{free_port()}", "--token-file", token)
    assert run.status == 1
    assert "is a scheduler there?" in run.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "https://x", "--journal", "y"], "--server and --journal are different places to ask"),
        (["-f", "x", "--journal", "y"], "-f and --journal are different places to ask"),
        (["-f", "x", "--context", "y"], "-f names files with the cluster"),
    ],
    ids=["server and journal", "files and journal", "files and context"],
)
def test_only_one_place_is_asked(explain, arguments, message):
    run = explain("p", *arguments)
    assert run.status == 2
    assert message in run.err


def test_an_answer_of_many_nodes_comes_at_once(explain, scheduler, token, tmp_path):
    """The limit is 0.3 s; it is generous here, for machines that do other work too."""
    writer = JournalWriter(tmp_path / "many")
    scheduler.decisions.write = writer.add
    kept(scheduler.decisions, "p", nodes=NODES)
    writer.close()
    explain("p", "--journal", tmp_path / "many")  # what is imported only once
    for asked in (
        ("--server", scheduler.url, "--token-file", token, "--insecure-skip-tls-verify"),
        ("--journal", tmp_path / "many"),
    ):
        began = time.perf_counter()
        run = explain("p", *asked)
        assert time.perf_counter() - began < 1.5
        assert f"… and {NODES - 20} more that fit" in run.out
