"""`polar audit`: what was altered on disk after the run is found, and the exit code says so."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import Result

from polar.config import Config
from polar.engines.base import EngineInfo
from polar.store.journal import Journal
from polar.store.paths import RunPaths, RunRecord
from polar.store.seal import sealed
from polar.store.trajectories import read_trajectory, write_trajectory
from polar.types import Logprobs, Score, SessionResult, Span, Strict, TokenIds, Trajectory, logprobs, loss_mask

from ..conftest import TASK

Polar = Callable[..., Result]


class FakeScorer:
    """Gives every token the logprob it was captured with, or something else where told so."""

    class Options(Strict):
        off_by: float = 0.0
        wrong_token: int = -1
        """Scored one lower."""

    stopped = 0

    def __init__(self, options: Options) -> None:
        self._options = options

    async def start(self) -> EngineInfo:
        return EngineInfo("fake", "none", 100, "raw", parallel=1)

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        wrong = self._options.wrong_token
        return logprobs([-0.5 - self._options.off_by - (ids[p] == wrong) for p in positions])

    async def stop(self) -> None:
        FakeScorer.stopped += 1


class NoScorer:
    Options = Strict

    def __init__(self, options: Strict) -> None:
        pass


def alter(run: RunPaths, **changes: Any) -> None:
    """The stored trace, with other fields."""
    path = run.session("add-0").traces
    trajectory = read_trajectory(path)
    trace = msgspec.structs.replace(trajectory.traces[0], **changes)
    write_trajectory(path, msgspec.structs.replace(trajectory, traces=(trace,)))


def stored(run: RunPaths) -> Trajectory:
    return read_trajectory(run.session("add-0").traces)


def findings(result: Result) -> list[str]:
    report = json.loads(result.stdout)
    return [finding["what"] for session in report["sessions"] for finding in session["findings"]]


def config_for(tmp_path: Path, name: str, **options: Any) -> list[str]:
    path = tmp_path / "polar.toml"
    pairs = ", ".join(f"{key} = {value}" for key, value in options.items())
    path.write_text(f'[engine]\nname = "{__name__}:{name}"\noptions = {{ {pairs} }}\n')
    return ["--engine", "--config", str(path)]


def test_a_run_as_it_was_made_is_exact(run: RunPaths, polar: Polar) -> None:
    result = polar("audit")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["add-0", "3", "1", "7", "4", "3", "0"] in rows
    assert ["add-1", "-", "-", "-", "-", "-", "0", "no", "traces:", "failed", "in", "init"] in rows
    assert "exact: every sampled token stands once" in result.stdout


def test_one_altered_context_token_fails(run: RunPaths, polar: Polar) -> None:
    ids = stored(run).traces[0].prompt_ids[:]
    ids[2] += 1
    alter(run, prompt_ids=ids)
    result = polar("audit")
    assert result.exit_code == 1
    assert (
        "session add-0, trace 0, before call add-0.1.1, token 2 of the sequence: context: expected id 105, "
        in result.stdout
    )


def test_one_shifted_mask_fails(run: RunPaths, polar: Polar) -> None:
    trace = stored(run).traces[0]
    alter(run, loss_mask=loss_mask([0, *trace.loss_mask[:-1]]), logprobs=logprobs([0, *trace.logprobs[:-1]]))
    result = polar("audit", "--json")
    assert result.exit_code == 1
    assert {"mask", "coverage"} <= set(findings(result))


def test_one_swapped_logprob_fails(run: RunPaths, polar: Polar) -> None:
    values = stored(run).traces[0].logprobs[:]
    values[0] = -0.5000001
    alter(run, logprobs=values)
    result = polar("audit", "--json")
    assert (result.exit_code, findings(result)) == (1, ["logprob", "certificate_differs"])


def test_one_dropped_entry_removed_fails(run: RunPaths, polar: Polar) -> None:
    trajectory = stored(run)
    fewer = msgspec.structs.replace(trajectory, dropped=trajectory.dropped[1:])
    write_trajectory(run.session("add-0").traces, fewer)
    result = polar("audit", "--json")
    assert result.exit_code == 1
    assert {"coverage", "certificate_differs"} == set(findings(result))


def test_a_span_of_another_call_fails(run: RunPaths, polar: Polar) -> None:
    alter(run, spans=(Span("add-0.1.1", 0, 3), Span("add-0.1.3", 7, 2)))
    result = polar("audit", "--json")
    assert result.exit_code == 1
    assert {"tokens", "coverage"} <= set(findings(result))


def test_an_alteration_that_a_trace_refuses_is_reported_and_no_crash(run: RunPaths, polar: Polar) -> None:
    path = run.session("add-0").traces
    blob, minus_half = path.read_bytes(), logprobs([-0.5]).tobytes()
    path.write_bytes(blob.replace(minus_half, logprobs([0.5]).tobytes(), 1))
    result = polar("audit")
    assert result.exit_code == 1
    assert "traces_unreadable" in result.stdout and "logprob 0.5 at position 0" in result.stdout


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x80"])
def test_a_damaged_file_is_a_finding(run: RunPaths, polar: Polar, blob: bytes) -> None:
    run.session("add-0").traces.write_bytes(blob)
    result = polar("audit", "--json")
    assert (result.exit_code, findings(result)) == (1, ["traces_unreadable"])


def test_arrays_of_another_kind_are_damage(run: RunPaths, polar: Polar) -> None:
    """The byte before the data says what an array holds: 1 for ids, 2 for logprobs."""
    path = run.session("add-0").traces
    ids = stored(run).traces[0].response_ids.tobytes()
    path.write_bytes(path.read_bytes().replace(b"\x01" + ids, b"\x02" + ids))
    with closing(sqlite3.connect(run.journal)) as journal, journal:
        [(body,)] = journal.execute("select body from calls where call_id = 'add-0.1.2'").fetchall()
        said = b"".join(ord(c).to_bytes(4, "little") for c in "<ok>")
        changed = body.replace(b"\x01" + said, b"\x02" + said)
        assert changed != body
        assert findings(polar("audit", "--json")) == ["traces_unreadable"]
        journal.execute("update calls set body = ? where call_id = 'add-0.1.2'", [changed])
    assert findings(polar("audit", "--json")) == ["journal_unreadable"]


def test_lost_traces_are_a_finding(run: RunPaths, polar: Polar) -> None:
    run.session("add-0").traces.unlink()
    result = polar("audit", "--json")
    assert (result.exit_code, findings(result)) == (1, ["traces_missing"])


def test_traces_of_another_session_are_a_finding(run: RunPaths, polar: Polar) -> None:
    other = run.session("add-1").traces
    write_trajectory(other, stored(run))
    result = polar("audit", "--session", "add-1", "--json")
    assert result.exit_code == 1
    assert "session" in findings(result)


def test_a_call_altered_in_the_journal_is_found(run: RunPaths, polar: Polar) -> None:
    """One letter of what the harness said, in the body that the journal keeps of a call."""
    with closing(sqlite3.connect(run.journal)) as journal, journal:
        [(body,)] = journal.execute("select body from calls where call_id = 'add-0.1.2'").fetchall()
        said, other = (b"".join(ord(c).to_bytes(4, "little") for c in text) for text in ("<ok>", "<on>"))
        assert body.count(said) == 1
        journal.execute("update calls set body = ? where call_id = 'add-0.1.2'", [body.replace(said, other)])
    result = polar("audit", "--json")
    assert (result.exit_code, findings(result)) == (1, ["prompt_unproven", "certificate_differs"])


def test_a_journal_that_cannot_be_read_is_a_finding(run: RunPaths, polar: Polar) -> None:
    with closing(sqlite3.connect(run.journal)) as journal, journal:
        journal.execute("update calls set body = x'c1' where call_id = 'add-0.1.2'")
    result = polar("audit", "--json")
    assert (result.exit_code, findings(result)) == (1, ["journal_unreadable"])


def result_of(run: RunPaths) -> SessionResult:
    async def read() -> SessionResult:
        async with await Journal.open(run.journal, read_only=True) as journal:
            result = await journal.result("add-0")
            assert result is not None
            return result

    return asyncio.run(read())


def test_the_certificate_is_made_again_and_compared(run: RunPaths, polar: Polar) -> None:
    assert polar("audit").exit_code == 0
    alter(run, spans=(*stored(run).traces[0].spans[:1], Span("add-0.1.2", 7, 2, "v2")))
    report = json.loads(polar("audit", "--json").stdout)
    found = [finding for session in report["sessions"] for finding in session["findings"]]
    assert {finding["what"] for finding in found} == {"span", "certificate_differs"}
    assert not report["ok"]


def test_a_session_may_be_scored_again(run: RunPaths, polar: Polar) -> None:
    """Rewards are in no digest: a new score on the result, its seal and the traces' rewards make a sound run."""
    again = result_of(run).model_copy(update={"score": Score(reward=0.25)})
    alter(run, reward=0.25)
    assert set(findings(polar("audit", "--json"))) == {"reward"}
    body = sealed(again, TASK).model_dump_json()
    with closing(sqlite3.connect(run.journal)) as journal, journal:
        journal.execute("update results set body = ? where session_id = 'add-0'", [body])
    assert polar("audit").exit_code == 0


