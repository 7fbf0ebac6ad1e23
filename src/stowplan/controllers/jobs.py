"""Jobs: pods until enough of them have succeeded, or too many have failed.

A pod that has ended keeps a finalizer until its end is in the job's status: first its uid is written down
there, then the finalizer goes, then the uid becomes a count. So each is counted exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import msgspec

from stowplan.api.meta import Json, parse_time
from stowplan.client.errors import ApiError
from stowplan.controllers.engine import Controller
from stowplan.controllers.groups import JobGroups
from stowplan.controllers.kinds import JOBS, PODS, Plain, PodView
from stowplan.controllers.owned_pods import OwnedPods, differs, one_then_all, pod_from, with_condition
from stowplan.controllers.stores import Stores

OURS = "kubernetes.io/job-controller"
TRACKING = "batch.kubernetes.io/job-tracking"
FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 600.0
JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
NO_LIMIT = 2**31 - 1
MAX_CREATED = 500
"""Pods made at a time, as in Kubernetes; more follow once these are seen."""
MAX_INDEXES = 1_000_000


def tracking_jobs(pod: PodView) -> Iterable[str]:
    """The key of the job that has yet to count the pod."""
    if TRACKING not in pod.metadata.finalizers:
        return ()
    owner = pod.metadata.controller()
    return (f"{pod.namespace}/{owner.name if owner is not None else pod.labels.get(JOB_NAME, '')}",)


def is_left_behind(pod: PodView, job: Plain | None) -> bool:
    """Whether the job that should count the pod exists no more."""
    owner = pod.metadata.controller()
    return job is None or (owner is not None and owner.uid != job.uid)


class Jobs(Controller):
    component = "job-controller"

    def __init__(self, stores: Stores, *, with_groups: bool = False) -> None:
        super().__init__(stores)
        self._jobs = self.store(JOBS)
        self._groups = JobGroups(self) if with_groups else None
        self._pods = OwnedPods(self, self._jobs, self.store(PODS))
        self._tracked = self._pods.store.index(tracking_jobs)
        self._failures: dict[str, dict[int | None, tuple[int, float]]] = {}
        """By job and index, if indexes have limits: how many pods have failed, and since when so many."""

    async def reconcile(self, key: str) -> None:
        job = self._jobs.get(key)
        await self._let_go([pod for pod in self._tracked.of(key) if is_left_behind(pod, job)])
        if job is None or job.spec.get("managedBy", OURS) != OURS:
            self._failures.pop(key, None)
            return
        pods = await self._pods.claim(job)
        if job.is_terminating or ((verdict := verdict_on(job)) is not None and verdict.is_final):
            await self._let_go(pods)
            await self._forget(job)
            return
        group = "" if self._groups is None else await self._groups.ensure(job, pods)
        counts = Counts.of(job)
        failure: ApiError | None = None
        await self._let_go([pod for pod in pods if pod.uid in counts.uncounted])
        ended = [pod for pod in pods if has_ended(job, pod) and TRACKING in pod.metadata.finalizers]
        policy = FailurePolicy(job)
        ignored = [pod for pod in ended if pod.phase != "Succeeded" and policy.action(pod) == "Ignore"]
        await self._let_go(ignored)
        counts.fold(pod for pod in ended if pod not in ignored)
        counts.fail_indexes(pods, policy)
        active = [pod for pod in pods if pod.is_active]
        verdict = self._verdict(job, counts, len(active), policy.verdict(pods))
        if verdict is not None or job.spec.get("suspend"):
            await self._delete(job, active)
            active = []
        else:
            try:
                active += await self._keep_active(job, active, counts, pods, group)
            except ApiError as error:  # pods that have ended are counted, whether others can be made or not
                failure = error
        left = any(not pod.is_finished for pod in pods)
        terminating = sum(pod.is_terminating and not pod.is_finished for pod in pods)
        is_final = not left and not counts.uncounted
        await self._write(job, active, counts, verdict, terminating, is_final=is_final)
        if failure is not None:
            raise failure

    def _verdict(self, job: Plain, counts: Counts, active: int, failed: Verdict | None) -> Verdict | None:
        """What the job comes to, if that is clear; `failed` is what its failure policy says."""
        known = verdict_on(job) or failed
        if known is not None:
            return known
        limit = job.spec.get("backoffLimit", 6 if job.spec.get("backoffLimitPerIndex") is None else NO_LIMIT)
        if counts.failed_all > limit:
            return Verdict(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        deadline, started = job.spec.get("activeDeadlineSeconds"), job.status.get("startTime")
        if deadline is not None and started and not job.spec.get("suspend"):
            left = parse_time(started) + deadline - self.clock.now()
            if left <= 0:
                text = "Job was active longer than specified deadline"
                return Verdict(False, "DeadlineExceeded", text)
            self.queue.add_after(job.key, left)
        if (rule := match_success(job, counts.completed)) is not None:
            return Verdict(True, "SuccessPolicy", f"Matched rules at index {rule}")
        if job.spec.get("backoffLimitPerIndex") is not None and counts.lost:
            if len(counts.lost) > job.spec.get("maxFailedIndexes", NO_LIMIT):
                text = "Job has exceeded the specified maximal number of failed indexes"
                return Verdict(False, "MaxFailedIndexesExceeded", text)
            if len(counts.lost | counts.completed) >= job.spec["completions"]:
                return Verdict(False, "FailedIndexes", "Job has failed indexes")
        if counts.are_enough(active):
            return Verdict(True, "CompletionsReached", "Reached expected number of succeeded pods")
        return None

    async def _keep_active(
        self, job: Plain, active: list[PodView], counts: Counts, pods: list[PodView], group: str
    ) -> list[PodView]:
        """Makes and deletes pods so that as many as should be are at work; those that were made."""
        wanted = min(job.spec.get("parallelism", 1), counts.missing(len(active)))
        if len(active) > wanted:
            surplus = sorted(active, key=lambda pod: (pod.is_ready, bool(pod.node)))[: len(active) - wanted]
            await self._delete(job, surplus)
            for pod in surplus:
                active.remove(pod)
            return []
        if replaces_only_failed(job):
            wanted -= sum(pod.is_terminating and not pod.is_finished for pod in pods)
        per_index = job.spec.get("backoffLimitPerIndex") is not None
        if len(active) >= wanted or not (per_index or self._is_time(job, None, counts.failed_all)):
            return []
        free = self._free(job, pods, counts, min(wanted - len(active), MAX_CREATED))
        failures = counts.index_failures if per_index else {}
        return await one_then_all([partial(self._create, job, each, failures, group) for each in free])

    def _free(self, job: Plain, pods: list[PodView], counts: Counts, number: int) -> list[int | None]:
        if job.spec.get("completionMode") != "Indexed":
            return [None] * number
        busy = {int(pod.metadata.annotations.get(INDEX, "-1")) for pod in pods if not pod.is_finished}
        taken, per_index = busy | counts.completed | counts.lost, counts.index_failures
        free = (each for each in range(job.spec["completions"]) if each not in taken)
        if job.spec.get("backoffLimitPerIndex") is not None:
            free = (each for each in free if self._is_time(job, each, per_index.get(each, 0)))
        return [index for index, _ in zip(free, range(number), strict=False)]

    def _is_time(self, job: Plain, index: int | None, failures: int) -> bool:
        """After failures of a job, or of one of its indexes, the next pod waits, longer each time."""
        now, of_job = self.clock.now(), self._failures.setdefault(job.key, {})
        known, since = of_job.get(index, (0, now))
        if failures != known:
            since = now
            of_job[index] = (failures, since)
        if not failures:
            return True
        wait = min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 10), LONGEST_BACKOFF)
        if (left := since + wait - now) > 0:
            self.queue.add_after(job.key, left)
        return left <= 0

    async def _create(self, job: Plain, index: int | None, failures: dict[int, int], group: str) -> PodView:
        prefix = f"{job.name}-" if index is None else f"{job.name}-{index}-"
        pod = pod_from(job.spec["template"], JOBS, job, generateName=prefix)
        meta = pod["metadata"]
        meta["finalizers"] = [*meta.get("finalizers", ()), TRACKING]
        if index is not None:
            meta["annotations"] = {**meta.get("annotations", {}), INDEX: str(index)}
            if job.spec.get("backoffLimitPerIndex") is not None:
                meta["annotations"][INDEX_FAILURES] = str(failures.get(index, 0))
            meta["labels"] = {**meta.get("labels", {}), INDEX: str(index)}
            pod["spec"] = _with_index(pod["spec"], f"{job.name}-{index}")
        if group:
            pod["spec"] = {**pod["spec"], "schedulingGroup": {"podGroupName": group}}
        return await self._pods.create(job, pod)

    async def _delete(self, job: Plain, pods: list[PodView]) -> None:
        """Pods that we do not want any more are no failures."""
        await self._let_go(pods)
        await one_then_all([partial(self._pods.delete, job, pod) for pod in pods])

    async def _let_go(self, pods: list[PodView]) -> None:
        held = [pod for pod in pods if TRACKING in pod.metadata.finalizers]

        async def release(pod: PodView) -> None:
            others = [each for each in pod.metadata.finalizers if each != TRACKING]
            await self._pods.store.patch(pod, {"metadata": {"finalizers": others}})

        await one_then_all([partial(release, pod) for pod in held])

    async def _write(
        self,
        job: Plain,
        active: list[PodView],
        counts: Counts,
        verdict: Verdict | None,
        terminating: int,
        *,
        is_final: bool,
    ) -> None:
        at = self.clock.stamp()
        suspended = bool(job.spec.get("suspend"))
        conditions = job.status.get("conditions", [])
        was_suspended = any(each["type"] == "Suspended" and each["status"] == "True" for each in conditions)
        status: Json = {
            **counts.as_status(),
            "active": len(active),
            "terminating": terminating,
            "ready": sum(pod.is_ready for pod in active),
            "startTime": None if suspended else job.status.get("startTime") or at,
        }
        if suspended and verdict is None:
            conditions = with_condition(conditions, "Suspended", "True", "JobSuspended", "Job suspended", at)
        elif was_suspended:
            conditions = with_condition(conditions, "Suspended", "False", "JobResumed", "Job resumed", at)
        if verdict is not None:
            status["startTime"] = job.status.get("startTime") or at
            conditions = _with_verdict(conditions, verdict, at, is_final=is_final)
            if is_final and verdict.succeeded:
                status["completionTime"] = at
        status["conditions"] = conditions
        if differs(job.status, status):
            await self._jobs.patch_status(job, status)
        if suspended != was_suspended and verdict is None:
            said = ("Suspended", "Job suspended") if suspended else ("Resumed", "Job resumed")
            self.record(JOBS, job, *said)
        if verdict is not None and is_final and verdict.succeeded:
            self.record(JOBS, job, "Completed", "Job completed")
        elif verdict is not None and is_final:
            self.record(JOBS, job, verdict.reason, verdict.message, "Warning")

    async def _forget(self, job: Plain) -> None:
        ttl = job.spec.get("ttlSecondsAfterFinished")
        ended = [each for each in job.status.get("conditions", ()) if each["type"] in ("Complete", "Failed")]
        if ttl is None or job.is_terminating or not ended:
            return
        left = parse_time(ended[0]["lastTransitionTime"]) + ttl - self.clock.now()
        if left > 0:
            self.queue.add_after(job.key, left)
        else:
            await self._jobs.delete(job, propagation="Foreground")


def _with_verdict(conditions: list[Json], verdict: Verdict, at: str, *, is_final: bool) -> list[Json]:
    """First what the job comes to, and once its last pod has ended, that it has."""
    kinds = ("SuccessCriteriaMet", "Complete") if verdict.succeeded else ("FailureTarget", "Failed")
    for kind in kinds if is_final else kinds[:1]:
        conditions = with_condition(conditions, kind, "True", verdict.reason, verdict.message, at)
    return conditions


def _with_index(spec: Json, hostname: str) -> Json:
    """Lets containers read their completion index."""
    path = f"metadata.labels['{INDEX}']"
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    changed: Json = {"hostname": hostname}
    for group in ("containers", "initContainers"):
        if spec.get(group):
            changed[group] = [{**each, "env": [*(each.get("env") or ()), variable]} for each in spec[group]]
    return {**spec, **changed}


class Verdict(NamedTuple):
    succeeded: bool
    reason: str
    message: str
    is_final: bool = False


def verdict_on(job: Plain) -> Verdict | None:
    """What the conditions say already."""
    known = {each["type"]: each for each in job.status.get("conditions", ()) if each["status"] == "True"}
    for kind, succeeded, is_final in (
        ("Complete", True, True),
        ("Failed", False, True),
        ("SuccessCriteriaMet", True, False),
        ("FailureTarget", False, False),
    ):
        if kind in known:
            said = known[kind]
            return Verdict(succeeded, said.get("reason", ""), said.get("message", ""), is_final)
    return None


def replaces_only_failed(job: Plain) -> bool:
    """Whether a pod on its way out is replaced only once it has ended."""
    default = "TerminatingOrFailed" if job.spec.get("podFailurePolicy") is None else "Failed"
    return bool(job.spec.get("podReplacementPolicy", default) == "Failed")


def has_ended(job: Plain, pod: PodView) -> bool:
    return pod.is_finished or (pod.is_terminating and not replaces_only_failed(job))


def match_success(job: Plain, completed: set[int]) -> int | None:
    """The number of the first rule of the success policy that the completed indexes satisfy."""
    for number, rule in enumerate((job.spec.get("successPolicy") or {}).get("rules") or ()):
        wanted = indexes_of(rule["succeededIndexes"]) if rule.get("succeededIndexes") else None
        found = completed if wanted is None else completed & wanted
        least = rule.get("succeededCount") or (0 if wanted is None else len(wanted))
        if least and len(found) >= least:
            return number
    return None


class FailurePolicy:
    """What a job's podFailurePolicy says about pods that failed."""

    def __init__(self, job: Plain) -> None:
        self._rules: list[Json] = (job.spec.get("podFailurePolicy") or {}).get("rules") or []

    def action(self, pod: PodView) -> str:
        """FailJob, FailIndex, Ignore or Count; empty if no rule matches."""
        return next((rule["action"] for rule in self._rules if _cause(rule, pod)), "")

    def verdict(self, pods: Iterable[PodView]) -> Verdict | None:
        for pod in pods if self._rules else ():
            if pod.phase != "Failed":
                continue
            for number, rule in enumerate(self._rules):
                if cause := _cause(rule, pod):
                    if rule["action"] == "FailJob":
                        text = f"{cause} matching FailJob rule at index {number}"
                        return Verdict(False, "PodFailurePolicy", text)
                    break
        return None


