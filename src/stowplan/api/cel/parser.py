"""The grammar of CEL: text in, a tree of nodes out. The compiler resolves names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from stowplan.api.cel.values import MAX_INT, MAX_UINT, MIN_INT, UInt
from stowplan.errors import CelError


class Literal(NamedTuple):
    value: Any


class Name(NamedTuple):
    name: str


class Select(NamedTuple):
    operand: Node
    field: str
    optional: bool = False


class Index(NamedTuple):
    operand: Node
    key: Node
    optional: bool = False


class Call(NamedTuple):
    """`name(arguments)`, or `target.name(arguments)`; operators are calls named by their sign."""

    name: str
    arguments: tuple[Node, ...]
    target: Node | None = None


class Item(NamedTuple):
    """An entry of a list or map literal; an optional one is left out if its value is missing."""

    value: Node
    key: Node | None = None
    optional: bool = False


class ListOf(NamedTuple):
    items: tuple[Item, ...]


class MapOf(NamedTuple):
    items: tuple[Item, ...]


Node: TypeAlias = Literal | Name | Select | Index | Call | ListOf | MapOf

MAX_LENGTH = 100_000
"""Characters of an expression. An API server takes 10,240 in a device selector."""
MAX_NESTING = 250
MAX_DEPTH = 600
"""Nodes on the way from the root of a tree to a leaf."""

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\n\f\r]+|//[^\n]*)
    | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<int>(?:0[xX][0-9a-fA-F]+|\d+)[uU]?)
    | (?P<string>(?P<bytes>[bB])?(?:
        (?P<raw>[rR])(?P<raw_quotes>\"\"\"|'''|"|')(?P<raw_body>(?:(?!(?P=raw_quotes)).)*)(?P=raw_quotes)
        |(?P<quotes>\"\"\"|'''|"|')(?P<body>(?:\\.|(?!(?P=quotes))[^\\])*)(?P=quotes)))
    | (?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    | (?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_PLAIN_ESCAPES = dict(zip("abfnrtv\\?\"'`", "\a\b\f\n\r\t\v\\?\"'`", strict=True))
_RESERVED = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
})  # fmt: skip
_CONSTANTS = {"true": True, "false": False, "null": None}
_LEVELS = {
    sign: level
    for level, signs in enumerate(("< <= >= > == != in", "+ -", "* / %"))
    for sign in signs.split()
}  # fmt: skip


class _Token(NamedTuple):
    kind: str
    text: str
    match: re.Match[str]


def parse(text: str) -> Node:
    """Parse an expression. CelError names the position of a syntax error."""
    return _Parser(text).whole()


def parse_with_places(text: str) -> tuple[Node, dict[int, int]]:
    """The same, and where in the text each node is, by the node's id."""
    parser = _Parser(text)
    return parser.whole(), parser.places


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise CelError(f"expression code point size exceeds limit: size: {len(text)}, limit {MAX_LENGTH}")
        self.tokens, self.position, self.depth = _tokens(text), 0, 0
        self.places: dict[int, int] = {}

    def whole(self) -> Node:
        node = self.expression()
        if self.position < len(self.tokens):
            raise self.unexpected()
        _check_depth(node)
        return node

    def expression(self) -> Node:
        """A ternary, or anything that binds more tightly."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise CelError(f"expression recursion limit exceeded: {MAX_NESTING}")
        node = self.either()
        if self.take("?"):
            chosen = self.either()
            self.expect(":")
            node = Call("?:", (node, chosen, self.expression()))
        self.depth -= 1
        return node

    def either(self) -> Node:
        return self.chain("||", self.both)

    def both(self) -> Node:
        return self.chain("&&", lambda: self.binary(0))

    def chain(self, sign: str, operand: Callable[[], Node]) -> Node:
        operands = [operand()]
        while self.take(sign):
            operands.append(operand())
        return _balance(sign, operands)

    def binary(self, lowest: int) -> Node:
        """Operators that bind at least as tightly as those of the level."""
        node = self.unary()
        while (level := _LEVELS.get(self.sign(), -1)) >= lowest:
            sign, place = self.sign(), self.position
            self.position += 1
            node = self.put(Call(sign, (node, self.binary(level + 1))), place)
        return node

    def put(self, node: Node, token: int) -> Node:
        """Note where a node is: at its operator, dot or opening bracket, as CEL's own messages say it."""
        self.places[id(node)] = self.tokens[token].match.start()
        return node

    def unary(self) -> Node:
        for sign in ("!", "-"):
            count = 0
            while self.take(sign):
                count += 1
            if count:
                return self.negate(sign, count)
        return self.member()

    def negate(self, sign: str, count: int) -> Node:
        kind, text = self.peek()
        if sign == "-" and kind == "int" and text[-1] not in "uU":
            # The smallest number has no positive counterpart, so the sign belongs to the literal.
            self.position += 1
            node: Node = self.selectors(Literal(_int(-_integer(text))))
            count -= 1
        else:
            node = self.member()
        return Call(f"{sign}_", (node,)) if count % 2 else node

    def member(self) -> Node:
        return self.selectors(self.primary())

    def selectors(self, node: Node) -> Node:
        while True:
            place = self.position
            if self.take("."):
                optional = self.take("?")
                kind, field = self.peek()
                if kind != "name":
                    raise self.unexpected()
                self.position += 1
                if not optional and self.take("("):
                    place = self.position - 1
                    node = self.put(Call(field, self.arguments(")"), node), place)
                else:
                    node = self.put(Select(node, field, optional), place)
            elif self.take("["):
                optional = self.take("?")
                node = self.put(Index(node, self.expression(), optional), place)
                self.expect("]")
            elif (name := qualified_name(node)) and self.take("{"):
                node = Call("{}", (Literal(name), MapOf(self.fields())))
            else:
                return node

    def fields(self) -> tuple[Item, ...]:
        """Parse the fields of a message, such as `Object{spec: …}`."""

        def field() -> Item:
            optional = self.take("?")
            kind, name = self.peek()
            if kind != "name":
                raise self.unexpected()
            self.position += 1
            self.expect(":")
            return Item(self.expression(), Literal(name), optional)

        return self.parse_list("}", field, trailing_comma=True)

    def primary(self) -> Node:
        if self.take("("):
            node = self.expression()
            self.expect(")")
            return node
        if self.take("["):
            return ListOf(self.items("]", keyed=False))
        if self.take("{"):
            return MapOf(self.items("}", keyed=True))
        self.take(".")  # a leading dot means the outermost scope, and here is no other
        kind, text = self.peek()
        if kind == "name" and text not in _CONSTANTS:
            if text in _RESERVED or text == "in":
                raise CelError(f"reserved identifier: {text}")
            place = self.position
            self.position += 1
            if self.take("("):
                return self.put(Call(text, self.arguments(")")), place + 1)
            return self.put(Name(text), place)
        if kind not in ("int", "float", "string", "name"):
            raise self.unexpected()
        self.position += 1
        return Literal(_literal(self.tokens[self.position - 1]))

    def arguments(self, end: str) -> tuple[Node, ...]:
        return self.parse_list(end, self.expression, trailing_comma=False)

    def items(self, end: str, *, keyed: bool) -> tuple[Item, ...]:
        def item() -> Item:
            optional = self.take("?")
            node = self.expression()
            if not keyed:
                return Item(node, optional=optional)
            self.expect(":")
            return Item(self.expression(), node, optional)

        return self.parse_list(end, item, trailing_comma=True)

    def parse_list(self, end: str, one: Callable[[], Any], *, trailing_comma: bool) -> tuple[Any, ...]:
        found: list[object] = []
        while not self.take(end):
            if found:
                self.expect(",")
                if trailing_comma and self.take(end):
                    break
            found.append(one())
        return tuple(found)

    def peek(self) -> tuple[str, str]:
        if self.position < len(self.tokens):
            token = self.tokens[self.position]
            return token.kind, token.text
        return "", ""

    def sign(self) -> str:
        kind, text = self.peek()
        return text if kind == "sign" or text == "in" else ""

    def take(self, sign: str) -> bool:
        found = self.peek() == ("sign", sign)
        self.position += found
        return found

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise self.unexpected(f", expected {sign!r}")

    def unexpected(self, hint: str = "") -> CelError:
        _, text = self.peek()
        if not text:
            return CelError(f"syntax error: unexpected end of expression{hint}")
        at = self.tokens[self.position].match.start() + 1
        return CelError(f"syntax error at character {at}: unexpected {text!r}{hint}")


