"""`polar view`: sessions in a browser, as one file to send or served from a run on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import RunOption
from polar.cli.output import console

if TYPE_CHECKING:
    from polar.cli.runs.tokens import Spelling
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
    from polar.dashboard.session_page import session_page
    from polar.errors import PolarError
    from polar.runs.stored import load_session, runs_dir_of
    from polar.store.paths import write_whole

    if session is None:
        raise PolarError("--html writes one session: name it, as in `polar view SESSION --html page.html`")
    stored = load_session(runs_dir_of(ctx.obj), run, session)

    async def made() -> str:
        spell, note = await spelling_or_numbers(stored.run)
        return session_document(await session_page(stored.run, stored.session_id, spell, note))

    document = asyncio.run(made())
    try:
        write_whole(file, document.encode())
    except OSError as error:
        raise PolarError(f"cannot write {file}: {error.strerror}") from error
    console().print(f"{file}: session {stored.session_id}, {len(document.encode()) / 1e6:.2f} MB", soft_wrap=True)


async def spelling_or_numbers(run: RunPaths) -> tuple[Spelling, str]:
    """How tokens are spelled; without the model's vocabulary as numbers, with the reason."""
    from polar.cli.runs.tokens import spelling
    from polar.errors import PolarError

    renderer = run.read_record().config.model.spelling
    numbers = await spelling(None)
    if renderer is None:
        return numbers, "Tokens are shown as numbers: only the engine of this run can spell them."
    try:
        return await spelling(renderer), ""
    except PolarError as error:
        return numbers, f"Tokens are shown as numbers: {error}"


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
    spell, note = await spelling_or_numbers(run)
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
