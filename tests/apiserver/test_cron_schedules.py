"""Schedules and time zones of CronJobs: rejected in the words that kube-apiserver was recorded with."""

from __future__ import annotations

from typing import Any

import pytest
from api_staging import Staged

CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
NO_ZONE = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"


def cron_job(**spec: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
    job = {"spec": {"template": {"spec": pod}}}
    return {"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": job, **spec}}


@pytest.mark.parametrize(
    "spec",
    [
        {"schedule": "@every 1ns"},
        {"schedule": "@every 1h"},
        {"schedule": "@daily"},
        {"schedule": "* * * JAN SUN"},
        {"schedule": "*/5 1-3,7 ? * mon-fri"},
        {"timeZone": "Europe/Berlin"},
    ],
)
async def test_what_can_come_to_pass(api: Staged, spec: dict[str, Any]) -> None:
    status, said = await api("POST", CRON_JOBS, cron_job(**spec))
    assert status == 201, said


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-999999999 * * * *", "end of range (999999999) above maximum (59): 1-999999999"),
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("@nope", "unrecognized descriptor: @nope"),
        ("TZ=UTC * * * * *", "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
    ],
)
async def test_a_schedule_that_never_comes(api: Staged, schedule: str, said: str) -> None:
    status, found = await api("POST", CRON_JOBS, cron_job(schedule=schedule))
    assert status == 422
    text = f'CronJob.batch "c" is invalid: spec.schedule: Invalid value: "{schedule}": {said}'
    assert found["message"] == text


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("../../etc/passwd", "unknown time zone ../../etc/passwd"),
        ("Nowhere/X", "unknown time zone Nowhere/X"),
        ("", "timeZone must be nil or non-empty string"),
        ("Local", NO_ZONE),
    ],
)
async def test_a_time_zone_that_is_nowhere(api: Staged, zone: str, said: str) -> None:
    status, found = await api("POST", CRON_JOBS, cron_job(timeZone=zone))
    assert status == 422
    assert found["message"] == f'CronJob.batch "c" is invalid: spec.timeZone: Invalid value: "{zone}": {said}'
