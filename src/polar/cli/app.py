"""The `polar` command: its options, its commands and its exit codes.

The modules of `cli/` that are imported here import nothing heavy at their top, so `polar --help` stays quick.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from polar import __version__
from polar.cli.cluster import cluster
from polar.cli.control.actions import actions
from polar.cli.control.cancel import cancel
from polar.cli.control.drain import drain
from polar.cli.control.events import events
from polar.cli.control.nodes import nodes
from polar.cli.control.pause import pause, resume
from polar.cli.control.token import token
from polar.cli.data.convert import convert
from polar.cli.data.export import export
from polar.cli.data.generate import generate
from polar.cli.data.tasks import tasks
from polar.cli.machine.doctor import doctor
from polar.cli.machine.gc import gc
from polar.cli.machine.harness import harness
from polar.cli.machine.image import image
from polar.cli.machine.rm import rm
from polar.cli.output import print_error
from polar.cli.project.demo import demo
from polar.cli.project.init import init
from polar.cli.runs.audit import audit
from polar.cli.runs.eval import evaluate
from polar.cli.runs.health import health
from polar.cli.runs.ls import ls
from polar.cli.runs.replay import replay
from polar.cli.runs.rescore import rescore
from polar.cli.runs.run import run
from polar.cli.service.gateway import gateway
from polar.cli.service.server import server
from polar.cli.service.submit import submit
from polar.cli.service.train import train
from polar.cli.service.up import up
from polar.cli.show.fetch import fetch
from polar.cli.show.show import show
from polar.cli.top.top import top
from polar.cli.view.view import view

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130
RUNS_DIR, CA = "--runs-dir", "--ca"


class PolarGroup(TyperGroup):
    """Ends a command that fails with an expected error with its message, not with a traceback. Takes `--runs-dir`
    and `--ca` before and after the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _for_all_first(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except typer.Exit:  # also raised by a help page, which should not pay for the import below
            raise
        except Exception as error:
            from polar.errors import PolarError, SessionError

            if not isinstance(error, PolarError | SessionError):
                raise
            print_error(str(error))
            raise typer.Exit(EXIT_REFUSED) from error


def _for_all_first(args: list[str]) -> list[str]:
    """The arguments with `--runs-dir` and `--ca` and their values in front of the command."""
    first: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in (RUNS_DIR, CA):
            value = next(words, None)
            first += [] if value is None else [word, value]
            rest += [word] if value is None else []
        else:
            (first if word.startswith((f"{RUNS_DIR}=", f"{CA}=")) else rest).append(word)
    return [*first, *rest]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polar {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=PolarGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement learning over unmodified agent harnesses.",
)


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    ctx: typer.Context,
    runs_dir: Annotated[
        Path | None,
        typer.Option(
            RUNS_DIR,
            help="Where runs are kept; also after a command.",
            show_default="polar.toml, else ./polar-runs",
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            CA,
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Trust the CAs of this file at a server of https://; also after a command.",
            show_default="POLAR_CA_FILE, else the system's",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    ctx.obj = runs_dir
    if ca is not None:
        from polar.tls import CA_VARIABLE

        os.environ[CA_VARIABLE] = str(ca.absolute())  # where clients and nodes look, also in child processes


app.command("demo")(demo)
app.command("init")(init)
app.command("run")(run)
app.command("eval")(evaluate)
app.command("ls")(ls)
app.command("show")(show)
app.command("fetch")(fetch)
app.command("rm")(rm)
app.command("view")(view)
app.command("replay")(replay)
app.command("audit")(audit)
app.command("rescore")(rescore)
app.command("health")(health)
app.command("export")(export)
app.command("generate")(generate)
app.command("doctor")(doctor)
app.command("gc")(gc)
app.command("submit")(submit)
app.command("cancel")(cancel)
app.command("nodes")(nodes)
app.command("pause")(pause)
app.command("resume")(resume)
app.command("drain")(drain)
app.command("events")(events)
app.command("actions")(actions)
app.command("top")(top)
app.command("server")(server)
app.command("gateway")(gateway)
app.command("up")(up)
app.command("train")(train)
app.add_typer(cluster, name="cluster")
app.add_typer(token, name="token")
app.add_typer(harness, name="harness")
app.add_typer(image, name="image")
tasks.command("convert")(convert)
app.add_typer(tasks, name="tasks")


def main() -> None:
    # Modules in the working directory can be named in tasks and in polar.toml. They come last on the path: none of
    # them can replace a module of Python or of a package.
    with suppress(FileNotFoundError):  # somebody removed it
        sys.path.append(os.getcwd())
    app(prog_name="polar")
