"""What is special about each kind; `strategy_of` finds it by group and plural."""

from __future__ import annotations

from stowplan.apiserver.strategies.strategy import Strategy
from stowplan.apiserver.strategies.table import STRATEGIES

__all__ = ["Strategy", "strategy_of"]


def strategy_of(group: str, plural: str) -> Strategy:
    return STRATEGIES.get(f"{plural}.{group}" if group else plural) or Strategy()
