"""Builds the task set: git bundles, rows with the columns of SWE-bench, and Harbor folders.

python examples/swe/build.py examples/swe/build
python examples/swe/build.py OUT --split repository --held-out plume
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swe_bugs import OWNER, Bug, BugError, all_bugs, repositories
from swe_git import commit_of, git_of, patches_of, write_bundle
from swe_harbor import write_folder
from swe_rows import row_of

IMAGE = "polar-pytest"
ROW_FILES = ("rows.jsonl", "train.jsonl", "held_out.jsonl")
EVERY = 4
"""Of the bugs of a repository, `--split bug` holds out every fourth."""


def main(words: list[str] | None = None) -> None:
    options = _options(words)
    out: Path = options.out
    try:
        bugs = [bug for bug in all_bugs() if _is_wanted(bug, options)]
    except BugError as error:
        sys.exit(str(error))
    _remove_old(out)
    rows = [
        row for name in sorted({bug.repository.name for bug in bugs}) for row in _repository(name, bugs, options)
    ]
    _write(out / "rows.jsonl", rows)
    held_out = {bug.instance_id for bug in held_out_of(bugs, options.split, options.held_out)}
    if options.split:
        _write(out / "train.jsonl", (row for row in rows if row["instance_id"] not in held_out))
        _write(out / "held_out.jsonl", (row for row in rows if row["instance_id"] in held_out))
    print(f"{len(rows)} bugs in {out}" + (f", {len(held_out)} of them held out" if options.split else ""))
    if not _has_pytest(options.python):
        print(
            f"{options.python} has no pytest: tests run only where `python3` has it, or build with --python PATH"
        )


def _remove_old(out: Path) -> None:
    """What an earlier build left, of bugs that may have another name now."""
    for path in [*out.glob(f"harbor/{OWNER}__*"), *out.glob(f"repositories/{OWNER}__*"), *out.glob("*.jsonl")]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name.startswith(OWNER) or path.name in ROW_FILES:
            path.unlink()


def _has_pytest(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", "import pytest"], capture_output=True).returncode == 0
    except OSError:
        return False


def _repository(name: str, bugs: list[Bug], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Writes the bundle of a repository and the Harbor folders of its bugs; returns their rows."""
    out: Path = options.out
    of_it = {bug.name: bug for bug in bugs if bug.repository.name == name}
    with git_of(of_it) as repository:
        write_bundle(repository, out / "repositories" / f"{OWNER}__{name}.bundle", *of_it)
        rows = {
            branch: row_of(bug, commit_of(repository, branch), patches_of(repository, branch, bug), options.python)
            for branch, bug in of_it.items()
        }
    for branch, bug in of_it.items():
        write_folder(bug, rows[branch], out / "harbor" / bug.instance_id, options.image, options.python)
    return list(rows.values())


def held_out_of(bugs: list[Bug], split: str | None, names: list[str]) -> list[Bug]:
    """By repository: all bugs of those that are named, or else of the last one. By bug: every fourth of each."""
    if split == "repository":
        last = sorted({bug.repository.name for bug in bugs})[-1:]
        return [bug for bug in bugs if bug.repository.name in (names or last)]
    if split == "bug":
        names = sorted({bug.repository.name for bug in bugs})
        of_each = [[bug for bug in bugs if bug.repository.name == name] for name in names]
        return [bug for each in of_each for bug in each[EVERY - 1 :: EVERY]]
    return []


def _options(words: list[str] | None) -> argparse.Namespace:
    known = [repository.name for repository in repositories()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--repository", nargs="+", choices=known, help="only the bugs of these")
    parser.add_argument("--split", choices=("repository", "bug"), help="also write train.jsonl and held_out.jsonl")
    parser.add_argument("--held-out", nargs="+", default=[], choices=known, help="with --split repository")
    parser.add_argument("--image", default=IMAGE, help=f"of the Harbor folders ({IMAGE})")
    help_text = "runs the tests where `python3` has no pytest (this Python)"
    parser.add_argument("--python", default=sys.executable, help=help_text)
    options = parser.parse_args(words)
    if options.held_out and options.split != "repository":
        parser.error("--held-out needs --split repository")
    return options


def _is_wanted(bug: Bug, options: argparse.Namespace) -> bool:
    return not options.repository or bug.repository.name in options.repository


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
