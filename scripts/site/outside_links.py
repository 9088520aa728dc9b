"""Links from docs/ to other files of the repository: the files become pages of the site, and links lead there."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".json": "json"}
PREFIX = "repository"


def outside_pages(docs: Path) -> dict[str, str]:
    """The pages for every file that docs/ links to, and for those that these link to."""
    root, pages = docs.parent, dict[str, str]()
    todo = [(page.relative_to(root).as_posix(), page.read_text()) for page in docs.rglob("*.md")]
    while todo:
        path, text = todo.pop()
        for target, _ in LINK.findall(text):
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            uri = _uri(linked)
            if linked.startswith("docs/") or uri in pages or not (root / linked).exists():
                continue
            pages[uri] = _page(root / linked, linked)
            if linked.endswith(".md"):
                todo.append((linked, pages[uri]))
    return pages


def rewritten(markdown: str, uri: str, docs: Path) -> str:
    """The links of the page `uri` of the site, each to where its target is on the site."""
    home = "docs" if not uri.startswith(f"{PREFIX}/") else ""
    path = posixpath.join("docs", uri) if home else uri.removeprefix(f"{PREFIX}/")

    def link(match: re.Match[str]) -> str:
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        inside = linked.startswith("docs/")
        if (home and inside) or not (docs.parent / linked).exists():
            return match[0]
        target = linked.removeprefix("docs/") if inside else _uri(linked)
        return f"]({posixpath.relpath(target, posixpath.dirname(uri) or '.')}{match[2] or ''})"

    return LINK.sub(link, markdown)


def _uri(path: str) -> str:
    return f"{PREFIX}/{path}" if path.endswith(".md") else f"{PREFIX}/{path}.md"


def _page(file: Path, path: str) -> str:
    if file.is_dir():
        return f"# {path}\n\n" + "\n".join(f"- `{entry.name}`" for entry in sorted(file.iterdir()))
    text = file.read_text()
    if file.suffix == ".md":
        return text
    return f"# {path}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"
