"""Recorded decisions: recent ones in memory within a budget, all of them on disk as Parquet."""

from stowplan.journal.record import Attempt, Decisions, Outcome, Record

__all__ = ["Attempt", "Decisions", "Outcome", "Record"]
