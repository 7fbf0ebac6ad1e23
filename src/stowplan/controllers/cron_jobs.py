"""CronJobs: a Job at the times of a schedule, by the cluster's clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from stowplan.api.meta import Json, parse_time
from stowplan.client.errors import Conflict, NotFound
from stowplan.controllers.clock import wire_time
from stowplan.controllers.engine import Controller
from stowplan.controllers.jobs import verdict_on
from stowplan.controllers.kinds import CRON_JOBS, JOBS, Plain, reference_to
from stowplan.controllers.owned_pods import differs, owner_of
from stowplan.controllers.stores import Stores, owner_keys
from stowplan.errors import InputError

SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"
MAX_DAYS = 5 * 366
MAX_LOOKS = 100_000
TOO_MANY_MISSED = 100


class CronJobs(Controller):
    component = "cronjob-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._cron_jobs, self._jobs = self.store(CRON_JOBS), self.store(JOBS)
        self._owned = self._jobs.index(owner_keys)
        self._cron_jobs.listen_keys(self.queue.add)
        self._jobs.listen(self._on_job)

    def _on_job(self, old: Plain | None, new: Plain | None) -> None:
        item = new or old
        owner = item.metadata.controller() if item is not None else None
        if item is not None and owner is not None and owner.kind == CRON_JOBS.name:
            self.queue.add(f"{item.namespace}/{owner.name}")

    async def reconcile(self, key: str) -> None:
        item = self._cron_jobs.get(key)
        if item is None or item.is_terminating:
            return
        jobs = [job for job in self._owned.of(item.uid) if not job.is_terminating]
        finished = {job.uid: verdict for job in jobs if (verdict := verdict_on(job)) and verdict.is_final}
        status = self._status(
            item, jobs, set(finished), {uid for uid, each in finished.items() if each.succeeded}
        )
        await self._forget(item, [job for job in jobs if job.uid in finished])
        if not item.spec.get("suspend"):
            active = [job for job in jobs if job.uid not in finished]
            await self._start(item, active, status)
        if differs(item.status, status):
            await self._cron_jobs.patch_status(item, status)

    def _status(self, item: Plain, jobs: list[Plain], finished: set[str], succeeded: set[str]) -> Json:
        status: Json = {"lastScheduleTime": item.status.get("lastScheduleTime")}
        known = {each["uid"] for each in item.status.get("active") or ()}
        by_uid = {job.uid: job for job in jobs}
        for uid in known & finished:
            kind = "Complete" if uid in succeeded else "Failed"
            text = f"Saw completed job: {by_uid[uid].name}, condition: {kind}"
            self.record(CRON_JOBS, item, "SawCompletedJob", text)
        for uid in known - set(by_uid):
            name = next(each["name"] for each in item.status["active"] if each["uid"] == uid)
            self.record(CRON_JOBS, item, "MissingJob", f"Active job went missing: {name}")
        active = [job for job in jobs if job.uid not in finished]
        status["active"] = [reference_to(JOBS, job) for job in sorted(active, key=lambda job: job.name)]
        old = {each["uid"]: each for each in item.status.get("active") or ()}
        status["active"] = [old.get(each["uid"], each) for each in status["active"]]
        ends = [
            job.status["completionTime"]
            for job in jobs
            if job.uid in succeeded and "completionTime" in job.status
        ]
        last = item.status.get("lastSuccessfulTime")
        status["lastSuccessfulTime"] = max([*ends, *([last] if last else [])], default=None)
        return status

    async def _forget(self, item: Plain, finished: list[Plain]) -> None:
        for succeeded, field, default in (
            (True, "successfulJobsHistoryLimit", 3),
            (False, "failedJobsHistoryLimit", 1),
        ):
            limit = item.spec.get(field, default)
            jobs = [
                job for job in finished if (verdict := verdict_on(job)) and verdict.succeeded is succeeded
            ]
            jobs.sort(key=lambda job: (job.status.get("startTime") or "", job.name))
            for job in jobs[: max(len(jobs) - limit, 0)]:
                await self._delete(item, job)

    async def _delete(self, item: Plain, job: Plain) -> None:
        await self._jobs.delete(job, propagation="Background")
        self.record(CRON_JOBS, item, "SuccessfulDelete", f"Deleted job {job.name}")

    async def _start(self, item: Plain, active: list[Plain], status: Json) -> None:
        """Start the job that is due, if one is, and come back for the next."""
        try:
            schedule = parse(item.spec["schedule"], item.spec.get("timeZone") or "")
        except InputError as error:
            text = f"unparseable schedule: {item.spec['schedule']!r} : {error}"
            self.record(CRON_JOBS, item, "UnparseableSchedule", text, "Warning")
            return
        now = self.clock.now()
        created = parse_time(item.metadata.creation_timestamp or wire_time(now))
        last, deadline = item.status.get("lastScheduleTime"), item.spec.get("startingDeadlineSeconds")
        since = parse_time(last) if last else created
        if deadline is not None:
            since = max(since, now - deadline)
        due, missed = schedule.last(since, now)
        if (coming := schedule.next(now)) is not None:
            self.queue.add_after(item.key, coming - now + 0.1)
        if due is None:
            return
        if missed > TOO_MANY_MISSED:
            remedy = "Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            text = f"too many missed start times: {missed}. {remedy}"
            self.record(CRON_JOBS, item, "TooManyMissedTimes", text, "Warning")
        name = f"{item.name}-{int(due) // 60}"
        if any(job.name == name for job in self._owned.of(item.uid)):
            status["lastScheduleTime"] = wire_time(due)
            return
        policy = item.spec.get("concurrencyPolicy", "Allow")
        if active and policy == "Forbid":
            text = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self.record(CRON_JOBS, item, "JobAlreadyActive", text)
            return
        if policy == "Replace":
            for job in active:
                await self._delete(item, job)
            status["active"] = []
        made = await self._create(item, name, due, schedule.zone)
        if made is not None:
            status["active"] = [*status["active"], reference_to(JOBS, made)]
            status["lastScheduleTime"] = wire_time(due)

    async def _create(self, item: Plain, name: str, due: float, zone: tzinfo) -> Plain | None:
        template = item.spec["jobTemplate"]
        given = template.get("metadata") or {}
        at = datetime.fromtimestamp(due, zone).isoformat().replace("+00:00", "Z")
        body = {
            "metadata": {
                "name": name,
                "labels": given.get("labels") or {},
                "annotations": {**(given.get("annotations") or {}), SCHEDULED_AT: at},
                "ownerReferences": [owner_of(CRON_JOBS, item)],
            },
            "spec": template["spec"],
        }
        try:
            job = await self._jobs.create(item.namespace, body)
        except NotFound:
            return None  # the namespace is gone
        except Conflict:
            return await self._jobs.read(item.namespace, name)
        self.record(CRON_JOBS, item, "SuccessfulCreate", f"Created job {name}")
        return job


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_PART = re.compile(r"(\*|\?|\w+)(?:-(\w+))?(?:/(\d+))?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class Schedule(NamedTuple):
    """Minutes, hours, days, months and weekdays at which something is due; or a time between two runs."""

    fields: tuple[frozenset[int], ...]
    is_any_day: bool
    """Whether days of the month, or those of the week, are not restricted."""
    every: float
    zone: tzinfo

    def next(self, after: float) -> float | None:
        """The first time after this one; None if there is none within years."""
        if self.every:
            return after + self.every - after % 1
        minutes, hours, days, months, weekdays = self.fields
        at = datetime.fromtimestamp(after, self.zone).replace(second=0, microsecond=0) + timedelta(minutes=1)
        day = at.replace(hour=0, minute=0)
        for _ in range(MAX_DAYS):
            in_month, in_week = day.day in days, day.isoweekday() % 7 in weekdays
            is_day = (in_month and in_week) if self.is_any_day else (in_month or in_week)
            if day.month in months and is_day:
                for hour in sorted(hours):
                    for minute in sorted(minutes):
                        found = day.replace(hour=hour, minute=minute)
                        if found.timestamp() > after:
                            return found.timestamp()
            day += timedelta(days=1)
        return None

    def last(self, since: float, now: float) -> tuple[float | None, int]:
        """The last time after `since` that has come, and how many there were."""
        first = self.next(since)
        if first is None or first > now:
            return None, 0
        second = self.next(first)
        if second is None or second > now:
            return first, 1
        gap = second - first
        missed = int((now - first) // gap) + 1
        found, at = None, max(first - 1, now - 2 * gap - 60)
        for _ in range(MAX_LOOKS):
            coming = self.next(at)
            if coming is None or coming > now:
                break
            found = at = coming
        if found is None:  # times are irregular: look at all of them
            at, missed = first, 1
            while (coming := self.next(at)) is not None and coming <= now and missed < MAX_LOOKS:
                at, missed = coming, missed + 1
            found = at
        return found, missed


@lru_cache(maxsize=256)
def parse(text: str, zone: str = "") -> Schedule:
    """Read a schedule in the format of cron, with the nicknames that Kubernetes knows."""
    where = ZoneInfo(zone) if zone else UTC
    text = NICKNAMES.get(text.strip().lower(), text.strip())
    if text.startswith("@every "):
        parts = _DURATION.findall(text.removeprefix("@every "))
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if not parts:
            raise InputError(f"{text!r} has no duration: write @every 1h30m")
        return Schedule((), True, max(round(seconds), 1), where)
    fields = text.split()
    if len(fields) != 5:
        raise InputError(f"expected exactly 5 fields, found {len(fields)}: {fields}")
    limits = ((0, 59, ()), (0, 23, ()), (1, 31, ()), (1, 12, MONTHS), (0, 6, DAYS))
    found = tuple(_field(each, *limit) for each, limit in zip(fields, limits, strict=True))
    is_any_day = any(each[0] in "*?" for each in (fields[2], fields[4]))
    return Schedule(found, is_any_day, 0.0, where)


def _field(text: str, low: int, high: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        matched = _PART.fullmatch(part)
        if matched is None:
            raise InputError(f"failed to parse {part!r}")
        first, last, step = matched.groups()
        if first in ("*", "?"):
            start, end = low, high
        else:
            start = _number(first, low, names)
            end = _number(last, low, names) if last else high if step else start
        if not low <= start <= end <= high or step == "0":
            raise InputError(f"{part!r} is not within {low} to {high}")
        found.update(range(start, end + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, low: int, names: tuple[str, ...]) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + low
    if not text.isdecimal():
        raise InputError(f"failed to parse number {text!r}")
    return int(text)
