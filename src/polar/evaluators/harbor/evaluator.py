"""Scores a session with the verifier of its Harbor task folder, `tests/test.sh`, by the reward that it writes.

The verifier runs after the agent is dead, by default in a runtime of its own from the same image: the agent's work
is laid over the image's workspace there. docs/harbor.md says what is defended.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ByteSize, Field

from polar import registry
from polar.errors import EvaluatorError, PolarError, WorkspaceUnusable
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.evaluators.harbor.verdict import Findings, verdict_of
from polar.evaluators.harbor.verifier import Verifier
from polar.evaluators.harbor.verifier_files import VerifierFiles, read_verifier_files
from polar.evaluators.hardening.protected import WorkRules
from polar.evaluators.hardening.work import CAP_BYTES, LaidWork, lay_work
from polar.runtimes.base import Runtime
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread, to_the_end
from polar.runtimes.options import RuntimeOptions
from polar.types import Score, Spec, Strict, TaskRequest


class HarborOptions(Strict):
    folder: str = Field(min_length=1)
    """The task folder, on the node's disk. Only its `tests` are used."""
    digest: str | None = None
    """Of the tests, when the tasks were read. If they are others by now, there is no verdict."""
    where: Literal["own", "session"] = "own"
    """own: a runtime of the evaluator's own, from the task's image. session: the one in which the agent worked,
    for tasks that judge what is outside the workspace; there an agent can replace any program."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Time limit of the verifier, beyond which the score is 0.0."""
    env: dict[str, str] = Field(default={})
    """Variables of the verifier."""
    runtime: dict[str, Any] = Field(default={})
    """Options of its own runtime that differ from the session's; null removes one."""
    reward_key: str | None = None
    """Which number of `reward.json` is the reward. None: `reward`, or the only one, or the mean of all."""
    no_reward: Literal["error", "zero"] = "error"
    """If the verifier ends without a reward. error: there is no verdict. zero: 0.0, for a verifier that writes its
    reward only if the work is right."""
    protected: tuple[str, ...] = ()
    """Patterns of files whose change is tampering, beside those that are always protected."""
    allowed: tuple[str, ...] = ()
    """Patterns of protected files that the agent may change."""
    orderly_end: bool = True
    """Whether a reward needs proof that the Python programs of the verifier ran to their end. Only with `own`."""
    cap_bytes: ByteSize = Field(default=ByteSize(CAP_BYTES), gt=0)
    """Size limit of the workspace. Only with `own`."""


class HarborEvaluator:
    Options: type[BaseModel] = HarborOptions

    def __init__(self, options: HarborOptions) -> None:
        self._options = options

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest | None:
        if self._options.where == "session":
            return None
        merged = task.runtime.options | self._options.runtime
        options = {name: value for name, value in merged.items() if value is not None}
        return RuntimeRequest(runtime=Spec(name=task.runtime.name, options=options))

    async def evaluate(self, evidence: Evidence) -> Score:
        try:
            files = await in_thread(self._files)
            if evidence.logs is not None:
                evidence.logs.mkdir(parents=True, exist_ok=True)
            if self._options.where == "own":
                return await self._judge_in_own(evidence, files)
            await evidence.runtime.kill()
            return await self._verified(evidence, evidence.runtime, files, None)
        except (WorkspaceUnusable, EvaluatorError):
            raise
        except TimeoutError:  # an OSError, of another deadline
            raise
        except (PolarError, OSError, ValueError) as error:
            raise EvaluatorError(f"the verifier could not run: {error}") from error

    def _files(self) -> VerifierFiles:
        files = read_verifier_files(Path(self._options.folder) / "tests")
        if self._options.digest not in (None, files.digest):
            raise EvaluatorError(
                f"the tests of {self._options.folder} have changed since the tasks were read: read them again"
            )
        return files

    async def _judge_in_own(self, evidence: Evidence, files: VerifierFiles) -> Score:
        rules = WorkRules(protected=self._options.protected, allowed=self._options.allowed)
        laid = await lay_work(evidence, rules, self._options.cap_bytes)
        if laid.tampering:
            return Score(reward=0.0, metrics={"tampering": len(laid.tampering)}, reasons=laid.reasons())
        assert evidence.own_runtime is not None, "the work was laid in it"
        score = await self._verified(evidence, evidence.own_runtime, files, laid)
        return score.model_copy(update={"reasons": (*score.reasons, *laid.notes())})

    async def _verified(
        self, evidence: Evidence, runtime: Runtime, files: VerifierFiles, laid: LaidWork | None
    ) -> Score:
        verifier = Verifier(runtime, files, own_root=has_own_root(evidence.task.runtime))
        await verifier.set_up()
        limit = asyncio.timeout(self._options.timeout_s)
        try:
            async with limit:
                seen = await verifier.run(self._options.env, evidence.logs)
        except TimeoutError:
            if not limit.expired():
                raise
            return Score(reward=0.0, reasons=(f"the verifier did not end within {self._options.timeout_s:g} s",))
        folder = Path(tempfile.mkdtemp(prefix="polar-verifier-", dir=evidence.logs))
        try:
            end = await verifier.end(seen, folder / "left")
            await in_thread(_keep_logs, evidence.logs, end.verdict, seen.output)
            options = self._options
            checked = laid is not None and options.orderly_end
            findings = Findings(files, end, options.reward_key, frozenset(laid.work) if laid and checked else None)
            return await in_thread(verdict_of, findings, zero_without=options.no_reward == "zero")
        except WorkspaceUnusable:
            return Score(reward=0.0, reasons=("tampering: the tested code removed the verifier's folder",))
        finally:
            await to_the_end(in_thread(remove_tree, folder))


def has_own_root(spec: Spec) -> bool:
    """Whether `/tests` and `/logs` can be made: elsewhere they would be folders of the node."""
    options = registry.options_of("runtime", registry.find("runtime", spec.name), spec.options)
    return isinstance(options, RuntimeOptions) and options.offered.own_root


def _keep_logs(logs: Path | None, verdict: Path, output: str) -> None:
    if logs is None:
        return
    (logs / "verifier.txt").write_text(output, errors="backslashreplace")
    if verdict.is_dir() and not verdict.is_symlink():
        shutil.copytree(verdict, logs / "verifier", symlinks=True, dirs_exist_ok=True)
