"""`polar view`: sessions in a browser, as one file to send or served from a run on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from polar.cli.options import RunOption, ServerOption
from polar.cli.output import console

if TYPE_CHECKING:
    from polar.dashboard.site import ViewerSite
    from polar.dashboard.spelling import Spelling
    from polar.runs.stored import StoredSession
    from polar.store.paths import RunPaths

HOST = "127.0.0.1"


class Comparison(NamedTuple):
    """What to set beside the session."""

    against: str | None
    """Another session; None: the same."""
    builder: str
    """Of the session's own traces; empty: the stored ones."""
    against_builder: str

    @property
    def wanted(self) -> bool:
        return any((self.against, self.builder, self.against_builder))

    def address(self, session_id: str, other_id: str) -> str:
        """Of the page within the site."""
        from urllib.parse import urlencode

        from polar.dashboard.site import BUILDERS
        from polar.errors import PolarError

        for builder in filter(None, (self.builder, self.against_builder)):
            if builder not in BUILDERS:
                why = f"served pages build with {', '.join(BUILDERS)}"
                raise PolarError(f"{why}; write a file with --html to use {builder!r}")
        left = {"left": session_id, "left_builder": self.builder}
        return "/compare?" + urlencode(left | {"right": other_id, "right_builder": self.against_builder})


def view(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    what: Annotated[
        str | None, typer.Argument(help="A run or a session, or the beginning of its id; else the latest run.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the session into this one HTML file.")] = None,
    against: Annotated[str | None, typer.Option(help="Another session, to show beside it.")] = None,
    builder: Annotated[str, typer.Option(help="Build its traces again with this builder.")] = "",
    against_builder: Annotated[str, typer.Option(help="The builder of the traces beside it.")] = "",
    run: RunOption = None,
    server: ServerOption = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where to serve; 0: a free port.")] = 0,
) -> None:
    """Look at sessions in a browser: calls, tokens and why they broke.

    Serves a run of this machine at 127.0.0.1 until Ctrl-C. With --html it
    writes one session into a file that needs no server and no network.
    With --server it shows a session of a rollout server, by its whole id.

        polar view word-0 --against word-1           # where they part
        polar view word-0 --against-builder tree     # other traces, same calls
    """
    comparison = Comparison(against, builder, against_builder)
    if server is not None and run is None:
        from polar.cli.view.server_view import view_at_server

        view_at_server(server, what, html, comparison, port)
        return
    if html is not None:
        _write(ctx, what, run, html, comparison)
        return
    paths, session_id = _choose(ctx, what, run)
    page = _page(ctx, run, paths, session_id, comparison)
    asyncio.run(_serve(paths, page, port))


def _write(ctx: typer.Context, session: str | None, run: str | None, file: Path, comparison: Comparison) -> None:
    from polar.errors import PolarError
    from polar.runs.stored import load_session, runs_dir_of

    if session is None:
        raise PolarError("--html writes one session: name it, as in `polar view SESSION --html page.html`")
    stored = load_session(runs_dir_of(ctx.obj), run, session)
    other = _other(ctx, run, stored, comparison) if comparison.wanted else None
    shown = " and ".join(dict.fromkeys(each.session_id for each in (stored, other) if each))
    write_document(file, asyncio.run(_document(stored, other, comparison)), shown)


def write_document(file: Path, document: str, sessions: str) -> None:
    from polar.errors import PolarError
    from polar.store.paths import write_whole

    content = document.encode()
    try:
        write_whole(file, content, private=False)
    except OSError as error:
        raise PolarError(f"cannot write {file}: {error.strerror}") from error
    console().print(f"{file}: session {sessions}, {len(content) / 1e6:.2f} MB", soft_wrap=True)


def _other(ctx: typer.Context, run: str | None, stored: StoredSession, comparison: Comparison) -> StoredSession:
    from polar.errors import PolarError
    from polar.runs.stored import load_session, runs_dir_of

    if comparison.against is None:
        return stored
    other = load_session(runs_dir_of(ctx.obj), run, comparison.against)
    if other.renderer != stored.renderer:
        raise PolarError(
            f"{stored.session_id} and {other.session_id} have different renderers, so the same id may be another "
            "token: their tokens cannot be compared"
        )
    return other


async def _document(stored: StoredSession, other: StoredSession | None, comparison: Comparison) -> str:
    from polar.dashboard.comparison import comparison_of
    from polar.dashboard.document import comparison_document, session_document
    from polar.dashboard.material import material_of_run, rebuilt
    from polar.dashboard.session_page import page_of

    spell, note = await _spelling_of(stored.run)
    material = await material_of_run(stored.run, stored.session_id)
    if other is None:
        return session_document(page_of(material, spell, note))
    beside = await material_of_run(other.run, other.session_id)
    sides = rebuilt(material, comparison.builder), rebuilt(beside, comparison.against_builder)
    return comparison_document(comparison_of(*sides, spell, note))


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


def _page(
    ctx: typer.Context, run: str | None, paths: RunPaths, session_id: str | None, comparison: Comparison
) -> str:
    """The address to begin with, within the site."""
    from polar.errors import PolarError
    from polar.runs.stored import load_run, runs_dir_of

    if not comparison.wanted:
        return f"/sessions/{session_id}" if session_id else "/"
    if session_id is None:
        raise PolarError("name the session to compare, as in `polar view SESSION --against OTHER`")
    other = session_id
    if comparison.against is not None:
        stored = load_run(paths.root, runs_dir=runs_dir_of(ctx.obj))
        other = stored[comparison.against].session_id
    return comparison.address(session_id, other)


async def _serve(run: RunPaths, page: str, port: int) -> None:
    from polar.dashboard.site import ViewerSite
    from polar.dashboard.source import RunSource

    spell, note = await _spelling_of(run)
    await serve(ViewerSite(RunSource(run), spell, note), f"run {run.run_id}", page, port)


async def serve(site: ViewerSite, name: str, page: str, port: int) -> None:
    """Until Ctrl-C. `page`: the address to begin with, within the site."""
    from polar.cli.view.new_addresses import at_enter
    from polar.dashboard.access import CodesRequired, OneTimeCodes
    from polar.errors import PolarError
    from polar.uvicorn_server import UvicornServer, address_of, listen

    try:
        listening = listen(HOST, port)
    except OSError as error:
        raise PolarError(f"cannot serve at port {port}: {error.strerror}; --port 0 takes a free one") from error
    codes = OneTimeCodes()
    server = UvicornServer(CodesRequired(site.app(), codes))
    serving = asyncio.create_task(server.serve(sockets=[listening]))

    def print_address(end: str = "") -> None:
        console().print(f"{name}: {address_of(listening)}{codes.address(page)}{end}", soft_wrap=True)

    try:
        await server.until_started(serving)
        with at_enter(print_address) as has_terminal:
            again = "Enter prints another, " if has_terminal else ""
            print_address(f"  (opens once; {again}Ctrl-C ends)")
            await serving
    finally:
        server.end()
        await serving