def qualified_name(node: Node) -> str:
    """`a.b.c` as one name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.optional:
        parts.append(node.field)
        node = node.operand
    return ".".join([node.name, *reversed(parts)]) if isinstance(node, Name) else ""


def _check_depth(root: Node) -> None:
    """Chains such as `1 + 1 + …` make trees that are deep without nesting."""
    level: list[Any] = [root]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise CelError("max recursion depth exceeded")
        level = [part for node in level for part in _parts(node)]


def _parts(node: Node) -> Iterator[Node]:
    match node:
        case Select(operand):
            yield operand
        case Index(operand, key):
            yield operand
            yield key
        case Call(_, arguments, target):
            yield from arguments
            if target is not None:
                yield target
        case ListOf(items) | MapOf(items):
            for item in items:
                yield item.value
                if item.key is not None:
                    yield item.key


def _balance(sign: str, operands: list[Node]) -> Node:
    """A long row of alternatives as a tree that is not deep."""
    if len(operands) == 1:
        return operands[0]
    half = len(operands) // 2
    return Call(sign, (_balance(sign, operands[:half]), _balance(sign, operands[half:])))


def _tokens(text: str) -> list[_Token]:
    position, found = 0, []
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CelError(f"syntax error at character {position + 1}: unexpected {text[position]!r}")
        kind = next(
            name for name in ("space", "float", "int", "string", "name", "sign") if match[name] is not None
        )
        if kind != "space":
            found.append(_Token(kind, match[0], match))
        position = match.end()
    return found


def _literal(token: _Token) -> object:
    match token.kind:
        case "float":
            if math.isinf(number := float(token.text)):
                raise CelError("invalid double literal")
            return number
        case "int":
            whole = _integer(token.text)
            return _uint(whole) if token.text[-1] in "uU" else _int(whole)
        case "string":
            return _string(token.match)
    return _CONSTANTS[token.text]


def _integer(text: str) -> int:
    digits = text.rstrip("uU")
    is_hex = digits[:2] in ("0x", "0X")
    significant = (digits[2:] if is_hex else digits).lstrip("0") or "0"
    if len(significant) > 20:
        raise CelError(f"invalid int literal: {significant[:20]}... does not fit 64 bits")
    return int(significant, 16 if is_hex else 10)


def _int(number: int) -> int:
    if not MIN_INT <= number <= MAX_INT:
        raise CelError(f"invalid int literal: {number} does not fit 64 bits")
    return number


def _uint(number: int) -> UInt:
    if number > MAX_UINT:
        raise CelError(f"invalid uint literal: {number} does not fit 64 bits")
    return UInt(number)


def _string(match: re.Match[str]) -> str | bytes:
    is_raw = match["raw"] is not None
    quotes, body = (match["raw_quotes"], match["raw_body"]) if is_raw else (match["quotes"], match["body"])
    if len(quotes) == 1 and ("\n" in body or "\r" in body):
        raise CelError("syntax error: a line break in a string needs triple quotes")
    if match["bytes"]:
        return body.encode() if is_raw else _unescaped_bytes(body)
    return body if is_raw else _ESCAPE.sub(_character, body)


def _unescaped_bytes(body: str) -> bytes:
    found, position = bytearray(), 0
    for match in _ESCAPE.finditer(body):
        digits, octal = match[1], match[4]
        if match[2] or match[3]:
            raise CelError(f"syntax error: {match[0]} stands for a character, not for a byte")
        one = (
            bytes([int(digits, 16) if digits else int(octal, 8)])
            if digits or octal
            else _character(match).encode()
        )
        found += body[position : match.start()].encode() + one
        position = match.end()
    return bytes(found + body[position:].encode())


def _character(match: re.Match[str]) -> str:
    if plain := match[5]:
        if plain not in _PLAIN_ESCAPES:
            raise CelError(f"syntax error: unknown escape \\{plain}")
        return _PLAIN_ESCAPES[plain]
    code = int(match[4], 8) if match[4] else int(match[1] or match[2] or match[3], 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise CelError(f"syntax error: {match[0]} is no Unicode character")
    return chr(code)
