"""Sessions on disk for the viewer: real journal, real builder, real certificate; tokens are characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polar.audit.certificate import certify
from polar.builders.labels import labelled
from polar.builders.prefix_merging import PrefixMerging
from polar.config import Config, ModelConfig
from polar.store.journal import Journal
from polar.store.paths import RunPaths, RunRecord
from polar.store.seal import sealed
from polar.store.trajectories import write_trajectory
from polar.tokens.sequences import digest_of
from polar.types import (
    Call,
    CallTimes,
    Failure,
    Lease,
    Message,
    Score,
    Session,
    SessionResult,
    Spec,
    Stage,
    Strict,
    TaskRequest,
    Tool,
    ToolCall,
    TrajectoryStatistics,
    logprobs,
    token_ids,
)

START = 1_794_719_553.0
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>&lt;\u2028\u202e\x1b[31m"
"""What a model may write, in every field that it or the harness can reach."""


class CharacterRenderer:
    """Token 97 is `a`."""

    class Options(Strict):
        pass

    def __init__(self, options: Options) -> None:
        pass

    async def load(self) -> None:
        pass

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


@dataclass
class Conversation:
    """Calls of one session, made one after another."""

    session_id: str = "add-0"
    calls: list[Call] = field(default_factory=list[Call])
    wholes: dict[str, str] = field(default_factory=dict[str, str])
    """Prompt and completion of each call as text."""

    def say(self, prompt: str, completion: str, parent: Call | None = None, **changes: Any) -> Call:
        """A call with logprob -0.5 for each token. It continues `parent`, unless `continues` is False."""
        continues = changes.get("continues", parent is not None)
        whole = self.wholes[parent.call_id] + prompt if parent and continues else prompt
        at = START + 1 + len(self.calls)
        values: dict[str, Any] = {
            "call_id": f"{self.session_id}.1.{len(self.calls) + 1}",
            "session_id": self.session_id,
            "parent_id": parent.call_id if parent else None,
            "continues": continues,
            "new_prompt_ids": token_ids(map(ord, prompt)),
            "completion_ids": token_ids(map(ord, completion)),
            "logprobs": logprobs([-0.5] * len(completion)),
            "prompt_digest": digest_of(token_ids(map(ord, whole))),
            "prompt_tokens": len(whole),
            "finish_reason": "stop",
            "new_messages": (*((parent.response,) if parent else ()), Message(role="user", content=prompt)),
            "response": Message(role="assistant", content=completion),
            "tools": (Tool(name="bash"),),
            "new_items": (b"0" * 16,),
            "dialect": "openai_chat",
            "kind": "agent",
            "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
            "engine": "scripted",
            "logprob_mode": "raw",
            "times": CallTimes(at, at + 0.1, at + 0.5),
            "policy_version": "v1",
            "received": True,
        }
        call = Call(**(values | changes))
        self.calls.append(call)
        self.wholes[call.call_id] = whole + completion
        return call


def forked() -> Conversation:
    """Two turns, a second continuation of the first, a rewritten history and a reply that was not received."""
    talk = Conversation()
    first = talk.say("<system>\n<add 2 and 2>", "I look.\n", logprobs=logprobs([-0.01, float("nan"), *[-2.5] * 6]))
    second = talk.say("<two>", "four", parent=first, policy_version="v2")
    talk.say("<a subagent>", "side", parent=first, kind="subagent")
    talk.say("<system>\n<add 3 and 2>", "five", parent=second, continues=False, break_reason="history_edited")
    talk.say("<lost>", "gone", parent=second, received=False)
    return talk


def hostile() -> Conversation:
    talk = Conversation()
    bad = Message(
        role="user",
        content=HOSTILE,
        reasoning=HOSTILE,
        tool_calls=(ToolCall(name=HOSTILE, arguments=HOSTILE, call_id=HOSTILE),),
    )
    changes: dict[str, Any] = {
        "new_messages": (bad,),
        "response": bad,
        "tools": (Tool(name=HOSTILE, description=HOSTILE, parameters={HOSTILE: HOSTILE}),),
        "policy_version": HOSTILE,
        "break_reason": HOSTILE,
        "tolerant": (HOSTILE,),
        "sampling": {HOSTILE: HOSTILE},
        "engine": HOSTILE,
        "dialect": HOSTILE,
        "logprob_mode": HOSTILE,
    }
    first = talk.say(HOSTILE, HOSTILE, **changes)
    talk.say("<script>" + HOSTILE, HOSTILE, parent=first, continues=False, **changes)
    return talk


async def store(
    runs_dir: Path, *talks: Conversation, words: str = "add 2 and 2", run_id: str = "20261115-051233-ab12"
) -> RunPaths:
    """A run with these sessions. `words` stand wherever a task and its verdict have free text."""
    run = RunPaths.create(runs_dir, run_id)
    config = Config(model=ModelConfig(renderer=Spec(name=f"{__name__}:{CharacterRenderer.__name__}")))
    run.write_record(RunRecord(run_id=run_id, config=config, versions={}, started=START, finished=START + 9))
    async with await Journal.open(run.journal) as journal:
        for index, talk in enumerate(talks):
            await _store_one(journal, run, index, talk, words)
    return run


async def _store_one(journal: Journal, run: RunPaths, index: int, talk: Conversation, words: str) -> None:
    task = TaskRequest(task_id="add", instruction=words, num_samples=index + 1, metadata={words: words})
    lease = Lease(session=Session(session_id=talk.session_id, task_id="add", index=index), task=task)
    await journal.add_session(lease)
    stages = [Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN, Stage.COMPLETED]
    for after, stage in enumerate(stages):
        await journal.record_stage(talk.session_id, stage, START + after)
    for call in talk.calls:
        await journal.append_call(call)
    trajectory = PrefixMerging(PrefixMerging.Options()).build(talk.session_id, talk.calls)
    score = Score(reward=1.0, metrics={words: 2.0}, reasons=(words,))
    failure = Failure(where="harness", type=words[:40], message=words, agent=True)
    write_trajectory(run.session(talk.session_id).traces, labelled(trajectory, lease, score, failure))
    result = SessionResult(
        session_id=talk.session_id,
        task_id="add",
        index=index,
        attempt=1,
        stage=Stage.COMPLETED,
        score=score,
        failure=failure,
        statistics=TrajectoryStatistics.model_validate(trajectory.statistics),
        certificate=certify(talk.calls, trajectory),
        traces=f"sessions/{talk.session_id}/traces.msgpack",
    )
    await journal.save_result(sealed(result, task))
