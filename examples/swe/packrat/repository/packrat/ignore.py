"""Which files are not saved: the patterns of `.packignore`."""

import re
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = ".packignore"


@dataclass(frozen=True)
class Pattern:
    regex: re.Pattern[str]
    is_path: bool
    """Whether it is compared with the whole path; otherwise with the name."""
    only_folders: bool
    saves: bool
    """Whether it saves what an earlier pattern matched."""

    def matches(self, path: str, *, is_folder: bool) -> bool:
        if self.only_folders and not is_folder:
            return False
        return self.regex.fullmatch(path if self.is_path else path.rpartition("/")[2]) is not None


def read_patterns(folder: Path) -> list[Pattern]:
    path = folder / FILE_NAME
    if not path.is_file():
        return []
    lines = path.read_bytes().decode("utf-8-sig").splitlines()
    return [pattern_of(line) for line in lines if line.strip() and not line.startswith("#")]


def pattern_of(line: str) -> Pattern:
    saves = line.startswith("!")
    text = line.removeprefix("!")
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    is_path = "/" in text
    parts = re.split(r"(\*|\?)", text.lstrip("/"))
    wild = {"*": "[^/]*", "?": "[^/]"}
    regex = "".join(wild.get(part, re.escape(part)) for part in parts)
    return Pattern(re.compile(regex), is_path, only_folders, saves)


def is_ignored(path: str, patterns: list[Pattern], *, is_folder: bool) -> bool:
    """The last pattern that matches decides."""
    for pattern in reversed(patterns):
        if pattern.matches(path, is_folder=is_folder):
            return not pattern.saves
    return False
