"""Writes the data sets and the card of a generation from its journal. It can be done again at any time."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from polar.data.export.export import export
from polar.data.export.files import ExportFolder
from polar.data.export.plan import ExportedGroup, ExportPlan
from polar.runs.exported import exported_session
from polar.runs.generate.attempts import TaskAttempts
from polar.runs.generate.card import DataCard, SessionFacts, SplitTally, Spread, Tally, by_repository
from polar.runs.generate.duplicates import Duplicates
from polar.runs.generate.folder import CARD, PAGE
from polar.runs.generate.label import label_of_session
from polar.runs.generate.page import page_of
from polar.runs.generate.plan import GeneratedFormat, GeneratePlan
from polar.runs.generate.split import SIDES, Side, split_repositories
from polar.runs.stored import StoredRun, StoredSession
from polar.store.journal import Journal
from polar.store.paths import write_whole
from polar.types import SessionResult


class AcceptedSession(NamedTuple):
    session: StoredSession
    result: SessionResult
    """Under the ids of the task, wherever the session ran."""
    repository: str
    group: str


class _Written(NamedTuple):
    rows: int
    left_out: dict[str, int]


async def write_data(
    out: Path, run: StoredRun, accounts: Sequence[TaskAttempts], plan: GeneratePlan, command: str
) -> DataCard:
    """Replaces what an earlier run wrote."""
    accepted = accepted_sessions(run, accounts, plan)
    async with await Journal.open(run.paths.journal, read_only=True) as journal:
        facts, duplicates = await _survey(accepted, journal)
        fresh = [each for each in accepted if each.session.session_id in duplicates.fresh]
        sessions = Counter(each.repository for each in fresh)
        side_of = split_repositories(sessions, plan.split.test_share, plan.seed)
        about = {"run_id": run.run_id, "versions": run.record.versions, "command": command}
        writer = _DataWriter(out, journal, plan, frozenset(duplicates.repeated), about)
        splits: dict[str, SplitTally] = {}
        for side in SIDES:
            members = [each for each in fresh if side_of[each.repository] == side]
            written = {name: await writer.write(name, side, members) for name in plan.formats}
            splits[side] = _split_tally(members, len(fresh), written)
    card = DataCard(
        command=command,
        run_id=run.run_id,
        task_set=run.record.task_set,
        plan=plan.values(),
        complete=all(account.done for account in accounts),
        all=Tally.of(accounts),
        tasks_solved=sum(account.accepted > 0 for account in accounts),
        repositories=by_repository(accounts, side_of),
        splits=splits,
        repeated=dict(duplicates.reasons),
        turns=Spread.of(facts.turns),
        sampled_tokens=Spread.of(facts.sampled_tokens),
        tokens=Spread.of(facts.tokens),
        harnesses=facts.counted("harness"),
        models=facts.counted("model"),
        engines=facts.counted("engine"),
        polars=facts.counted("polar"),
        evaluators=facts.counted("evaluator"),
    )
    write_whole(
        out / CARD, orjson.dumps(card.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n", private=False
    )
    write_whole(out / PAGE, page_of(card).encode(), private=False)
    return card


def accepted_sessions(
    run: StoredRun, accounts: Sequence[TaskAttempts], plan: GeneratePlan
) -> list[AcceptedSession]:
    """In the order of tasks and attempts, however the sessions were interleaved."""
    place = {account.task_id: (number, account.repository) for number, account in enumerate(accounts)}
    found: list[tuple[int, int, AcceptedSession]] = []
    for session in run:
        label, result = label_of_session(session), session.result
        if label.task not in place or result is None or plan.outcome_of(result) != "accepted":
            continue
        number, repository = place[label.task]
        own = result.model_copy(update={"task_id": label.task, "index": label.index})
        found.append((number, label.index, AcceptedSession(session, own, repository, label.group)))
    return [accepted for _, _, accepted in sorted(found, key=lambda each: each[:2])]


async def _survey(accepted: Sequence[AcceptedSession], journal: Journal) -> tuple[SessionFacts, Duplicates]:
    """Reads every confirmed session once, one at a time."""
    facts, duplicates = SessionFacts(), Duplicates()
    for each in accepted:
        whole = await exported_session(each.session, each.result, journal, ExportPlan(to="sft"))
        duplicates.add(whole)
        traces = whole.trajectory.traces if whole.trajectory else ()
        tokens = sum(len(trace.prompt_ids) + len(trace.response_ids) for trace in traces)
        facts.add(whole.task, whole.result, tokens)
    return facts, duplicates


class _DataWriter:
    def __init__(
        self,
        out: Path,
        journal: Journal,
        plan: GeneratePlan,
        repeated: frozenset[tuple[str, int]],
        about: dict[str, Any],
    ) -> None:
        self._out = out
        self._journal = journal
        self._plan = plan
        self._repeated = repeated
        self._about = about

    async def write(self, name: GeneratedFormat, side: Side, members: Sequence[AcceptedSession]) -> _Written:
        plan = ExportPlan(
            to=name,
            min_reward=self._plan.min_reward,
            file=self._plan.file if name == "tokens" else "jsonl",
            object_arguments=self._plan.object_arguments,
            repeated=self._repeated,
            split=side,
        )
        for scratch in (self._out / name).glob(f".{side}.*"):  # of a process that was killed while it wrote
            shutil.rmtree(scratch)
        folder = ExportFolder(self._out / name / side, force=True)
        report = await export(self._groups(members, plan), plan, folder, self._about)
        return _Written(report["rows"], report["left_out"]["traces"])

    async def _groups(self, members: Sequence[AcceptedSession], plan: ExportPlan) -> AsyncGenerator[ExportedGroup]:
        for each in members:
            session = await exported_session(each.session, each.result, self._journal, plan)
            yield ExportedGroup(each.group, (session,))


def _split_tally(members: Sequence[AcceptedSession], every: int, written: Mapping[str, _Written]) -> SplitTally:
    return SplitTally(
        repositories=len({each.repository for each in members}),
        sessions=len(members),
        share=round(len(members) / every, 4) if every else None,
        rows={name: each.rows for name, each in written.items()},
        left_out={name: each.left_out for name, each in written.items() if each.left_out},
    )
