"""The `tests/` folder of a Harbor task: its files on the node, their digest, and what tested code did to them."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from polar.errors import EvaluatorError
from polar.evaluators.hardening.judges import with_last_line

SCRIPT = "test.sh"


class VerifierFile(msgspec.Struct, frozen=True):
    content: bytes
    executable: bool


class VerifierFiles(msgspec.Struct, frozen=True):
    """By path in the folder, as they are on the node."""

    files: dict[str, VerifierFile]

    @property
    def digest(self) -> str:
        total = hashlib.sha256()
        for path, file in sorted(self.files.items()):
            for part in (os.fsencode(path), file.content):
                total.update(len(part).to_bytes(8, "big") + part)
        return total.hexdigest()

    def mention(self, name: str) -> bool:
        return any(name.encode() in file.content for file in self.files.values())

    def scripts(self) -> dict[str, str]:
        """The Python files, each with a line that notes that it ran to its end."""
        texts = {path: _text(file.content) for path, file in self.files.items() if path.endswith(".py")}
        return {path: with_last_line(text) for path, text in texts.items() if text is not None}

    def sent(self) -> dict[str, VerifierFile]:
        """As the verifier gets them."""
        scripts = {path: text.encode() for path, text in self.scripts().items()}
        return {
            path: VerifierFile(scripts.get(path, file.content), file.executable or path == SCRIPT)
            for path, file in self.files.items()
        }

    def changed_in(self, folder: Path) -> list[str]:
        """Paths that are no longer as they were sent. New files, such as caches, are no change."""
        return [path for path, file in self.sent().items() if not _holds(folder / path, file.content)]


def read_verifier_files(folder: Path) -> VerifierFiles:
    """Raises `EvaluatorError` if the folder cannot be used."""
    if not (folder / SCRIPT).is_file():
        raise EvaluatorError(
            f"{folder} has no {SCRIPT}: a Harbor task folder has to be at the same path on every node"
        )
    found: dict[str, VerifierFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise EvaluatorError(f"{path} leads out of its folder: replace the link by a copy")
        if path.is_file() and "__pycache__" not in path.parts:
            executable = bool(path.stat().st_mode & stat.S_IXUSR)
            found[path.relative_to(folder).as_posix()] = VerifierFile(path.read_bytes(), executable)
    return VerifierFiles(found)


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == content