def test_show_has_the_certificate_in_one_line(run: RunPaths, polar: Polar) -> None:
    certificate = result_of(run).certificate
    assert certificate is not None
    digests = f"calls {certificate.calls_digest[:12]}, traces {certificate.traces_digest[:12]}"
    assert f"certificate: exact, prefix_merging 2, {digests}\n" in polar("show", "add-0").stdout
    assert "certificate:" not in polar("show", "add-1").stdout
    assert json.loads(polar("show", "add-0", "--json").stdout)["result"]["certificate"]["exact"] is True


def test_only_the_named_sessions_are_audited(run: RunPaths, polar: Polar) -> None:
    run.session("add-0").traces.write_bytes(b"")
    assert polar("audit", run.run_id, "--session", "add-1").exit_code == 0
    assert polar("audit", run.run_id, "--session", "add-1", "--session", "add-0").exit_code == 1
    refused = polar("audit", "--session", "add")
    assert refused.exit_code == 2
    assert f"2 sessions of run {run.run_id} begin with 'add': add-0, add-1" in refused.stderr


def test_nothing_to_prove_is_not_called_exact(run: RunPaths, polar: Polar) -> None:
    arguments = ("audit", run.run_id, "--session", "add-1")
    assert "nothing to prove" in polar(*arguments).stdout and "exact" not in polar(*arguments).stdout
    assert json.loads(polar(*arguments, "--json").stdout)["proven"] == 0
    assert json.loads(polar("audit", run.run_id, "--json").stdout)["proven"] == 1


