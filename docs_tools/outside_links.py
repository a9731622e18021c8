"""Links from pages to files outside docs/ become names of these files.

In the repository `[tables](../experiments/results/x.md)` is a link; the site does not hold the
file and says where it is instead. A link to a file that is not there stops the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page's Markdown without links that leave docs/."""
    docs = Path(config.docs_dir)
    folder = docs.joinpath(page.file.src_uri).parent

    def name_file(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(docs):
            return found[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: {found[2]} does not exist.")
        path = target.relative_to(docs.parent).as_posix()
        text = found[1].strip("`")
        return f"`{path}`" if text in (path, target.name, target.stem) else f"{text} (`{path}`)"

    return _LINK.sub(name_file, markdown)
