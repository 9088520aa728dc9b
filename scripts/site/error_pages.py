"""A page for every error that a user can meet: what happened, and what to do.

Which errors there are comes from the code: subclasses of `PolarError`, and the types that a `Failure` can have.
What to do stands in docs/errors.toml; a test finds an error without advice, and advice without an error.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "polar"
ADVICE = ROOT / "docs" / "errors.toml"
VERDICTS = ROOT / "docs" / "verdicts.md"
BASES = {"PolarError"}
UNADVISED = {"do": "The message names the fix."}
"""For an error that docs/errors.toml does not have yet: the site is built without its advice."""
FAILURE_TYPE = re.compile(
    r"\b(?:type|kind)=\"([A-Z]\w+)\"|^(?:DISK_FULL|NO_DESCRIPTORS) = \"(\w+)\"", re.MULTILINE
)


@dataclass(frozen=True)
class KnownError:
    name: str
    what: str
    """What happened: the docstring of its class, or what the table of verdicts says."""
    parents: tuple[str, ...] = ()


def known_errors() -> dict[str, KnownError]:
    """By name: classes of errors, then types of failures that have no class."""
    found = _classes()
    for name in sorted(_failure_types() - found.keys()):
        found[name] = KnownError(name, "")
    return dict(sorted(found.items()))


def error_pages() -> dict[str, str]:
    errors, verdicts = known_errors(), _verdicts()
    advice = dict.fromkeys(errors, UNADVISED) | tomllib.loads(ADVICE.read_text())
    pages = {f"errors/{name}.md": _page(error, advice[name], verdicts) for name, error in errors.items()}
    return {"errors/index.md": _index(errors, advice), **pages}


def _classes() -> dict[str, KnownError]:
    """All subclasses of `PolarError`, whichever module has them."""
    classes: dict[str, KnownError] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                what = " ".join((ast.get_docstring(node) or "").split())
                classes[node.name] = KnownError(node.name, what, bases)
    return {name: each for name, each in classes.items() if _is_ours(name, classes) and name not in BASES}


def _is_ours(name: str, classes: dict[str, KnownError]) -> bool:
    return name in BASES or any(_is_ours(base, classes) for base in getattr(classes.get(name), "parents", ()))


def _failure_types() -> set[str]:
    found = {
        name
        for path in PACKAGE.rglob("*.py")
        for pair in FAILURE_TYPE.findall(path.read_text())
        for name in pair
        if name
    }
    return found | _verdicts().keys()


def _verdicts() -> dict[str, tuple[str, str]]:
    """Of each type in the table of verdicts: who caused it, and when it is given."""
    rows = re.findall(r"^\| (`[A-Z].*?) \| (agent|infrastructure) \| (.*) \|$", VERDICTS.read_text(), re.MULTILINE)
    return {name: (cause, when) for names, cause, when in rows for name in re.findall(r"`(\w+)`", names)}


def _page(error: KnownError, advice: dict[str, str], verdicts: dict[str, tuple[str, str]]) -> str:
    what = advice.get("what") or error.what
    lines = [f"# {error.name}\n", f"**What happened.** {what}\n", f"**What to do.** {advice['do']}\n"]
    if error.name in verdicts:
        cause, when = verdicts[error.name]
        link = f"[{cause}](../verdicts.md)"
        lines.append(f"**On a result.** As `failure.type` it is caused by {link}: {when}.\n")
    if more := advice.get("page"):
        lines.append(f"More: [{more.partition('#')[0].removesuffix('.md')}](../{more})\n")
    return "\n".join(lines)


def _index(errors: dict[str, KnownError], advice: dict[str, dict[str, str]]) -> str:
    rows = [f"| [{name}]({name}.md) | {advice[name].get('what') or each.what} |" for name, each in errors.items()]
    head = (
        "# Errors\n\nA command that fails prints one message, which names the fix, and ends with exit code 2. A\n"
        "session that fails has a `failure` on its result, with the `type` that stands here; `polar\n"
        "show SESSION` prints it.\n"
    )
    return "\n".join([head, "| error | what happened |", "|---|---|", *rows, ""])
