"""`polar fetch`: copies what is kept of a session into a folder: its logs, artefacts, patch, calls and result."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import RunOption, ServerOption, SessionArgument
from polar.cli.output import visible

if TYPE_CHECKING:
    from polar.cli.show.shown_session import ShownSession
    from polar.store.paths import SessionPaths


def fetch(
    ctx: typer.Context,
    session: SessionArgument,
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    run: RunOption = None,
    server: ServerOption = None,
) -> None:
    """Copy the files of one session: logs, artefacts, patch, and session.json.

    session.json is what `polar show SESSION --json` prints. At a rollout server
    the files are there as far as the session's node uploaded them
    (node.upload_bytes); what is missing or cut is listed.

        polar fetch word-0 word-0-files --server http://127.0.0.1:8700
    """
    import orjson

    from polar.cli.show.session_json import session_json
    from polar.cli.show.show import load

    shown = load(ctx, session, run, server)
    _refuse_used(folder)
    _make(folder)
    missing = _copy(shown, folder)
    whole = orjson.dumps(session_json(shown, with_tokens=True), option=orjson.OPT_INDENT_2)
    (folder / "session.json").write_bytes(whole)
    count = sum(1 for path in folder.rglob("*") if path.is_file())
    typer.echo(f"{count} files of session {shown.session_id} are in {folder}")
    for line in missing:
        typer.echo(f"  {visible(line, newline=' ')}")


def _refuse_used(folder: Path) -> None:
    from polar.errors import PolarError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PolarError(f"{folder} is not an empty folder; choose another")


def _make(folder: Path) -> None:
    from polar.errors import PolarError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolarError(f"cannot create {folder}: {error.strerror}") from error


def _copy(session: ShownSession, folder: Path) -> tuple[str, ...]:
    """What is missing or incomplete, a line each."""
    from polar.cli.service.remote_sessions import ServerSession
    from polar.store.paths import SessionPaths
    from polar.store.session_files import write_files

    if not isinstance(session, ServerSession):
        _copy_stored(SessionPaths(session.folder), folder)
        return ()
    if session.result is None:
        return (f"no logs: they come with the result, and the session is in {session.lease.session.stage}",)
    return write_files(session.files, folder) if session.files else ("no logs: its node uploaded none",)


def _copy_stored(paths: SessionPaths, folder: Path) -> None:
    from polar.store.session_files import plain_files

    for path in plain_files(paths):
        target = folder / path.relative_to(paths.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target, follow_symlinks=False)
