"""The scheduling cycle: pure functions from a pod and the tables to a Decision."""

from stowplan.cycle.planner import Planner
from stowplan.cycle.schedule import first_by_name, schedule

__all__ = ["Planner", "first_by_name", "schedule"]
