"""`polar view`: sessions in a browser, as one file to send or served from a run on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import RunOption
from polar.cli.output import console

if TYPE_CHECKING:
    from polar.dashboard.spelling import Spelling
    from polar.store.paths import RunPaths

HOST = "127.0.0.1"


def view(
    ctx: typer.Context,
    what: Annotated[
        str | None, typer.Argument(help="A run or a session, or the beginning of its id; else the latest run.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the session into this one HTML file.")] = None,
    run: RunOption = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where to serve; 0: a free port.")] = 0,
) -> None:
    """Look at sessions in a browser: calls, tokens and why they broke.

    Serves a run of this machine at 127.0.0.1 until Ctrl-C. With --html it
    writes one session into a file that needs no server and no network.
    """
    if html is not None:
        _write(ctx, what, run, html)
        return
    paths, session_id = _choose(ctx, what, run)
    asyncio.run(_serve(paths, session_id, port))


def _write(ctx: typer.Context, session: str | None, run: str | None, file: Path) -> None:
    from polar.dashboard.document import session_document
    from polar.dashboard.material import material_of_run
    from polar.dashboard.session_page import page_of
    from polar.errors import PolarError
    from polar.runs.stored import load_session, runs_dir_of
    from polar.store.paths import write_whole

    if session is None:
        raise PolarError("--html writes one session: name it, as in `polar view SESSION --html page.html`")
    stored = load_session(runs_dir_of(ctx.obj), run, session)

    async def made() -> str:
        spell, note = await _spelling_of(stored.run)
        material = await material_of_run(stored.run, stored.session_id)
        return session_document(page_of(material, spell, note))

    document = asyncio.run(made())
    try:
        write_whole(file, document.encode())
    except OSError as error:
        raise PolarError(f"cannot write {file}: {error.strerror}") from error
    console().print(f"{file}: session {stored.session_id}, {len(document.encode()) / 1e6:.2f} MB", soft_wrap=True)


async def _spelling_of(run: RunPaths) -> tuple[Spelling, str]:
    from polar.dashboard.spelling import spelling_or_numbers

    return await spelling_or_numbers(run.read_record().config.model.spelling)


def _choose(ctx: typer.Context, what: str | None, run: str | None) -> tuple[RunPaths, str | None]:
    """The run to serve, and the session to begin with. A run's folder is taken as well."""
    from polar.runs.stored import load_run, load_session, runs_dir_of
    from polar.store.paths import RunNotFound

    runs_dir = runs_dir_of(ctx.obj)
    if run is None:
        try:
            return load_run(what, runs_dir=runs_dir).paths, None
        except RunNotFound:
            if what is None:
                raise
    if what is None:
        return load_run(run, runs_dir=runs_dir).paths, None
    stored = load_session(runs_dir, run, what)
    return stored.run, stored.session_id


async def _serve(run: RunPaths, session_id: str | None, port: int) -> None:
    from polar.dashboard.site import RunSite
    from polar.errors import PolarError
    from polar.uvicorn_server import UvicornServer, address_of, listen

    try:
        listening = listen(HOST, port)
    except OSError as error:
        raise PolarError(f"cannot serve at port {port}: {error.strerror}; --port 0 takes a free one") from error
    spell, note = await _spelling_of(run)
    server = UvicornServer(RunSite(run, spell, note).app())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.until_started(serving)
        page = f"/session/{session_id}" if session_id else "/"
        console().print(f"run {run.run_id}: {address_of(listening)}{page}  (Ctrl-C ends)", soft_wrap=True)
        await serving
    finally:
        server.should_exit = True
        await serving
