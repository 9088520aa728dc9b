"""Hooks of mkdocs: pages made from code, and links that lead out of docs/.

A page may link to a file of the repository. The site has no repository beside it, so such a file becomes a page.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from api_pages import api_page
from command_pages import command_page
from error_pages import error_pages
from outside_links import outside_pages, rewritten

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


def on_files(files: Files, config: Any) -> Files:
    made = {"index.md": (HERE / "index.md").read_text(), **error_pages(), **outside_pages(DOCS)}
    made |= {"reference/commands.md": command_page(), "reference/api.md": api_page()}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    return rewritten(markdown, page.file.src_uri, DOCS)
