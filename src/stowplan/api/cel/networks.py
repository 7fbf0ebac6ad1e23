"""What Kubernetes adds to CEL for networks: IP addresses, CIDRs and URLs."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from stowplan.api.cel.overloads import Meter, define, define_on_text
from stowplan.api.cel.values import OPAQUE, TYPE_NAMES, format_value
from stowplan.errors import CelError


class IP(NamedTuple):
    address: IPv4Address | IPv6Address

    @classmethod
    def of(cls, text: str) -> IP:
        try:
            if len(text) > 45 or "%" in text or not text.isascii():
                raise ValueError
            address = ip_address(text)
        except ValueError:
            raise CelError(
                f'IP Address "{format_value(text)}" parse error during conversion from string'
            ) from None
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            raise CelError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
        return cls(address)

    def is_in(self, *blocks: tuple[int, str, int]) -> bool:
        """Whether the address is in one of the blocks: version, first address, length of the prefix."""
        return any(
            version == self.address.version and Cidr(IP(ip_address(first)), length).includes(self)
            for version, first, length in blocks
        )


class Cidr(NamedTuple):
    ip: IP
    length: int

    @classmethod
    def of(cls, text: str) -> Cidr:
        address, slash, length = text.rpartition("/") if len(text) < 50 else ("", "", "")
        ip = IP.of(address) if slash else None
        if (
            ip is None
            or not re.fullmatch("0|[1-9][0-9]{0,2}", length)
            or int(length) > ip.address.max_prefixlen
        ):
            raise CelError(
                f'network address parse error during conversion from string: "{format_value(text)}"'
            )
        return cls(ip, int(length))

    def includes(self, other: IP) -> bool:
        mine, its = self.ip.address, other.address
        hidden = mine.max_prefixlen - self.length
        return mine.version == its.version and int(mine) >> hidden == int(its) >> hidden

    def masked(self) -> Cidr:
        address = self.ip.address
        hidden = address.max_prefixlen - self.length
        return Cidr(IP(type(address)(int(address) >> hidden << hidden)), self.length)


LOOPBACK = ((4, "127.0.0.0", 8), (6, "::1", 128))
LINK_LOCAL_UNICAST = ((4, "169.254.0.0", 16), (6, "fe80::", 10))
MULTICAST = ((4, "224.0.0.0", 4), (6, "ff00::", 8))
UNSPECIFIED = ((4, "0.0.0.0", 32), (6, "::", 128))
BROADCAST = ((4, "255.255.255.255", 32),)


def _is_link_local_multicast(ip: IP) -> bool:
    if isinstance(ip.address, IPv6Address):
        first, second = ip.address.packed[:2]
        return first == 0xFF and second & 0x0F == 0x02
    return ip.is_in((4, "224.0.0.0", 24))


def define_addresses() -> None:
    define("ip", str, result=IP, function=IP.of)
    define("isIP", str, result=bool, function=is_ip)
    define("ip.isCanonical", str, result=bool, function=lambda text: str(IP.of(text).address) == text)
    define_on_text("string", IP, result=str, function=lambda ip: str(ip.address))
    define(".family", IP, result=int, function=lambda ip: ip.address.version)
    define(".isUnspecified", IP, result=bool, function=lambda ip: ip.is_in(*UNSPECIFIED))
    define(".isLoopback", IP, result=bool, function=lambda ip: ip.is_in(*LOOPBACK))
    define(".isLinkLocalMulticast", IP, result=bool, function=_is_link_local_multicast)
    define(".isLinkLocalUnicast", IP, result=bool, function=lambda ip: ip.is_in(*LINK_LOCAL_UNICAST))
    others = (*UNSPECIFIED, *LOOPBACK, *MULTICAST, *LINK_LOCAL_UNICAST, *BROADCAST)
    define(".isGlobalUnicast", IP, result=bool, function=lambda ip: not ip.is_in(*others))

    define("cidr", str, result=Cidr, function=Cidr.of)
    define("isCIDR", str, result=bool, function=is_cidr)
    define_on_text("string", Cidr, result=str, function=lambda cidr: f"{cidr.ip.address}/{cidr.length}")
    define(".containsIP", Cidr, IP, result=bool, function=Cidr.includes)
    define(".containsIP", Cidr, str, result=bool, function=lambda cidr, text: cidr.includes(IP.of(text)))
    define(".containsCIDR", Cidr, Cidr, result=bool, function=contains_cidr)
    define(
        ".containsCIDR",
        Cidr,
        str,
        result=bool,
        function=lambda left, text: contains_cidr(left, Cidr.of(text)),
    )
    define(".ip", Cidr, result=IP, function=lambda cidr: cidr.ip)
    define(".prefixLength", Cidr, result=int, function=lambda cidr: cidr.length)
    define(".masked", Cidr, result=Cidr, function=Cidr.masked)


def is_ip(text: str) -> bool:
    try:
        IP.of(text)
    except CelError:
        return False
    return True


def is_cidr(text: str) -> bool:
    try:
        Cidr.of(text)
    except CelError:
        return False
    return True


def contains_cidr(left: Cidr, right: Cidr) -> bool:
    return left.length <= right.length and left.includes(right.ip)


class Url(NamedTuple):
    """A URL in the parts that Kubernetes knows; two with equal parts are equal."""

    scheme: str
    opaque: str
    user: str
    host: str
    path: str
    query: str
    fragment: str

    @property
    def host_name(self) -> str:
        name, colon, port = self.host.rpartition(":")
        if not colon or "]" in port:
            name = self.host
        return name[1:-1] if name[:1] == "[" and name[-1:] == "]" else name

    @property
    def port(self) -> str:
        _, colon, port = self.host.rpartition(":")
        return "" if not colon or "]" in port else port

    @property
    def parameters(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for part in self.query.split("&"):
            if not part or ";" in part:
                continue
            name, _, value = part.partition("=")
            if not _BAD_ESCAPE.search(part):
                found.setdefault(_decode(name.replace("+", " ")), []).append(_decode(value.replace("+", " ")))
        return found


_SCHEME = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*:")
_BAD_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")
_BAD_IN_HOST = re.compile(r"[^A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"\x80-\U0010ffff]|%")
_BAD_IN_USER = re.compile(r"[^A-Za-z0-9\-._:~!$&'()*+,;=%@]")
_PATH = re.compile(r"[A-Za-z0-9\-_.~!$&'()*+,;=:@\[\]/%]*")
_PATH_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@")


def parse_url(text: str, *, is_request: bool = False) -> Url:
    """`is_request` requires an absolute URL or path, in which `#` is an ordinary character."""
    if not text:
        if is_request:
            raise CelError("empty url")
        return Url("", "", "", "", "", "", "")
    if any(char < " " or char == "\x7f" for char in text):
        raise CelError("net/url: invalid control character in URL")
    fragment = ""
    if not is_request:
        text, _, fragment = text.partition("#")
        _check_escapes(fragment)
    if text == "*":
        return Url("", "", "", "", "*", "", fragment)
    if text.startswith(":"):
        raise CelError("missing protocol scheme")
    match = _SCHEME.match(text)
    scheme = match[0][:-1].lower() if match else ""
    rest, _, query = (text[match.end() :] if match else text).partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, rest, "", "", "", query, fragment)
        if is_request:
            raise CelError("invalid URI for request")
        if ":" in rest.partition("/")[0]:
            raise CelError("first path segment in URL cannot contain colon")
    user = host = ""
    if rest.startswith("//") and (scheme or (not is_request and not rest.startswith("///"))):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        user, host = _authority(authority)
    _check_escapes(rest)
    return Url(scheme, "", user, host, _escape_path(rest), query, fragment)


def _authority(text: str) -> tuple[str, str]:
    user, at, host = text.rpartition("@")
    if at and (_BAD_IN_USER.search(user) or _BAD_ESCAPE.search(user)):
        raise CelError("net/url: invalid userinfo")
    if host.startswith("["):
        inside, bracket, port = host[1:].rpartition("]")
        if not bracket:
            raise CelError("missing ']' in host")
        address, _, zone = inside.partition("%25")
        if ":" not in address or not is_ip(address):
            raise CelError("invalid host")
        host = f"[{address}{f'%{_decode(zone)}' if zone else ''}]{port}"
        _check_port(port)
        return user, host
    _, colon, _ = host.partition(":")
    if colon:
        _check_port(host[host.index(":") :])
    if _BAD_IN_HOST.search(host):
        raise CelError("invalid character in host name")
    return user, host


def _check_port(text: str) -> None:
    if text and not re.fullmatch(":[0-9]*", text):
        raise CelError(f'invalid port "{format_value(text)}" after host')


def _check_escapes(text: str) -> None:
    if match := _BAD_ESCAPE.search(text):
        raise CelError(f'invalid URL escape "{text[match.start() : match.start() + 3]}"')


def _escape_path(path: str) -> str:
    """The path as it was written, if it may be written so."""
    if _PATH.fullmatch(path):
        return path
    return "".join(chr(byte) if byte in _PATH_SAFE else f"%{byte:02X}" for byte in unquote_to_bytes(path))


def _decode(text: str) -> str:
    return unquote_to_bytes(text).decode(errors="replace")


def to_url(text: str) -> Url:
    try:
        parse_url(text, is_request=True)
        return parse_url(text)
    except CelError as error:
        said = f'parse "{format_value(text)}": {error}'
        raise CelError(f"URL parse error during conversion from string: {said}") from None


def is_url(text: str) -> bool:
    try:
        parse_url(text, is_request=True)
    except CelError:
        return False
    return True


def parameters_of(meter: Meter, url: Url) -> dict[str, list[str]]:
    meter.charge_text(2 * len(url.query))
    return url.parameters


def define_urls() -> None:
    define_on_text("url", str, result=Url, function=to_url)
    define_on_text("isURL", str, result=bool, function=is_url)
    define(".getScheme", Url, result=str, function=lambda url: url.scheme)
    define(".getHost", Url, result=str, function=lambda url: url.host)
    define(".getHostname", Url, result=str, function=lambda url: url.host_name)
    define(".getPort", Url, result=str, function=lambda url: url.port)
    define(".getEscapedPath", Url, result=str, function=lambda url: url.path)
    define(".getQuery", Url, result=dict, function=parameters_of, is_metered=True)


TYPE_NAMES.update({IP: "net.IP", Cidr: "net.CIDR", Url: "kubernetes.URL"})
OPAQUE.update((IP, Cidr, Url))
define_addresses()
define_urls()
