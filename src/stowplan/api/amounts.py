"""Amounts of resources as people write them."""

from __future__ import annotations

_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_UNITS = (("Ei", 2**60), ("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def exact_text(resource: str, amount: int) -> str:
    """As `amount_text`, but never rounded: bytes that fill no unit are counted, too."""
    found = amount_text(resource, amount)
    for suffix, size in _UNITS:
        if found.endswith(suffix) and amount % size:
            return f"{amount} ({found})"
    return found


def amount_text(resource: str, amount: int) -> str:
    """cpu from thousandths, bytes in the largest unit they fill, to a tenth; anything else is a count."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource.startswith(_BYTES):
        for suffix, size in _UNITS:
            if abs(amount) >= size:
                return f"{amount / size:.1f}".removesuffix(".0") + suffix
    return str(amount)
