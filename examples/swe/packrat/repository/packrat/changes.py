"""What differs between two snapshots."""

from collections.abc import Iterator

from packrat.snapshots import Snapshot


def changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """A line for each path, sorted by path."""
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        if old is None:
            yield f"+ {path}"
        elif new is None:
            yield f"- {path}"
        elif old != new:
            yield f"~ {path}"
