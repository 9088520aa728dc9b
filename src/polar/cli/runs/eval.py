"""`polar eval`: how often a policy solves a task set, through which harness, and what another policy changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import JsonOption, SamplesOption, again, checked_config
from polar.cli.runs.eval_call import EvalCall

if TYPE_CHECKING:
    from polar.cli.runs.eval_runs import EvaluatedPolicies, PolicyRun
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
    those of `polar run`. After Ctrl-C the report is over the sessions that have
    ended, and the commands that run the rest are printed.

    The policy is the engine of the config: local weights, an inference server, or
    any endpoint of OpenAI's or Anthropic's API (engine `endpoint`).

        polar eval tasks.toml --samples 8 -k 1,8
        polar eval tasks.toml --config base.toml --against trained.toml
        polar eval --compare base=RUN trained=RUN
    """
    call = EvalCall(
        tasks=tuple(tasks),
        config=config,
        against=tuple(against or ()),
        harness=tuple(harness or ()),
        runtime=tuple(runtime or ()),
        samples=samples,
        k=k,
        solved_at=solved_at,
        seed=seed,
        server=server or None,
        server_is_given=_is_given(ctx, "server"),
    )
    _evaluate(call, ctx.obj, compare=compare, plot=plot, json=json)


def _is_given(ctx: typer.Context, option: str) -> bool:
    """Not by its environment variable."""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _evaluate(call: EvalCall, runs_dir: Path | None, *, compare: bool, plot: Path | None, json: bool) -> None:
    from polar.cli.runs.eval_report import print_report
    from polar.cli.runs.eval_runs import end_evaluation
    from polar.trainers.eval_plot import check_plot, write_plot

    if plot is not None:
        check_plot(plot)
    policies, settings = _compared(call, runs_dir) if compare else _run(call, runs_dir, quiet=json)
    report, polar = _report(policies.done, settings), again(runs_dir)
    if not compare:
        for policy in policies.done:
            policy.keep(report)
    print_report(report, policies.done, polar, json=json)
    if plot is not None:
        write_plot(report, plot)
    end_evaluation(policies, [] if compare else call.next_steps(policies.done, polar))


def _compared(call: EvalCall, runs_dir: Path | None) -> tuple[EvaluatedPolicies, EvalSettings]:
    from polar.cli.runs.eval_runs import EvaluatedPolicies, stored_policy
    from polar.errors import ConfigError

    given = {name: getattr(call, name) for name in ("config", "against", "harness", "runtime", "samples")}
    given["server"] = call.server_is_given
    if named := [f"--{name}" for name, value in given.items() if value]:
        raise ConfigError(f"--compare runs nothing, so {', '.join(named)} would have no effect; leave it out")
    policies = [stored_policy(each, runs_dir) for each in call.tasks]
    samples = [task.num_samples for policy in policies for task, _ in policy.sessions]
    return EvaluatedPolicies(policies), _settings(call, samples, "the most samples of a task in these runs")


def _run(call: EvalCall, runs_dir: Path | None, *, quiet: bool) -> tuple[EvaluatedPolicies, EvalSettings]:
    from polar.cli.runs.eval_runs import check_start, run_each
    from polar.errors import ConfigError

    if call.server is not None and (call.config is not None or call.against):
        where = (
            "" if call.server_is_given else f"POLAR_SERVER names the server {call.server}: unset it to run here; "
        )
        raise ConfigError(f"{where}the nodes of a server have their own config: leave --config and --against out")
    configs = {name: checked_config(file) for name, file in call.configs.items()}
    tasks = _tasks(call)
    settings = _settings(
        call, [task.num_samples for task in tasks], "the most samples of a task; --samples changes them"
    )
    for name, config in list(configs.items())[1:]:
        check_start(name, config, tasks, quiet=quiet)
    return run_each(configs, runs_dir, tasks, call.server, quiet=quiet), settings


def _tasks(call: EvalCall) -> Sequence[TaskRequest]:
    from polar.errors import ConfigError
    from polar.runs.running import tasks_of
    from polar.store.paths import new_run_id
    from polar.trainers.eval_plan import planned, read_spec, without_training

    if len(call.tasks) != 1:
        raise ConfigError("give one task file; --compare takes several stored runs")
    specs = [[read_spec(text) for text in each] for each in (call.harness, call.runtime)]
    tasks = without_training(tasks_of(call.tasks[0], call.samples))
    return planned(tasks, *specs, suffix="" if call.server is None else new_run_id())


def _settings(call: EvalCall, samples: Sequence[int], what_is_most: str) -> EvalSettings:
    """`samples`: of each task."""
    from math import isfinite

    from polar.errors import ConfigError
    from polar.trainers.evaluation import EvalSettings

    if not isfinite(call.solved_at):
        raise ConfigError(f"--solved-at {call.solved_at}: write a number, such as 0.5")
    most = max(samples, default=1)
    try:
        ks = sorted({int(each) for each in call.k.split(",")}) if call.k else sorted({1, min(samples, default=1)})
    except ValueError as error:
        raise ConfigError(f"-k {call.k}: write numbers, such as 1,4,8") from error
    if ks[0] < 1 or ks[-1] > most:
        raise ConfigError(f"-k {call.k}: each k is from 1 to {most}, {what_is_most}")
    return EvalSettings(ks=tuple(ks), solved_at=call.solved_at, seed=call.seed)


def _report(policies: list[PolicyRun], settings: EvalSettings) -> EvalReport:
    from polar.trainers.eval_plan import variants_of
    from polar.trainers.evaluation import report_of

    variants = [each for policy in policies for each in variants_of(policy.name, policy.sessions)]
    runs = {policy.name: policy.paths.run_id for policy in policies}
    not_ended = {policy.name: policy.not_ended for policy in policies if policy.not_ended}
    return report_of(variants, settings).model_copy(update={"runs": runs, "not_ended": not_ended})
