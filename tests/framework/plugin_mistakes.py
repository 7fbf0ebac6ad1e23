"""Ten mistakes that authors of plugins make, each in the line that ends with `mistake`.

`stowplan plugin check` reports all of them (test_plugin_command.py). mypy reports all but the misspelt name:
`make lint` fails if one of the `type: ignore` comments is not needed.
"""

from __future__ import annotations

from stowplan import CycleState, Node, NodeTable, Plugin, Pod, Status


class SwappedParameters(Plugin):
    def score(self, state: CycleState, node: Node, pod: Pod) -> int:  # type: ignore[override]  # mistake
        return len(node.labels)


class ScoreReturnsText(Plugin):
    def score(self, state: CycleState, pod: Pod, node: Node) -> str:  # type: ignore[override]  # mistake
        return "100"


class FilterReturnsBool(Plugin):
    def filter(self, state: CycleState, pod: Pod, node: Node) -> bool:  # type: ignore[override]  # mistake
        return True


class ReserveReturnsBool(Plugin):
    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> bool:  # type: ignore[override]  # mistake
        return True


class PreFilterReturnsList(Plugin):
    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> list[str]:  # type: ignore[override]  # mistake
        return ["node-1"]


class PermitWithoutNode(Plugin):
    def permit(self, state: CycleState, pod: Pod) -> Status | None:  # type: ignore[override]  # mistake
        return Status.wait(10)


class MisspeltFilter(Plugin):
    def filtre(self, state: CycleState, pod: Pod, node: Node) -> Status | None:  # mistake
        return None


class BindIsNotAsync(Plugin):
    def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:  # type: ignore[override]  # mistake
        return None


class FilterIsAsync(Plugin):
    async def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:  # type: ignore[override]  # mistake
        return None


class ArgsAreNoStruct(Plugin):
    args: dict[str, str]  # type: ignore[assignment]  # mistake

    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        return len(self.args)
