"""The protocol between kube-scheduler and an HTTP extender.

Names leave capitalised, as Go spells them, and are read in any case, as Go reads them. Pods and nodes are
passed on as the API server wrote them: an extender may read fields that no struct of ours holds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stowplan.api.meta import Object, decode
from stowplan.errors import InputError

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Message(msgspec.Struct, frozen=True, rename="pascal", forbid_unknown_fields=True, kw_only=True):
    """A part of the protocol. Strict decoding is fast; `read` falls back to a lenient one."""


class NodeList(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Whole nodes: unlike the messages around it, in the API's own spelling."""

    kind: str | UnsetType = UNSET
    api_version: str | UnsetType = UNSET
    metadata: Raw = Raw(b"{}")
    items: list[Raw] = []

    def names(self) -> list[str]:
        return [decode(Object, bytes(item)).name for item in self.items]


class ExtenderArgs(Message, frozen=True):
    """The request of filter and prioritize: whole nodes, or only names for an extender that caches nodes."""

    pod: Raw
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class ExtenderFilterResult(Message, frozen=True):
    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(Message, frozen=True, gc=False):
    """One line of prioritize's answer, which is a list of them."""

    host: str = ""
    score: Int64 = 0


class ExtenderBindingArgs(Message, frozen=True):
    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = ""


class ExtenderBindingResult(Message, frozen=True):
    error: str = ""


class Victims(Message, frozen=True):
    """The pods that would be evicted from a node, the most important first."""

    pods: list[Raw] = []
    num_pdb_violations: Int64 = msgspec.field(default=0, name="NumPDBViolations")


class MetaPod(Message, frozen=True):
    uid: str = msgspec.field(default="", name="UID")


class MetaVictims(Message, frozen=True):
    """Victims for an extender that knows the pods."""

    pods: list[MetaPod] = []
    num_pdb_violations: Int64 = msgspec.field(default=0, name="NumPDBViolations")


class ExtenderPreemptionArgs(Message, frozen=True):
    pod: Raw
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class ExtenderPreemptionResult(Message, frozen=True):
    node_name_to_meta_victims: dict[str, MetaVictims] = {}


T = TypeVar("T")


def read(kind: type[T], body: bytes) -> T:
    """A message from JSON: names in any case, unknown ones skipped, null as absent. Raises InputError."""
    decoder: msgspec.json.Decoder[T] = _decoder(kind)  # type: ignore[arg-type]
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError):  # msgspec's errors, UnicodeDecodeError, integers without end
        pass
    try:
        spelled = _respell(msgspec.inspect.type_info(kind), Raw(body))
        return decoder.decode(spelled)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise InputError(message, field=path.rstrip("`").removeprefix("$").lstrip(".")) from None
    except RecursionError:
        raise InputError("is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"is not JSON: {error}") from None


def wrap_int64(number: int) -> int:
    """As Go's int64 has it."""
    return (number + 2**63) % 2**64 - 2**63


def write(message: Message | list[HostPriority]) -> bytes:
    return msgspec.json.encode(message)


@lru_cache(maxsize=64)
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _respell(info: msgspec.inspect.Type, value: Raw) -> Raw:
    """The same JSON with every name of ours in our case; names of others and nulls are left out."""
    if isinstance(info, msgspec.inspect.UnionType):
        info = next(part for part in info.types if not isinstance(part, msgspec.inspect.NoneType))
    if bytes(value).strip() == b"null":
        return Raw(b"[]" if isinstance(info, msgspec.inspect.ListType) else b"{}")
    if isinstance(info, msgspec.inspect.StructType):
        fields = {field.encode_name.lower(): field for field in info.fields}
        named = [
            (fields.get(name.lower()), item) for name, item in _decoder(dict[str, Raw]).decode(value).items()
        ]
        kept = {
            field.encode_name: _respell(field.type, item)
            for field, item in named
            if field and bytes(item).strip() != b"null"
        }
        return Raw(msgspec.json.encode(kept))
    if isinstance(info, msgspec.inspect.DictType) and isinstance(info.value_type, msgspec.inspect.StructType):
        items = _decoder(dict[str, Raw]).decode(value).items()
        return Raw(msgspec.json.encode({key: _respell(info.value_type, item) for key, item in items}))
    if isinstance(info, msgspec.inspect.ListType) and isinstance(info.item_type, msgspec.inspect.StructType):
        listed = _decoder(list[Raw]).decode(value)
        return Raw(msgspec.json.encode([_respell(info.item_type, item) for item in listed]))
    return value
