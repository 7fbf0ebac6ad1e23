"""Links to files of the repository outside docs/, which the site does not have; used by mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Show such a link as its text and path; a path that does not exist fails the build."""
    folder = Path(page.file.abs_src_path).parent

    def replace(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(DOCS):
            return found[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {found[2]}: no such file")
        path, text = target.relative_to(DOCS.parent), found[1]
        return f"`{path}`" if str(path).endswith(text.strip("`")) else f"{text} (`{path}`)"

    return LINK.sub(replace, markdown)
