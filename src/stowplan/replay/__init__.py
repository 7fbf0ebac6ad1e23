"""Traces of clusters, and what a configuration would have made of them."""

from stowplan.replay.engine import ReplayOptions, replay
from stowplan.replay.readers import read_trace
from stowplan.replay.results import Results
from stowplan.replay.trace import Event, Trace, write_trace

__all__ = ["Event", "ReplayOptions", "Results", "Trace", "read_trace", "replay", "write_trace"]
