"""Fingerprints of the pods on a node, as exporters of NodeResourceTopology write them.

A fingerprint is the XXH64 of the sorted hashes of the pods; that of a pod is the XXH64 of its name, with that
of its namespace as the seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from stowplan.api.pod import Pod

VERSION = "pfp0v001"
_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def fingerprint(pods: Iterable[Pod]) -> str:
    hashes = sorted(_hash_pod(pod.namespace, pod.name) for pod in pods)
    return f"{VERSION}{xxh64(b''.join(each.to_bytes(8, 'little') for each in hashes)):016x}"


@lru_cache(maxsize=2**17)
def _hash_pod(namespace: str, name: str) -> int:
    return xxh64(name.encode(), xxh64(namespace.encode()))


def xxh64(data: bytes, seed: int = 0) -> int:
    """The 64-bit xxHash."""
    place, length = 0, len(data)
    if length >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while place + 32 <= length:
            for number in range(4):
                lanes[number] = _mix(lanes[number], data[place : place + 8])
                place += 8
        found = sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            found = (found ^ _mix(0, lane.to_bytes(8, "little"))) * _P1 + _P4 & _MASK
    else:
        found = seed + _P5
    found = found + length & _MASK
    while place + 8 <= length:
        found = _rotate(found ^ _mix(0, data[place : place + 8]), 27) * _P1 + _P4 & _MASK
        place += 8
    if place + 4 <= length:
        word = int.from_bytes(data[place : place + 4], "little")
        found = _rotate(found ^ (word * _P1 & _MASK), 23) * _P2 + _P3 & _MASK
        place += 4
    for byte in data[place:]:
        found = _rotate(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def _rotate(number: int, by: int) -> int:
    number &= _MASK
    return (number << by | number >> 64 - by) & _MASK


def _mix(lane: int, word: bytes) -> int:
    return _rotate(lane + int.from_bytes(word, "little") * _P2, 31) * _P1 & _MASK
