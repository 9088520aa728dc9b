"""An evaluation's report on the terminal: rates with intervals, what was left out, what another policy changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from polar.cli.options import CommandForm
from polar.cli.output import console, counted, number, one_line, print_json, print_table, visible
from polar.cli.runs.eval_runs import REPORT, PolicyRun
from polar.cli.runs.progress import REASON_LENGTH
from polar.cli.runs.summary import left_out_of_mean
from polar.credit.intervals import Estimate
from polar.trainers.evaluation import EvalReport, PolicyDifference, Variant, VariantReport

SHOWN_REASONS = 5


def print_report(report: EvalReport, policies: Sequence[PolicyRun], polar: CommandForm, *, json: bool) -> None:
    if json:
        print_json(report.model_dump(mode="json"))
        return
    out = console()
    if not report.variants:
        out.print("no session has ended")
    else:
        _print_rates(report)
        if report.differences:
            out.print()
            _print_differences(report.differences)
        out.print()
        for line in (*_notes(report), *_no_reward(policies), *_infrastructure(policies, polar)):
            out.print(line, soft_wrap=True)
    for line in _runs(policies):
        out.print(line, soft_wrap=True)


def _no_reward(policies: Sequence[PolicyRun]) -> Iterator[str]:
    results = [result for policy in policies for _, result in policy.sessions]
    if reasons := left_out_of_mean(results):
        yield (
            f"{sum(reasons.values())} of {len(results)} sessions have no reward: {counted(reasons)}. They count "
            "as not solved, and are not in the mean reward"
        )


def _infrastructure(policies: Sequence[PolicyRun], polar: CommandForm) -> Iterator[str]:
    """Each reason once, the most frequent first, with a session to look at."""
    commands = defaultdict[str, list[str]](list)
    for policy in policies:
        for _, result in policy.sessions:
            if result.failure is not None and result.failed_by_infrastructure:
                reason = one_line(f"{result.failure.where}: {result.failure.message}", REASON_LENGTH)
                commands[reason].append(polar(f"show {result.session_id} --run {policy.paths.run_id}"))
    shown = sorted(commands.items(), key=lambda item: -len(item[1]))
    for reason, [first, *more] in shown[:SHOWN_REASONS]:
        yield f"{1 + len(more)} failed through infrastructure: {reason}. `{first}` shows {'one' if more else 'it'}"
    if len(shown) > SHOWN_REASONS:
        yield f"and {len(shown) - SHOWN_REASONS} more reasons of infrastructure failures"


def _runs(policies: Sequence[PolicyRun]) -> Iterator[str]:
    for policy in policies:
        if policy.not_ended:
            yield f"policy {visible(policy.name)}: {policy.not_ended} sessions have not ended and are in no rate"
        kept = f", report in {policy.paths.root / REPORT}" if (policy.paths.root / REPORT).exists() else ""
        yield f"policy {visible(policy.name)}: run {policy.paths.run_id}{kept}"


def _print_rates(report: EvalReport) -> None:
    ks = report.settings.ks
    columns = ["policy", "harness", "runtime", "#tasks", "#sessions", "#solved", "#infra", "#unjudged"]
    columns += [f"#{name}" for k in ks for name in ((f"pass@{k}", f"pass^{k}") if k > 1 else (f"pass@{k}",))]
    print_table([*columns, "#reward", "#calls"], [_row(each, ks) for each in report.variants])


def _row(each: VariantReport, ks: Sequence[int]) -> list[str]:
    counts = (len(each.tasks), each.sessions, each.solved, each.infrastructure, each.unjudged)
    rates = [cell for k in ks for cell in _cells(each, k)]
    means = (number(each.mean_reward, 2), number(each.mean_calls, 1))
    return [*_names(each.variant), *map(str, counts), *rates, *means]


def _cells(each: VariantReport, k: int) -> list[str]:
    rates = each.at(k)
    if rates is None:
        return ["-"] * (2 if k > 1 else 1)
    return [_rate(rates.pass_at), _rate(rates.pass_hat)] if k > 1 else [_rate(rates.pass_at)]


def _print_differences(differences: Sequence[PolicyDifference]) -> None:
    columns = ["change", "harness", "runtime", "rate", "#tasks", "#better", "#worse", "#difference"]
    rows = [
        [
            visible(f"{each.base.policy} -> {each.variant.policy}"),
            visible(each.variant.harness),
            visible(each.variant.runtime),
            f"pass@{each.k}",
            *map(str, (each.tasks, each.better, each.worse)),
            _rate(each.pass_at, sign="+"),
        ]
        for each in differences
    ]
    print_table(columns, rows)


def _notes(report: EvalReport) -> Iterator[str]:
    settings = report.settings
    estimates = [
        rate for each in report.variants for rates in each.rates for rate in (rates.pass_at, rates.pass_hat)
    ]
    estimates += [each.pass_at for each in report.differences]
    paired = ", paired by task" if report.differences else ""
    yield (
        f"solved: reward of at least {settings.solved_at:g}; every session that has ended counts. In brackets "
        f"95 % intervals: bootstrap over tasks{paired} (seed {settings.seed}, {settings.resamples} draws), "
        "because samples of one task are not independent"
    )
    if any(estimate.method != "bootstrap" for estimate in estimates):
        yield "*: all tasks have the same rate, so the interval is Wilson's (Newcombe's), each task as one sample"
    for each in report.variants:
        if each.infrastructure or each.unjudged:
            judged = (
                "none has a reward" if each.of_judged is None else f"{_shown(each.of_judged)} of the judged ones"
            )
            names = " ".join(_names(each.variant))
            yield f"{names}: solved {_shown(each.of_all)} of all sessions, {judged} (Wilson, as if independent)"
        yield from (
            f"{' '.join(_names(each.variant))}: pass@{rates.k} is over {rates.tasks} of {len(each.tasks)} tasks, "
            f"which have {rates.k} sessions"
            for rates in each.rates
            if rates.tasks < len(each.tasks)
        )


def _names(variant: Variant) -> list[str]:
    return [visible(name) for name in (variant.policy, variant.harness, variant.runtime)]


def _rate(estimate: Estimate, sign: str = "") -> str:
    """With a star where the interval is not the bootstrap's."""
    return _shown(estimate, sign) + (" " if estimate.method == "bootstrap" else "*")


def _shown(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.2f} [{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"
