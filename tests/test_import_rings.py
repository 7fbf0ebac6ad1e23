"""No two modules import each other, directly or through others: a reader can start at the bottom."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

TYPE_ONLY = {
    ("stowplan.api.requests", "stowplan.api.pod"),
    ("stowplan.api.cel.macros", "stowplan.api.cel.compiler"),
    ("stowplan.cluster.node_table", "stowplan.cluster.live_nodes"),
    # The base class names what its methods are given, which in turn is built on plugins.
    ("stowplan.framework.plugin", "stowplan.framework.handle"),
    ("stowplan.framework.plugin", "stowplan.framework.state"),
    ("stowplan.framework.plugin", "stowplan.framework.decision"),
}
"""Imports under TYPE_CHECKING that close a ring; all but those of `plugin` are to be removed. Add none."""


@pytest.mark.parametrize("runtime_only", [True, False], ids=["when run", "with types"])
def test_imports_form_no_ring(runtime_only):
    graph = grimp.build_graph("stowplan", exclude_type_checking_imports=runtime_only, cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    if not runtime_only:
        for importer, imported in TYPE_ONLY:
            imports.get(importer, set()).discard(imported)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"import ring: {' <- '.join(error.args[1])}")