def _cause(rule: Json, pod: PodView) -> str:
    """How a failed pod matches a rule, in words; empty if it does not."""
    codes: Json = rule.get("onExitCodes") or {}
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    for status in statuses if codes else ():
        ended = status.state.terminated
        if ended is None or ended.exit_code == 0 or codes.get("containerName") not in (None, status.name):
            continue
        if (ended.exit_code in codes["values"]) == (codes["operator"] == "In"):
            name = f"{pod.namespace}/{pod.name}"
            return f"Container {status.name} for pod {name} failed with exit code {ended.exit_code}"
    for pattern in rule.get("onPodConditions") or ():
        condition = pod.condition(pattern["type"])
        if condition is not None and condition.status == pattern.get("status", "True"):
            return f"Pod {pod.namespace}/{pod.name} has condition {pattern['type']}"
    return ""


class Counts(msgspec.Struct):
    """The job's pods: counted ones, and finished ones that are recorded by UID only."""

    wanted: int | None
    """Completions; None if one that succeeds is enough, and the others are left to end."""
    indexed: bool
    succeeded: int
    failed: int
    done: set[str]
    broken: set[str]
    completed: set[int]
    lost: set[int] = set()
    """Indexes that failed for good."""
    limit_per_index: int | None = None
    index_failures: dict[int, int] = {}
    """How often the pods of each index have failed, where that is limited."""

    @classmethod
    def of(cls, job: Plain) -> Counts:
        status, waiting = job.status, job.status.get("uncountedTerminatedPods") or {}
        return cls(
            job.spec.get("completions"),
            job.spec.get("completionMode") == "Indexed",
            status.get("succeeded", 0),
            status.get("failed", 0),
            set(waiting.get("succeeded") or ()),
            set(waiting.get("failed") or ()),
            indexes_of(status.get("completedIndexes", "")),
            indexes_of(status.get("failedIndexes", "")),
            job.spec.get("backoffLimitPerIndex"),
            {},
        )

    @property
    def uncounted(self) -> set[str]:
        return self.done | self.broken

    def fold(self, ended: Iterable[PodView]) -> None:
        """Counts what was written down, whose finalizers are gone, and writes down what ended since."""
        before = self.uncounted
        self.succeeded += 0 if self.indexed else len(self.done)
        self.failed += len(self.broken)
        self.done, self.broken = set(), set()
        for pod in ended:
            if pod.uid in before:
                continue
            if pod.phase != "Succeeded":  # one that was deleted before its end counts as a failure
                self.broken.add(pod.uid)
                continue
            self.done.add(pod.uid)
            if self.indexed:
                self.completed.add(int(pod.metadata.annotations.get(INDEX, "0")))
        if self.indexed:
            self.succeeded = len(self.completed)

    def fail_indexes(self, pods: Iterable[PodView], policy: FailurePolicy) -> None:
        if self.limit_per_index is None:
            return
        for pod in pods:
            if pod.phase != "Failed" or (action := policy.action(pod)) == "Ignore":
                continue
            index = int(pod.metadata.annotations.get(INDEX, "0"))
            failures = int(pod.metadata.annotations.get(INDEX_FAILURES, "0")) + 1
            self.index_failures[index] = max(self.index_failures.get(index, 0), failures)
            is_lost = failures > self.limit_per_index or action == "FailIndex"
            if is_lost and index not in self.completed:
                self.lost.add(index)

    @property
    def succeeded_all(self) -> int:
        return self.succeeded if self.indexed else self.succeeded + len(self.done)

    @property
    def failed_all(self) -> int:
        return self.failed + len(self.broken)

    def are_enough(self, active: int) -> bool:
        """Whether enough pods have succeeded: without a number, one must have, and the others must have
        ended."""
        if self.wanted is None:
            return bool(self.succeeded_all) and not active
        return self.succeeded_all >= self.wanted

    def missing(self, active: int) -> int:
        """How many pods may be at work, besides what their number is limited to."""
        if self.wanted is None:
            return active if self.succeeded_all else 2**31
        return max(self.wanted - self.succeeded_all - len(self.lost), 0)

    def as_status(self) -> Json:
        uncounted = {"succeeded": sorted(self.done) or None, "failed": sorted(self.broken) or None}
        found: Json = {
            "succeeded": self.succeeded,
            "failed": self.failed,
            "uncountedTerminatedPods": uncounted,
        }
        if self.indexed:
            found["completedIndexes"] = format_indexes(self.completed)
        if self.limit_per_index is not None:
            found["failedIndexes"] = format_indexes(self.lost)
        return found


def indexes_of(text: str) -> set[int]:
    """`1,3-5` as numbers. A status may be written by anyone who has the right to: its ranges are limited."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), MAX_INDEXES) + 1))
    return found


def format_indexes(indexes: set[int]) -> str:
    """Numbers as `1,3-5`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(
        str(low) if low == high else f"{low}{',' if high == low + 1 else '-'}{high}" for low, high in parts
    )
