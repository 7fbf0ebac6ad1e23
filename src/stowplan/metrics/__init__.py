"""Metrics: `page` has counters and their text format, `scheduler` has kube-scheduler's metric families."""

from __future__ import annotations

from stowplan.metrics.page import CONTENT_TYPE, Numbers, Page, sample
from stowplan.metrics.scheduler import MILLISECONDS, HealthPath, Metrics

__all__ = ["CONTENT_TYPE", "MILLISECONDS", "HealthPath", "Metrics", "Numbers", "Page", "sample"]
