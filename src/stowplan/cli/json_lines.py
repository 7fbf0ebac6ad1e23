"""Shared by commands that read one JSON object per line and answer each with another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from stowplan.api.kinds import object_of
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.errors import InputError
from stowplan.framework.registry import Registry

Case = dict[str, Any]


def answer_lines(what: str, answer: Callable[[Case], dict[str, Any]]) -> None:
    """Answer every line. Exit with status 1 in the end if one was not a JSON object."""
    is_readable = True
    for line in filter(str.strip, sys.stdin):
        try:
            case = json.loads(line)
            if not isinstance(case, dict):
                raise ValueError("it is not a JSON object")
        except ValueError as error:
            is_readable = False
            found: dict[str, Any] = {"name": None, "error": f"not {what}: {error}"}
        else:
            found = {"name": case.get("name"), **answer(case)}
        click.echo(json.dumps(found))
    sys.exit(0 if is_readable else 1)


def config_in(case: Case, registry: Registry) -> KubeSchedulerConfiguration | None:
    """The configuration of a case; its warnings are printed to standard error."""
    if not case.get("config"):
        return None
    config, warnings, _ = load(case["config"], registry)
    for warning in warnings:
        click.echo(f"{case.get('name')}: {warning}", err=True)
    return config


def objects_in(case: Case, field: str) -> list[Pod | Object]:
    """The objects of the list that affect scheduling."""
    listed = case.get(field) or ()
    found = (_object(data, f"{field}[{index}]") for index, data in enumerate(listed))
    return [item for item in found if item is not None]


def object_in(case: Case, field: str) -> Pod | Object | None:
    return None if case.get(field) is None else _object(case[field], field)


def _object(data: Any, field: str) -> Pod | Object | None:
    try:
        return object_of(data)
    except InputError as error:
        raise InputError(str(error), field=field) from None
