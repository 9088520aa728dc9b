"""From what a verifier left to a score: whether its reward can be believed, and who is to blame if there is none.

The tested code runs as the verifier's user and can write where the verifier writes. What only it can have done is
tampering, and scores 0.0. A verifier that ends without a reward gives no verdict, unless it was killed.
"""

from __future__ import annotations

import msgspec

from polar.errors import EvaluatorError
from polar.evaluators.harbor.reward import TEXT, UnreadableReward, is_disguised, reward_files, score_of_file
from polar.evaluators.harbor.verifier import DECOY, VerifierEnd, interpreter_problem
from polar.evaluators.harbor.verifier_files import VerifierFiles
from polar.evaluators.hardening.judges import Judges
from polar.types import Score

FIRST_SIGNAL, SIGNALS = 128, 31
SHOWN = 20


class Findings(msgspec.Struct, frozen=True):
    files: VerifierFiles
    end: VerifierEnd
    reward_key: str | None = None
    work: frozenset[str] | None = None
    """Paths that the agent changed; None: the ends of Python programs are not checked."""


def verdict_of(findings: Findings, *, zero_without: bool = False) -> Score:
    """Raises `EvaluatorError` if there is none."""
    if not findings.end.verdict.exists() and (killed := _killed(findings)):
        return Score(reward=0.0, reasons=(killed,))
    tampering = [*_replaced(findings), *_late(findings)]
    score = None if tampering else _read(findings, zero_without=zero_without)
    if score is not None and score.reward:
        tampering = [*_forged(findings), *_disorder(findings)]
    if tampering:
        return Score(reward=0.0, metrics={"tampering": len(tampering)}, reasons=tuple(tampering[:SHOWN]))
    assert score is not None
    return _with_tests(score, findings)


def _read(findings: Findings, *, zero_without: bool) -> Score:
    end = findings.end
    code = end.seen.finished.exit_code
    found = reward_files(end.verdict)
    try:
        if found:
            score = score_of_file(end.verdict / found[0], findings.reward_key)
            return score.model_copy(update={"metrics": score.metrics | {"exit_code": code}})
        why = "the verifier wrote no reward.txt or reward.json"
    except UnreadableReward as error:
        why = str(error)
    if (killed := _killed(findings)) or zero_without:
        return Score(reward=0.0, metrics={"exit_code": code}, reasons=(why, *([killed] if killed else [])))
    hint = interpreter_problem(code) or f"its exit code was {code}"
    raise EvaluatorError(f"{why}; {hint}; its output ends with {end.seen.output[-500:].strip()!r}")


def _killed(findings: Findings) -> str:
    """The verifier is the task's, and ends by itself: a signal came from the tested code or a limit of the
    task."""
    finished = findings.end.seen.finished
    if finished.memory_kills:
        return "processes were killed at the task's memory limit"
    number = -finished.exit_code if finished.exit_code < 0 else finished.exit_code - FIRST_SIGNAL
    return f"the verifier was ended by signal {number}" if 0 < number <= SIGNALS else ""


def _replaced(findings: Findings) -> list[str]:
    """Changes of what only the verifier writes, or nothing writes."""
    end = findings.end
    if not end.verdict.is_dir() or end.verdict.is_symlink():
        return ["tampering: the tested code replaced the verifier's log folder"]
    left_out = {entry.rpartition(": ")[0] for entry in end.fetched.left_out}
    disguised = [name for name in reward_files(end.verdict) if is_disguised(end.verdict / name)]
    disguised += [path for path in left_out if path.startswith("verdict/reward.")]
    return [
        *(f"tampering: the tested code changed tests/{path}" for path in findings.files.changed_in(end.tests)),
        *(f"tampering: {name} is not a plain file" for name in disguised),
    ]


def _late(findings: Findings) -> list[str]:
    late = findings.end.late
    if reward_files(late) == [TEXT] and not is_disguised(late / TEXT) and (late / TEXT).read_bytes() == DECOY:
        return []
    return ["tampering: the tested code changed the reward after the verifier had ended"]


def _forged(findings: Findings) -> list[str]:
    """Harbor prefers `reward.json`. A verifier that never names it did not write it beside its `reward.txt`."""
    first, *others = reward_files(findings.end.verdict)
    if others and findings.files.mention(TEXT) and not findings.files.mention(first):
        return [f"tampering: {first} was not written by the verifier, which writes {TEXT}"]
    return []


def _disorder(findings: Findings) -> list[str]:
    seen, work = findings.end.seen, findings.work
    if work is None:
        return []
    if not seen.is_intact:
        return ["tampering: the tested code removed the evaluator's notes"]
    prefix = f"{findings.end.real_path}/tests"
    scripts = {f"{prefix}/{path}": text for path, text in findings.files.scripts().items()}
    # A script without any note was killed: verifiers start servers and end them so.
    ended = tuple(each for each in seen.processes if each.events or each.main not in scripts)
    return Judges(seen.workspace, scripts, work).disorder(ended)


def _with_tests(score: Score, findings: Findings) -> Score:
    """Adds what pytest's own report says. A disagreement is no proof: a verifier may judge by more than that."""
    outcomes = [outcome for report in findings.end.seen.reports for outcome in report.values()]
    if not outcomes:
        return score
    failed = sum(outcome in ("failed", "error") for outcome in outcomes)
    metrics = {"tests_passed": float(outcomes.count("passed")), "tests_failed": float(failed)}
    doubt = (f"pytest reports {failed} failed tests",) if failed else ()
    return score.model_copy(update={"metrics": metrics | score.metrics, "reasons": (*score.reasons, *doubt)})