def test_an_engine_that_agrees_is_no_finding(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    before = FakeScorer.stopped
    result = polar("audit", *config_for(tmp_path, "FakeScorer", off_by=0.0005))
    assert result.exit_code == 0, result.output
    assert "4 tokens scored, |captured - scored|: mean 0.0005, p99 0.0005, max 0.0005" in result.stdout
    assert FakeScorer.stopped == before + 1


def test_one_token_in_a_wrong_context_stands_out(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    """The account on disk is sound; only the engine can tell."""
    options = [*config_for(tmp_path, "FakeScorer", wrong_token=ord("d")), "--positions", "0", "--max-mean", "9"]
    result = polar("audit", *options)
    assert result.exit_code == 1
    assert "add-0, trace 0, position 7: logprob_gap" in result.stdout
    assert "<hi>⏎ab␛<ok>⟦d⟧" in result.stdout, "the token with what stands before it"


def test_the_limits_are_the_users(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    options = config_for(tmp_path, "FakeScorer", off_by=0.1)
    report = json.loads(polar("audit", *options, "--json").stdout)
    assert {finding["what"] for finding in report["score_findings"]} == {"logprob_gap", "mean_gap"}
    assert report["scores"]["worst"][0]["text"].endswith("⟧")
    assert polar("audit", *options, "--max-mean", "0.2", "--max-abs", "0.2").exit_code == 0


def test_without_a_config_the_runs_own_engine_is_asked(run: RunPaths, polar: Polar) -> None:
    record = run.read_record()
    engine = {"name": f"{__name__}:FakeScorer"}
    config = Config.model_validate(record.config.model_dump() | {"engine": engine})
    run.write_record(RunRecord.model_validate(record.model_dump() | {"config": config.model_dump()}))
    assert "4 tokens scored" in polar("audit", "--engine").stdout


def test_an_engine_that_cannot_score_is_refused(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    result = polar("audit", *config_for(tmp_path, "NoScorer"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot score tokens" in result.stderr
