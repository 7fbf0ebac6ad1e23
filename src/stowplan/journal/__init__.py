"""Recorded decisions: recent ones in memory within a budget, all of them on disk as Parquet."""

from stowplan.journal.decisions import Decisions
from stowplan.journal.record import Attempt, Outcome, Record

__all__ = ["Attempt", "Decisions", "Outcome", "Record"]
