"""Rules for names, labels and annotations, with the API's message for each."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import lru_cache, wraps

LABEL_FORM = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN_FORM = rf"{LABEL_FORM}(\.{LABEL_FORM})*"
DNS1035_FORM = "[a-z]([-a-z0-9]*[a-z0-9])?"
QUALIFIED_FORM = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
VALUE_FORM = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
CONFIG_KEY_FORM = "[-._a-zA-Z0-9]+"

_LABEL = re.compile(LABEL_FORM)
_SUBDOMAIN = re.compile(SUBDOMAIN_FORM)
_DNS1035 = re.compile(DNS1035_FORM)
_QUALIFIED = re.compile(QUALIFIED_FORM)
_VALUE = re.compile(VALUE_FORM)
_CONFIG_KEY = re.compile(CONFIG_KEY_FORM)

_ALNUM, _END = "alphanumeric characters", "an alphanumeric character"
_REGEX = "regex used for validation is"
SUBDOMAIN_WORDS = (
    f"a lowercase RFC 1123 subdomain must consist of lower case {_ALNUM}, '-' or '.', and must "
    f"start and end with {_END} (e.g. 'example.com', {_REGEX} '{SUBDOMAIN_FORM}')"
)
LABEL_WORDS = (
    f"a lowercase RFC 1123 label must consist of lower case {_ALNUM} or '-', and must start and end "
    f"with {_END} (e.g. 'my-name',  or '123-abc', {_REGEX} '{LABEL_FORM}')"
)
DNS1035_WORDS = (
    f"a DNS-1035 label must consist of lower case {_ALNUM} or '-', start with an alphabetic character, and "
    f"end with {_END} (e.g. 'my-name',  or 'abc-123', {_REGEX} '{DNS1035_FORM}')"
)
QUALIFIED_WORDS = (
    f"name part must consist of {_ALNUM}, '-', '_' or '.', and must start and end with "
    f"{_END} (e.g. 'MyName',  or 'my.name',  or '123-abc', {_REGEX} '{QUALIFIED_FORM}')"
)
CONFIG_KEY_WORDS = (
    f"a valid config key must consist of {_ALNUM}, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    f"or 'key-name', {_REGEX} '{CONFIG_KEY_FORM}')"
)
VALUE_WORDS = (
    f"a valid label must be an empty string or consist of {_ALNUM}, '-', '_' or '.', and must start and "
    f"end with {_END} (e.g. 'MyValue',  or 'my_value',  or '12345', {_REGEX} '{VALUE_FORM}')"
)

NameCheck = Callable[[str], tuple[str, ...]]
MAX_REMEMBERED = 512
"""Characters of texts that are cached, so that clients cannot fill the memory."""


def _cache_checks(count: int) -> Callable[[NameCheck], NameCheck]:
    def wrap(check: NameCheck) -> NameCheck:
        quickly = lru_cache(count)(check)
        return wraps(check)(lambda text: quickly(text) if len(text) <= MAX_REMEMBERED else check(text))

    return wrap


@_cache_checks(4096)
def subdomain_errors(name: str) -> tuple[str, ...]:
    return _check_name(name, 253, _SUBDOMAIN, SUBDOMAIN_WORDS)


def group_name_errors(name: str) -> tuple[str, ...]:
    """For names of pod groups and workloads, whose length has a message of its own."""
    return ("must be no more than 253 characters",) if len(name) > 253 else subdomain_errors(name)


@_cache_checks(4096)
def label_errors(name: str) -> tuple[str, ...]:
    return _check_name(name, 63, _LABEL, LABEL_WORDS)


@_cache_checks(4096)
def dns1035_errors(name: str) -> tuple[str, ...]:
    """For names that must begin with a letter."""
    return _check_name(name, 63, _DNS1035, DNS1035_WORDS)


def config_key_errors(key: str) -> tuple[str, ...]:
    """What is wrong with a key of a ConfigMap or Secret."""
    found = ["must be no more than 253 characters"] if len(key) > 253 else []
    found += [] if _CONFIG_KEY.fullmatch(key) else [CONFIG_KEY_WORDS]
    if key in (".", ".."):
        found.append(f"must not be '{key}'")
    elif key.startswith(".."):
        found.append("must not start with '..'")
    return tuple(found)


def path_segment_errors(name: str) -> tuple[str, ...]:
    """For kinds whose names may be any path segment."""
    if name in (".", ".."):
        return (f"may not be '{name}'",)
    return tuple(f"may not contain '{char}'" for char in ("/", "%") if char in name)


def address_errors(text: str) -> tuple[str, ...]:
    """For IP addresses, which must be written in the one form that everybody writes."""
    found = _address(text)
    if isinstance(found, str):
        return (found or "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",)
    return () if str(found) == text else (f'must be in canonical form ("{found}")',)


def cidr_errors(text: str) -> tuple[str, ...]:
    address, _, length = text.partition("/")
    found = _address(address)
    if isinstance(found, str) and found:
        return (found,)
    is_number = length.isascii() and length.isdecimal() and len(length) <= 3
    if isinstance(found, str) or not is_number or int(length) > found.max_prefixlen:
        return ("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",)
    network = ipaddress.ip_network((found, int(length)), strict=False)
    if network.network_address != found:
        return ("must not have bits set beyond the prefix length",)
    return () if str(network) == text else (f'must be in canonical form ("{network}")',)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | str:
    """An address, or what is wrong with it; an empty text if it is none at all."""
    if re.fullmatch(r"[0-9.]+", text) and re.search(r"(^|\.)0[0-9]", text):
        return "must not have leading 0s"
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return "must not be an IPv4-mapped IPv6 address"
    return "" if "%" in text else found


@_cache_checks(8192)
def label_key_errors(key: str) -> tuple[str, ...]:
    prefix, slash, name = key.rpartition("/")
    found: list[str] = []
    if key.count("/") > 1:
        return (
            f"a qualified name must consist of {_ALNUM}, '-', '_' or '.', and must start and end with "
            f"{_END} (e.g. 'MyName',  or 'my.name',  or '123-abc', {_REGEX} "
            f"'{QUALIFIED_FORM}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
        )
    if slash:
        found += ["prefix part must be non-empty"] if not prefix else []
        found += [f"prefix part {said}" for said in (subdomain_errors(prefix) if prefix else ())]
    if not name:
        found.append("name part must be non-empty")
    elif len(name) > 63:
        found.append("name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        found.append(QUALIFIED_WORDS)
    return tuple(found)


@_cache_checks(8192)
def label_value_errors(value: str) -> tuple[str, ...]:
    found = ["must be no more than 63 bytes"] if len(value) > 63 else []
    return tuple(found if _VALUE.fullmatch(value) else [*found, VALUE_WORDS])


def _check_name(name: str, limit: int, form: re.Pattern[str], words: str) -> tuple[str, ...]:
    found = [f"must be no more than {limit} bytes"] if len(name) > limit else []
    return tuple(found if form.fullmatch(name) else [*found, words])
