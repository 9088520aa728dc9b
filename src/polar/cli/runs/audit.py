"""`polar audit`: proves a run's traces again from the files, and scores them with an engine on request."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption
from polar.cli.output import console, error_console, print_json, print_table, progress_bar, visible

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from rich.progress import Progress

    from polar.audit.rescoring import RescoredToken, RescoringLimits
    from polar.audit.run import SessionAudit
    from polar.config import Config
    from polar.engines.base import Scorer
    from polar.store.paths import RunPaths
    from polar.types import Finding

EXIT_FINDINGS = 1
SHOWN_FINDINGS = 50
CONTEXT_TOKENS = 24


def audit(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    run: Annotated[str | None, typer.Argument(help="A run's id, or the beginning of it; else the latest.")] = None,
    session: Annotated[
        list[str] | None, typer.Option(help="Only this session, by its id or the beginning of it.")
    ] = None,
    engine: Annotated[bool, typer.Option("--engine", help="Also score tokens with the engine.")] = False,
    config: Annotated[Path | None, typer.Option(help="A polar.toml for the engine, else the run's own.")] = None,
    positions: Annotated[int, typer.Option(min=0, help="Tokens to score in each trace; 0: all.")] = 64,
    max_mean: Annotated[float, typer.Option(min=0, help="Largest allowed mean of |captured - scored|.")] = 1e-3,
    max_abs: Annotated[float, typer.Option(min=0, help="Largest allowed |captured - scored| of a token.")] = 0.05,
    json: JsonOption = False,
) -> None:
    """Prove every trainable token of a run again, from its files.

    Reads the journal and the traces; with --engine it also scores the tokens in
    their contexts. Exit code 1 if anything is wrong.
    """
    from polar.audit.rescoring import RescoringLimits
    from polar.runs.stored import runs_dir_of
    from polar.store.paths import find_run

    paths = find_run(runs_dir_of(ctx.obj), run)
    plan = _Plan(session or [], config if engine else None, engine, positions, RescoringLimits(max_mean, max_abs))
    report = asyncio.run(_audit(paths, plan))
    print_json(report.as_json()) if json else report.print()
    if report.findings:
        raise typer.Exit(EXIT_FINDINGS)


@dataclass(frozen=True)
class _Plan:
    sessions: list[str]
    """Empty: all."""
    config: Path | None
    engine: bool
    positions: int
    limits: RescoringLimits


@dataclass(frozen=True)
class _Report:
    run_id: str
    audits: list[SessionAudit]
    run_findings: list[Finding]
    """About the run as a whole: sessions that are missing."""
    scored: list[RescoredToken] | None
    """None: without an engine."""
    score_findings: list[Finding]
    texts: list[str]
    """Each of the worst tokens with the text before it."""

    @property
    def findings(self) -> list[Finding]:
        of_sessions = [finding for audit in self.audits for finding in audit.findings]
        return of_sessions + self.run_findings + self.score_findings

    @property
    def proven(self) -> int:
        """Number of sessions with traces."""
        return sum(audit.certificate is not None for audit in self.audits)

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "ok": not self.findings,
            "proven": self.proven,
            "sessions": [
                {
                    "session_id": audit.session_id,
                    "note": audit.note,
                    "certificate": audit.certificate.model_dump(mode="json") if audit.certificate else None,
                    "findings": _plain(audit.findings),
                }
                for audit in self.audits
            ],
            "run_findings": _plain(self.run_findings),
            "scores": self._scores(),
            "score_findings": _plain(self.score_findings),
        }

    def _scores(self) -> dict[str, Any] | None:
        from polar.audit.rescoring import gaps_of

        if self.scored is None:
            return None
        summary = asdict(gaps_of(self.scored))
        for worst, text in zip(summary["worst"], self.texts, strict=True):
            worst["text"] = text
        return summary

    def print(self) -> None:
        columns = ["session", "#calls", "#traces", "#sampled", "#trainable", "#dropped", "#findings", "note"]
        print_table(columns, [_row(audit) for audit in self.audits], title=f"run {self.run_id}")
        out, found = console(), self._lines()
        if self.scored is not None:
            self._print_scores()
        if not found and not self.proven:
            out.print("\nnothing to prove: none of these sessions has traces", style="yellow")
            return
        if not found:
            out.print(
                "\nexact: every sampled token stands once, in the context it was sampled in "
                f"({self.proven} of {len(self.audits)} sessions have traces)"
            )
            return
        out.print(f"\n{len(found)} findings", style="red")
        for line in found[:SHOWN_FINDINGS]:
            out.print(f"  {visible(line)}", style="red")
        if len(found) > SHOWN_FINDINGS:
            out.print(f"  and {len(found) - SHOWN_FINDINGS} more; --json has them all", style="red")

    def _lines(self) -> list[str]:
        """The findings, those of a session with its id."""
        own = [f"session {audit.session_id}, {finding}" for audit in self.audits for finding in audit.findings]
        return own + [str(finding) for finding in (*self.run_findings, *self.score_findings)]

    def _print_scores(self) -> None:
        from polar.audit.rescoring import gaps_of

        out, gaps = console(), gaps_of(self.scored or [])
        if gaps.mean is None:
            out.print("\nno token was scored")
            return
        out.print(
            f"\n{gaps.tokens} tokens scored, |captured - scored|: "
            f"mean {gaps.mean:.3g}, p99 {gaps.p99:.3g}, max {gaps.max:.3g}"
        )
        rows = [
            (
                *map(str, (worst.session_id, worst.trace_index, worst.position)),
                *(f"{worst.captured:.5f}", f"{worst.scored:.5f}", f"{worst.gap:.2g}", visible(text, "⏎")),
            )
            for worst, text in zip(gaps.worst, self.texts, strict=True)
        ]
        columns = ["session", "#trace", "#position", "#captured", "#scored", "#gap", "in its context"]
        print_table(columns, rows, title="largest gaps")


def _plain(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding.model_dump(mode="json") for finding in findings]


def _row(audit: SessionAudit) -> tuple[str, ...]:
    made = audit.certificate
    names = ("calls", "traces", "sampled_tokens", "trainable_tokens", "dropped_tokens")
    counts = [str(getattr(made, name, "-")) for name in names]
    inexact = f"{made.inexact_traces} traces are marked as not exact" if made and made.inexact_traces else ""
    return (visible(audit.session_id), *counts, str(len(audit.findings)), visible(audit.note or inexact))


async def _audit(run: RunPaths, plan: _Plan) -> _Report:
    from polar import config as configuration
    from polar.audit.records import run_findings
    from polar.audit.rescoring import findings_of, gaps_of
    from polar.audit.run import audit_session
    from polar.runs.stored import chosen_session
    from polar.store.journal import Journal

    config = None
    if plan.engine:  # the one that sampled, unless the user names another
        config = configuration.load(plan.config) if plan.config else run.read_record().config
    with progress_bar(error_console()) as bar:
        async with _scorer(config, bar) as scorer, await Journal.open(run.journal, read_only=True) as journal:
            known = await journal.session_ids()
            chosen = [chosen_session(name, known, run.run_id) for name in plan.sessions] or known
            task = bar.add_task("proving", total=len(chosen))
            of_run = [] if plan.sessions else await run_findings(journal, run, run.read_record())
            audits: list[SessionAudit] = []
            scored: list[RescoredToken] = []
            for session_id in chosen:
                audit = await audit_session(journal, run, session_id)
                if scorer is not None:
                    scored += await _score(audit, scorer, plan.positions)
                audits.append(replace(audit, calls=(), trajectory=None))
                bar.advance(task)
    if config is None:
        return _Report(run.run_id, audits, of_run, None, [], [])
    texts = await _texts(run, gaps_of(scored).worst)
    return _Report(run.run_id, audits, of_run, scored, findings_of(scored, plan.limits), texts)


@asynccontextmanager
async def _scorer(config: Config | None, bar: Progress) -> AsyncGenerator[Scorer | None]:
    """The engine, started; None without a config for it."""
    from polar import registry
    from polar.engines.base import Engine, Scorer
    from polar.errors import PolarError

    if config is None:
        yield None
        return
    engine: Engine = registry.make("engine", config.engine)
    if not isinstance(engine, Scorer):
        raise PolarError(f"engine {config.engine.name!r} cannot score tokens; name another with --config")
    starting = bar.add_task(f"starting {config.engine.name}", total=None)
    try:
        await engine.start()
        bar.remove_task(starting)
        yield engine
    finally:
        await engine.stop()


async def _score(audit: SessionAudit, scorer: Scorer, limit: int) -> list[RescoredToken]:
    """Leaves out traces that are marked as inexact: their context is known to differ."""
    from polar.audit.rescoring import positions_to_score, score_trace

    trajectory = audit.trajectory
    scored: list[RescoredToken] = []
    for index, trace in enumerate(trajectory.traces if trajectory else ()):
        if trajectory is not None and trace.context_exact:
            chosen = positions_to_score(trace, audit.calls, limit, f"{audit.session_id} {index}")
            scored += await score_trace(trajectory, index, chosen, scorer)
    return scored


async def _texts(run: RunPaths, worst: tuple[RescoredToken, ...]) -> list[str]:
    """For each token the text before it, and the token itself in brackets."""
    from polar.dashboard.spelling import spelling
    from polar.store.trajectories import read_trajectory

    if not worst:
        return []
    spell = await spelling(run.read_record().config.model.spelling)
    texts: list[str] = []
    for token in worst:
        trace = read_trajectory(run.session(token.session_id).traces).traces[token.trace_index]
        ids = trace.prompt_ids + trace.response_ids[: token.position + 1]
        texts.append(f"{spell(ids[-CONTEXT_TOKENS:-1])}⟦{spell(ids[-1:])}⟧")
    return texts
