"""The command line."""

import argparse
import sys
from pathlib import Path

from packrat.changes import changes
from packrat.errors import PackratError
from packrat.snapshots import Store

MESSAGE_WIDTH = 40


def main(words: list[str] | None = None) -> int:
    options = _parser().parse_args(words)
    store = Store(options.store)
    try:
        return options.command(store, options) or 0
    except (PackratError, OSError) as error:
        print(f"packrat: {error}", file=sys.stderr)
        return 2


def save(store: Store, options: argparse.Namespace) -> None:
    snapshot = store.save(options.folder, options.message)
    print(f"snapshot {snapshot.number}: {len(snapshot.files)} files")


def list_all(store: Store, options: argparse.Namespace) -> None:
    for snapshot in store.all():
        message = shortened(snapshot.message, MESSAGE_WIDTH)
        print(f"{snapshot.number:>4}  {snapshot.created}  {len(snapshot.files):>5} files  {message}".rstrip())


def show(store: Store, options: argparse.Namespace) -> None:
    for path, entry in store.read(options.snapshot).files.items():
        print(f"{'x' if entry.executable else '-'} {entry.size_bytes:>9} {path}")


def diff(store: Store, options: argparse.Namespace) -> None:
    for line in changes(store.read(options.before), store.read(options.after)):
        print(line)


def restore(store: Store, options: argparse.Namespace) -> None:
    store.restore(store.read(options.snapshot), options.target)


def prune(store: Store, options: argparse.Namespace) -> None:
    removed = store.prune(options.keep)
    print(f"removed {len(removed)} snapshots")


def verify(store: Store, options: argparse.Namespace) -> int:
    problems = store.problems()
    for line in problems:
        print(line)
    return 1 if problems else 0


def shortened(text: str, width: int) -> str:
    """The first line of a text, with an ellipsis if it is longer than `width`."""
    line = text.partition("\n")[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="packrat", description="Keeps snapshots of a folder.")
    parser.add_argument("--store", type=Path, default=Path(".packrat"), help="where snapshots are kept")
    commands = parser.add_subparsers(required=True)

    def command(name: str, function: object) -> argparse.ArgumentParser:
        added = commands.add_parser(name)
        added.set_defaults(command=function)
        return added

    saved = command("save", save)
    saved.add_argument("folder", type=Path)
    saved.add_argument("-m", "--message", default="")
    command("list", list_all)
    command("show", show).add_argument("snapshot")
    compared = command("diff", diff)
    compared.add_argument("before")
    compared.add_argument("after")
    restored = command("restore", restore)
    restored.add_argument("snapshot")
    restored.add_argument("target", type=Path)
    command("prune", prune).add_argument("--keep", type=int, required=True)
    command("verify", verify)
    return parser
