"""Evaluation: how often a policy solves a task set, and what a second policy changes, from session results alone.

Every session is in the denominator. One that failed through infrastructure, or that has no verdict, counts as not
solved and is also counted apart, so that a reader sees both what happened and how much of it was the agent's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field, FiniteFloat

from polar.credit.intervals import RESAMPLES, Estimate, mean_over_tasks, paired_difference, wilson_estimate
from polar.credit.pass_rates import pass_at_k, pass_hat_k
from polar.types import SessionResult, Stage, Strict


class EvalSettings(Strict):
    """What is measured."""

    ks: tuple[int, ...] = Field(default=(1,), min_length=1)
    """The k of pass@k and pass^k. A rate is over the tasks that have at least k sessions."""
    solved_at: FiniteFloat = 1.0
    """A session is solved if its reward is at least this."""
    seed: int = 0
    """Of the bootstrap."""
    resamples: int = Field(default=RESAMPLES, ge=100)


class Variant(Strict):
    """What was evaluated: one policy, through one harness, in one runtime."""

    policy: str = "policy"
    harness: str = ""
    runtime: str = ""


@dataclass(frozen=True)
class VariantResults:
    """The sessions of one variant."""

    variant: Variant
    results: Sequence[SessionResult]
    task_of: Mapping[str, str] = field(default_factory=dict[str, str])
    """`task_id` of a session to the name of its task in the set, where they differ. By it policies are paired."""


class TaskTally(Strict):
    """The sessions of one task."""

    task: str
    sessions: int
    solved: int
    infrastructure: int = 0
    """Sessions that failed through infrastructure."""
    unjudged: int = 0
    """Sessions without a reward for another reason, such as cancelled ones."""

    @property
    def rate(self) -> float:
        return self.solved / self.sessions


class PassRates(Strict):
    k: int
    tasks: int
    """Tasks with at least k sessions: those the rates are over."""
    pass_at: Estimate
    """pass@k: at least one of k sessions is solved."""
    pass_hat: Estimate
    """pass^k: all k sessions are solved."""


class VariantReport(Strict):
    variant: Variant
    sessions: int
    solved: int
    infrastructure: int
    unjudged: int
    of_all: Estimate
    """Solved by all sessions, as if they were independent."""
    of_judged: Estimate | None
    """Solved by the sessions that have a reward; None: there are none."""
    mean_reward: float | None
    """Over the sessions that have a reward."""
    mean_calls: float
    mean_sampled_tokens: float
    rates: tuple[PassRates, ...]
    tasks: tuple[TaskTally, ...]

    def at(self, k: int) -> PassRates | None:
        """None: no task has k sessions."""
        return next((rates for rates in self.rates if rates.k == k), None)


class PolicyDifference(Strict):
    """What a policy changes against the first one, by the tasks that both have."""

    base: Variant
    variant: Variant
    k: int
    tasks: int
    better: int
    """Tasks with a higher rate than before."""
    worse: int
    pass_at: Estimate
    """Of the difference in pass@k."""


class EvalReport(Strict):
    """The content of `eval.json`."""

    settings: EvalSettings
    variants: tuple[VariantReport, ...]
    differences: tuple[PolicyDifference, ...] = ()
    runs: dict[str, str] = {}
    """The stored run of each policy."""
    not_ended: dict[str, int] = {}
    """Of each policy whose evaluation broke off: its sessions that have no outcome, and so are in no rate."""


def evaluate(
    results: Sequence[SessionResult],
    settings: EvalSettings | None = None,
    variant: Variant | None = None,
) -> EvalReport:
    """The report of one policy.

    report = evaluate(results, EvalSettings(ks=(1, 4)))
    print(report.variants[0].at(1).pass_at)
    """
    return report_of([VariantResults(variant or Variant(), results)], settings)


def cancelled_by_client(result: SessionResult) -> bool:
    """Ctrl-C or `polar cancel` ended it, not the server and not an update of the policy. In an evaluation that
    broke off, such a session has no outcome: `polar run --resume` runs it again."""
    return result.stage is Stage.CANCELLED and not result.cancel_reason and not result.broken_off_stale


def report_of(variants: Sequence[VariantResults], settings: EvalSettings | None = None) -> EvalReport:
    """Variants that differ only in the policy are compared with the first such one. A variant without sessions is
    left out: it has no rate."""
    chosen = settings or EvalSettings()
    reports = tuple(_variant_report(each, chosen) for each in variants if each.results)
    return EvalReport(settings=chosen, variants=reports, differences=_differences(reports, chosen))


def _variant_report(of: VariantResults, settings: EvalSettings) -> VariantReport:
    results, tallies = of.results, _tallies(of, settings.solved_at)
    solved = sum(tally.solved for tally in tallies)
    rewards = [result.reward for result in results if result.reward is not None]
    return VariantReport(
        variant=of.variant,
        sessions=len(results),
        solved=solved,
        infrastructure=sum(tally.infrastructure for tally in tallies),
        unjudged=sum(tally.unjudged for tally in tallies),
        of_all=wilson_estimate(solved, len(results)),
        of_judged=wilson_estimate(solved, len(rewards)) if rewards else None,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        mean_calls=sum(result.statistics.calls for result in results) / len(results),
        mean_sampled_tokens=sum(result.statistics.sampled_tokens for result in results) / len(results),
        rates=tuple(rates for k in settings.ks if (rates := _rates(tallies, k, settings)) is not None),
        tasks=tallies,
    )


def _tallies(of: VariantResults, solved_at: float) -> tuple[TaskTally, ...]:
    by_task = defaultdict[str, list[SessionResult]](list)
    for result in of.results:
        by_task[of.task_of.get(result.task_id, result.task_id)].append(result)
    return tuple(
        TaskTally(
            task=task,
            sessions=len(results),
            solved=sum(result.reward is not None and result.reward >= solved_at for result in results),
            infrastructure=sum(result.failed_by_infrastructure for result in results),
            unjudged=sum(result.reward is None and not result.failed_by_infrastructure for result in results),
        )
        for task, results in sorted(by_task.items())
    )


def _rates(tallies: Sequence[TaskTally], k: int, settings: EvalSettings) -> PassRates | None:
    enough = [tally for tally in tallies if tally.sessions >= k]
    if not enough:
        return None
    once = [pass_at_k(tally.sessions, tally.solved, k) for tally in enough]
    always = [pass_hat_k(tally.sessions, tally.solved, k) for tally in enough]
    return PassRates(
        k=k,
        tasks=len(enough),
        pass_at=mean_over_tasks(once, settings.seed, settings.resamples),
        pass_hat=mean_over_tasks(always, settings.seed, settings.resamples),
    )


def _differences(reports: Sequence[VariantReport], settings: EvalSettings) -> tuple[PolicyDifference, ...]:
    found = list[PolicyDifference]()
    bases = dict[tuple[str, str], VariantReport]()
    for report in reports:
        base = bases.setdefault((report.variant.harness, report.variant.runtime), report)
        if base is not report:
            found += [each for k in settings.ks if (each := _difference(base, report, k, settings)) is not None]
    return tuple(found)


def _difference(
    base: VariantReport, report: VariantReport, k: int, settings: EvalSettings
) -> PolicyDifference | None:
    old, new = (
        {tally.task: pass_at_k(tally.sessions, tally.solved, k) for tally in of.tasks if tally.sessions >= k}
        for of in (base, report)
    )
    tasks = sorted(old.keys() & new.keys())
    if not tasks:
        return None
    before, after = [old[task] for task in tasks], [new[task] for task in tasks]
    return PolicyDifference(
        base=base.variant,
        variant=report.variant,
        k=k,
        tasks=len(tasks),
        better=sum(second > first for first, second in zip(before, after, strict=True)),
        worse=sum(second < first for first, second in zip(before, after, strict=True)),
        pass_at=paired_difference(before, after, settings.seed, settings.resamples),
    )
