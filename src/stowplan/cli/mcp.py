"""`stowplan mcp`: let assistants ask about scheduling, by the Model Context Protocol. Nothing is changed."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec

from stowplan.api.manifests import Manifests, read_text
from stowplan.api.meta import Json
from stowplan.cli.cluster_source import GROUP_KINDS, config_of, kinds_of, read_manifests, with_groups_of
from stowplan.cli.explain import (
    ExplainAnswer,
    Wanted,
    explain_as_decided,
    explain_from_journal,
    explain_from_scheduler,
    explain_now,
    later_text,
    pod_keys,
)
from stowplan.cli.options import ClusterSource, SchedulerSource, SourceOptions, source_options
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.errors import ApiError
from stowplan.config import KubeSchedulerConfiguration
from stowplan.cycle.planner import build_cluster
from stowplan.errors import InputError, StowplanError, missing_extra
from stowplan.explain.layout import printable
from stowplan.framework.observer import OFFLINE_GUARD
from stowplan.framework.registry import Registry
from stowplan.replay import Trace, read_trace, replay
from stowplan.replay.compare import Comparison
from stowplan.simulator import WhatIf
from stowplan.simulator.outcome import as_json
from stowplan.simulator.question import Several, ask
from stowplan.web.whatif import (
    GRACE_SECONDS,
    MAX_ADDED,
    MAX_CONFIG_VALUES,
    MAX_MANIFEST_VALUES,
    Deadline,
    FormQuestion,
    check_pasted,
    parse_config,
    start_thread,
)

Tool = TypeVar("Tool", bound=Callable[..., Any])

MAX_LISTED = 100
"""Pods in one answer: an assistant reads all of it."""
SECONDS = 50.0
"""How long a question may take. Many assistants stop waiting after 60 seconds."""
MAX_STUCK = 4
"""Questions that take longer, each in a thread of its own, before no more are taken."""
QUEUE, WHAT_IF = "/page/api/queue", "/page/api/what-if"
INSTRUCTIONS = (
    "Explains decisions of the Kubernetes scheduler Stowplan, or of kube-scheduler's rules on a cluster. "
    "All tools only read. Name pods as namespace/name."
)
TEXT = Wanted(node=None, changes=True, as_data=False, all_nodes=False)


class Source(Protocol):
    """What the tools ask."""

    def explain(self, pod: str, node: str) -> str: ...

    def pending(self) -> list[Json]: ...

    def what_if(self, question: FormQuestion) -> Json: ...


class AnsweredPod(msgspec.Struct):
    pod: str
    message: str


class SchedulerAnswer(msgspec.Struct):
    """What the answers of a scheduler have in common."""

    pods: list[AnsweredPod]


class RunningScheduler:
    """A Stowplan scheduler, asked by the endpoints of its web page."""

    def __init__(self, connection: Connection, namespace: str | None) -> None:
        self._connection, self._namespace = connection, namespace or connection.namespace

    def explain(self, pod: str, node: str) -> str:
        keys = pod_keys((pod,), self._namespace)
        return _text(list(explain_from_scheduler(self._connection, keys, _about(node))))

    def pending(self) -> list[Json]:
        found = self._request("GET", QUEUE)
        return [{"pod": each["pod"], "message": each["message"]} for each in found["pods"]]

    def what_if(self, question: FormQuestion) -> Json:
        return self._request("POST", WHAT_IF, msgspec.json.encode(question))

    def _request(self, method: str, path: str, body: bytes | None = None) -> Json:
        async def request() -> bytes:
            async with ApiClient(self._connection, user_agent="stowplan/mcp", timeout=SECONDS) as api:
                return bytes((await api.request(method, path, body)).data)

        try:
            data = asyncio.run(request())
            msgspec.json.decode(data, type=SchedulerAnswer)
        except ApiError as error:
            raise InputError(str(error), where=self._connection.server) from None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = f"{path} has an unexpected answer; is this a Stowplan scheduler of this version?"
            raise InputError(text, where=self._connection.server) from None
        answer: Json = msgspec.json.decode(data)
        return answer


class Journal:
    """Decisions that a scheduler has recorded."""

    def __init__(self, folder: str, namespace: str) -> None:
        self._folder, self._namespace = folder, namespace

    def explain(self, pod: str, node: str) -> str:
        keys = pod_keys((pod,), self._namespace)
        return _text(list(explain_from_journal(self._folder, keys, _about(node))))

    def pending(self) -> list[Json]:
        raise self._lacks("which pods are pending now")

    def what_if(self, question: FormQuestion) -> Json:
        raise self._lacks("the cluster")

    def _lacks(self, what: str) -> InputError:
        return InputError(
            f"a journal has decisions, but not {what}: start `stowplan mcp` with --server or --kubeconfig",
            where=self._folder,
        )


class ReadCluster:
    """A cluster that is read again for each question, from an API server or from files."""

    def __init__(self, cluster: ClusterSource, scheduler: SchedulerSource) -> None:
        self._cluster, self._scheduler = cluster, scheduler

    def explain(self, pod: str, node: str) -> str:
        wanted, found = _about(node), None
        if not self._cluster.files and self._scheduler == SchedulerSource(None, None, (), None):
            found = explain_as_decided((pod,), self._cluster, wanted)
        if found is not None:
            return _text(list(found))
        text = _text(list(explain_now((pod,), self._cluster, self._scheduler, wanted, _raise_faults)))
        return f"{text}\n\nComputed for the cluster as it is now, with {_used_config(self._scheduler)}."

    def pending(self) -> list[Json]:
        manifests = self._read(self._registry(), None, ())
        waiting = (
            pod
            for pod in manifests.pods.values()
            if not (pod.node_name or pod.is_finished or pod.is_terminating)
        )
        return [
            {"pod": pod.key, "message": found.message if (found := pod.condition("PodScheduled")) else ""}
            for pod in waiting
        ]

    def what_if(self, question: FormQuestion) -> Json:
        check_pasted(question.config, "the configuration", MAX_CONFIG_VALUES)
        check_pasted(question.manifests, "the manifests", MAX_MANIFEST_VALUES)
        registry, deadline = self._registry(), Deadline(SECONDS)
        config = config_of(self._scheduler.config, self._scheduler.policy, registry)
        if question.config.strip():
            config = parse_config(question.config, registry)
        manifests = self._read(registry, config, [each.name for each in question.more])
        config = with_groups_of(manifests, config, registry, gang=question.gang)
        what_if = WhatIf(
            manifests.objects.values(),
            config,
            registry=registry,
            seed=self._scheduler.seed,
            check=deadline.check,
            cluster=build_cluster(manifests),
        )

        def read_more(known: Manifests) -> None:
            if question.manifests.strip():
                read_text(known, "the manifests", question.manifests)
            _raise_faults(known.faults)

        found = as_json(ask(what_if, question, manifests, read_more, MAX_ADDED))
        return found if question.config.strip() else found | {"decidedWith": _used_config(self._scheduler)}

    def _registry(self) -> Registry:
        return Registry.installed(self._scheduler.plugin_dirs)

    def _read(
        self, registry: Registry, config: KubeSchedulerConfiguration | None, wanted: Sequence[str]
    ) -> Manifests:
        manifests = read_manifests(self._cluster, (*GROUP_KINDS, *kinds_of(config, registry)), wanted)
        _raise_faults(manifests.faults)
        return manifests


def compare_placements(source: Source, configs: dict[str, str]) -> Json:
    """What each configuration would make of the cluster as it is now, if every pod were placed again."""
    answers = {name: source.what_if(FormQuestion(afresh=True, config=text)) for name, text in configs.items()}
    found = {name: {each["pod"]: each for each in answer["pods"]} for name, answer in answers.items()}
    used = {name: answer["decidedWith"] for name, answer in answers.items() if "decidedWith" in answer}
    first, second = found.values()
    different = [
        {
            "pod": pod,
            "nodes": {name: each[pod]["node"] for name, each in found.items()},
            "messages": {name: each[pod]["message"] for name, each in found.items() if each[pod]["message"]},
        }
        for pod in first
        if pod in second and first[pod]["node"] != second[pod]["node"]
    ]
    return {
        "comparedOn": "the cluster as it is now, every pod placed again",
        "pods": len(first),
        "pending": {name: sum(not each["node"] for each in pods.values()) for name, pods in found.items()},
        "different": len(different),
        "differences": different[:MAX_LISTED],
        **used,
    }


def compare_replays(trace: Trace, scheduler: SchedulerSource, configs: dict[str, str]) -> Json:
    """What each configuration would have made of a recording."""
    registry, deadline = Registry.installed(scheduler.plugin_dirs), Deadline(SECONDS)
    now = config_of(scheduler.config, scheduler.policy, registry)
    parsed = {name: parse_config(text, registry) if text.strip() else now for name, text in configs.items()}

    def on_progress(done: int, total: int) -> None:
        deadline.check()

    comparison = Comparison(
        {
            name: replay(trace, config, registry=registry, on_progress=on_progress)
            for name, config in parsed.items()
        }
    )
    found = comparison.as_json()
    return {
        "comparedOn": f"the recording {trace.source}",
        "metrics": found["metrics"],
        "different": len(found["differences"]),
        "differences": found["differences"][:MAX_LISTED],
        **{name: _used_config(scheduler) for name, text in configs.items() if not text.strip()},
    }


def make_server(source: Source, compare: Callable[[dict[str, str]], Json], seconds: float = SECONDS) -> Any:
    """The tools, as a server of the Model Context Protocol."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp_types import ToolAnnotations
    except ImportError:
        raise missing_extra("stowplan mcp", "the package mcp", "mcp") from None

    server = MCPServer("stowplan", instructions=INSTRUCTIONS, log_level="WARNING")

    stuck: set[threading.Thread] = set()

    def add(tool: Tool) -> Tool:
        """Add a tool whose errors are returned to the assistant, so that it can correct the call."""

        @functools.wraps(tool)
        async def answer(*args: object, **kwargs: object) -> Any:
            stuck.intersection_update(threading.enumerate())
            if len(stuck) >= MAX_STUCK:
                raise ToolError(f"{MAX_STUCK} earlier questions are still running; restart `stowplan mcp`")
            thread, answered = start_thread(functools.partial(tool, *args, **kwargs), seconds)
            coming = asyncio.wrap_future(answered)
            coming.add_done_callback(asyncio.Future.exception)  # which nobody may be waiting for by then
            # Time to end by itself: a plugin is interrupted one second after the deadline.
            await asyncio.wait([coming], timeout=seconds + 2 * GRACE_SECONDS)
            if not answered.done():
                stuck.add(thread)
                raise ToolError(printable(_late(thread, seconds)))
            try:
                return answered.result()
            except (StowplanError, click.ClickException, SystemExit) as error:
                text = error.message if isinstance(error, click.ClickException) else str(error)
                raise ToolError(printable(text)) from None

        server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))(answer)
        return tool

    @add
    def why_pending(pod: str = "") -> str:
        """Explain why a pod is pending: what each node lacks, and the smallest changes that would help.

        Without a pod, list the pods that are pending now, each with the scheduler's last message.
        """
        if pod:
            return source.explain(pod, "")
        found = source.pending()
        lines = [f"{each['pod']}: {each['message'] or 'not tried yet'}" for each in found[:MAX_LISTED]]
        more = [f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
        are = "pod is" if len(found) == 1 else "pods are"
        return printable("\n".join([f"{len(found)} {are} pending.", *lines, *more]))

    @add
    def why_here(pod: str, node: str = "") -> str:
        """Explain why a pod was placed on its node: the scores of all plugins, the runners-up and by how much
        it won. With a node, explain the decision for that node: why it was rejected, or lost."""
        return source.explain(pod, node)

    @add
    def what_if(
        manifests: str = "",
        more_pods: dict[str, int] | None = None,
        more_nodes: dict[str, int] | None = None,
        drain: list[str] | None = None,
        lose: list[str] | None = None,
        reschedule_all: bool = False,
        config: str = "",
    ) -> Json:
        """Show where pods would go after a change, which would be evicted and which would stay pending.

        manifests: YAML of objects to add or replace, such as pods, Deployments or nodes. more_pods: how many
        more pods like a pod ("shop/web-1"). more_nodes: how many more nodes like a node. drain, lose: nodes.
        config: YAML of another KubeSchedulerConfiguration (apiVersion kubescheduler.config.k8s.io/v1).
        """
        question = FormQuestion(
            manifests=manifests,
            config=config,
            more=tuple(Several(*each) for each in (more_pods or {}).items()),
            more_nodes=tuple(Several(*each) for each in (more_nodes or {}).items()),
            drain=tuple(drain or ()),
            lose=tuple(lose or ()),
            afresh=reschedule_all,
        )
        found = source.what_if(question)
        pods = sorted(found["pods"], key=lambda each: (each["outcome"] == "placed", each["pod"]))
        left_out = len(pods) - MAX_LISTED
        return found | {"pods": pods[:MAX_LISTED]} | ({"leftOut": left_out} if left_out > 0 else {})

    @add
    def compare_configs(config: str, other: str = "") -> Json:
        """Compare two scheduler configurations: how many pods would be pending, and which would get another
        node.

        config: YAML of a KubeSchedulerConfiguration (apiVersion kubescheduler.config.k8s.io/v1). other: what
        to compare it with; without it, the configuration that is used now.
        """
        for text in (config, other):
            check_pasted(text, "the configuration", MAX_CONFIG_VALUES)
        return compare({"other" if other.strip() else "now": other, "config": config})

    return server


@click.command()
@source_options(
    "Read the cluster from manifests or the output of `kubectl get … -o yaml|json`. Repeatable.",
    "Ask the running Stowplan scheduler at URL, such as https://localhost:10259.",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path),
    help="Compare configurations on this recording of `stowplan record`, instead of the cluster as it is.",
)
def mcp(options: SourceOptions, trace: Path | None) -> None:
    """Serve tools for AI assistants over standard input and output (Model Context Protocol).

    The tools why_pending, why_here, what_if and compare_configs only read. They ask the cluster of the
    kubeconfig, or what --server, --journal or -f names. See docs/mcp.md for how to add them to an assistant.
    """
    if "-" in options.files:
        raise click.UsageError("-f cannot be -, because requests come from standard input")
    source: Source
    scheduler = options.scheduler()
    if options.server:
        source = RunningScheduler(options.connect(), options.namespace)
    elif options.journal:
        source = Journal(options.journal, options.namespace or "default")
    else:
        source = ReadCluster(options.cluster(), scheduler)
    recording = None if trace is None else read_trace(trace)
    if recording is not None and recording.faults:
        raise recording.faults[0]
    if recording is None:
        compare = functools.partial(compare_placements, source)
    else:
        compare = functools.partial(compare_replays, recording, scheduler)
    make_server(source, compare).run()


def _late(thread: threading.Thread, seconds: float) -> str:
    plugin = OFFLINE_GUARD.plugin_in(thread.ident or 0)
    what = "no answer" if plugin is None else f"plugin {plugin.name} has not returned"
    return f"{what} within {seconds:g} s"


def _about(node: str) -> Wanted:
    return TEXT._replace(node=node, changes=False) if node else TEXT


def _used_config(scheduler: SchedulerSource) -> str:
    """What decides where no scheduler is asked: assistants must not take it for the scheduler's own."""
    if path := scheduler.config or scheduler.policy:
        return f"the configuration {path}"
    return "the default configuration; start `stowplan mcp` with --config or --server for another"


def _text(answers: list[ExplainAnswer]) -> str:
    for each in answers:
        if each.printed.fault:
            raise InputError(each.printed.fault)
    return printable("\n\n".join(each.printed.text + later_text(each) for each in answers))


def _raise_faults(faults: Sequence[InputError]) -> None:
    if faults:
        raise InputError("\n".join(map(str, faults)))
