"""`polar eval`: how often a policy solves a task set, through which harness, and what another policy changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption, SamplesOption, checked_config

if TYPE_CHECKING:
    from polar.cli.runs.eval_runs import PolicyRun
    from polar.config import Config
    from polar.trainers.evaluation import EvalReport, EvalSettings
    from polar.types import TaskRequest

RUNS_HELP = "A task file; with --compare stored runs, each as RUN or NAME=RUN."
SPEC_HELP = "instead of the task's own: NAME, or NAME:{...} with options as JSON; may be repeated."


def evaluate(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    tasks: Annotated[list[str], typer.Argument(help=RUNS_HELP, metavar="TASKS | RUN...")],
    config: Annotated[
        Path | None,
        typer.Option(help="A polar.toml; its name names the policy.", show_default="./polar.toml if any"),
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="A polar.toml of another policy to compare with; may be repeated.")
    ] = None,
    harness: Annotated[list[str] | None, typer.Option(help=f"A harness {SPEC_HELP}")] = None,
    runtime: Annotated[list[str] | None, typer.Option(help=f"A runtime {SPEC_HELP}")] = None,
    samples: SamplesOption = None,
    k: Annotated[
        str | None, typer.Option("-k", help="The k of pass@k, such as 1,4,8.", show_default="1 and the samples")
    ] = None,
    solved_at: Annotated[float, typer.Option(help="A session is solved if its reward is at least this.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the bootstrap, for the intervals.")] = 0,
    server: Annotated[
        str | None, typer.Option(envvar="POLAR_SERVER", help="Run the sessions at this rollout server.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare stored runs; nothing is run.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot: .png, .svg or .pdf.")] = None,
    json: JsonOption = False,
) -> None:
    """Measure how often a task set is solved, by policy, harness and runtime.

    Every session counts: one that failed through infrastructure is not solved,
    and is shown apart. Rates have 95 % intervals from a bootstrap over tasks. The
    sessions are kept as a run, with the report in its eval.json. Exit codes are
    those of `polar run`.
    """
    from polar.cli.runs.eval_report import print_report
    from polar.cli.runs.eval_runs import end_evaluation, stored_policy
    from polar.trainers.eval_plot import check_plot, write_plot

    if plot is not None:
        check_plot(plot)
    wanted = {"solved_at": solved_at, "seed": seed}
    if compare:
        _refuse_with_compare(config=config, against=against, harness=harness, runtime=runtime)
        policies = [stored_policy(each, ctx.obj) for each in tasks]
        settings = _settings(k, wanted, policies=policies)
    else:
        todo = _tasks(tasks, samples, harness or [], runtime or [], fresh=server is not None)
        settings = _settings(k, wanted, tasks=todo)
        policies = _run_policies(ctx.obj, _configs(config, against or [], server), todo, server, quiet=json)
    report = _report(policies, settings)
    if not compare:
        for policy in policies:
            policy.keep(report)
    print_report(report, policies, json=json)
    if plot is not None:
        write_plot(report, plot)
    end_evaluation(policies)


def _refuse_with_compare(**given: Any) -> None:
    from polar.errors import ConfigError

    if named := [f"--{name}" for name, value in given.items() if value]:
        raise ConfigError(f"--compare runs nothing, so {', '.join(named)} would have no effect; leave it out")


def _tasks(
    files: list[str], samples: int | None, harnesses: list[str], runtimes: list[str], *, fresh: bool
) -> Sequence[TaskRequest]:
    from polar.errors import ConfigError
    from polar.runs.running import tasks_of
    from polar.store.paths import new_run_id
    from polar.trainers.eval_plan import planned, read_spec

    if len(files) != 1:
        raise ConfigError("give one task file; --compare takes several stored runs")
    specs = [[read_spec(text) for text in each] for each in (harnesses, runtimes)]
    return planned(tasks_of(files[0], samples), *specs, suffix=new_run_id() if fresh else "")


def _configs(config: Path | None, against: list[Path], server: str | None) -> dict[str, Config]:
    """By the policy's name. The server's nodes have configs of their own."""
    from polar.errors import ConfigError

    if server is not None and (config is not None or against):
        raise ConfigError("the nodes of a server have their own config: leave --config and --against out")
    files = [config, *against]
    names = [file.stem if file is not None else "server" if server else "policy" for file in files]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two configs have the same name ({', '.join(names)}), which names the policy: rename one"
        )
    return {name: checked_config(file) for name, file in zip(names, files, strict=True)}


def _settings(
    k: str | None, wanted: dict[str, Any], *, tasks: Sequence[TaskRequest] | None = None, policies: Any = ()
) -> EvalSettings:
    from polar.errors import ConfigError
    from polar.trainers.evaluation import EvalSettings

    numbers = [task.num_samples for task in tasks or ()]
    numbers += [task.num_samples for policy in policies for task, _ in policy.sessions]
    fewest = min(numbers, default=1)
    try:
        ks = sorted({int(each) for each in k.split(",")}) if k else sorted({1, fewest})
    except ValueError as error:
        raise ConfigError(f"-k {k}: write numbers, such as 1,4,8") from error
    if ks[0] < 1 or ks[-1] > fewest:
        raise ConfigError(f"-k {k}: each k is from 1 to {fewest}, the samples of a task; --samples changes them")
    return EvalSettings(ks=tuple(ks), **wanted)


def _run_policies(
    runs_dir: Path | None,
    configs: dict[str, Config],
    tasks: Sequence[TaskRequest],
    server: str | None,
    *,
    quiet: bool,
) -> list[PolicyRun]:
    """One after the other; the user's interrupt ends them all."""
    from polar.cli.runs.eval_runs import run_at_server, run_here

    done: list[PolicyRun] = []
    for name, config in configs.items():
        folder = runs_dir or config.runs_dir
        if server is not None:
            done.append(run_at_server(name, config, folder, tasks, server, quiet=quiet))
        else:
            done.append(run_here(name, config, folder, tasks, quiet=quiet))
        if done[-1].interrupted:
            break
    return done


def _report(policies: list[PolicyRun], settings: EvalSettings) -> EvalReport:
    from polar.trainers.eval_plan import variants_of
    from polar.trainers.evaluation import report_of

    variants = [each for policy in policies for each in variants_of(policy.name, policy.sessions)]
    runs = {policy.name: policy.paths.run_id for policy in policies}
    return report_of(variants, settings).model_copy(update={"runs": runs})
