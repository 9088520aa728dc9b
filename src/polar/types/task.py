"""Tasks: what a trainer submits."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ByteSize, Field, model_validator

from polar.types.base import MAX_COUNT, Id, Strict

Retention = Literal["preserve", "template", "strip"]
"""What later turns see of a model's thinking. `preserve`: all of it, in the exact tokens. `template`: what the
model's template keeps, as in deployment. `strip`: none of it."""

StopText = Annotated[str, Field(min_length=1, max_length=200)]


class Spec(Strict):
    """A plug-in by name with its options; a bare string is the name alone."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Sampling(Strict):
    """The defaults sample from the plain distribution, which training needs."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = None
    """Each call of each sample derives its own seed from it. None: seeds are random, and recorded."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Limit for one reply; a harness may ask for less."""
    stop: tuple[StopText, ...] = Field(default=(), max_length=16)
    """Texts that end a reply, instead of those the harness asks for. Their tokens are kept; the harness sees the
    text before them."""
    follow_harness: tuple[Literal["temperature", "top_p", "top_k", "seed"], ...] = ()
    """Values that the harness may set. For evaluation: calls not sampled from the plain distribution are not
    trained on."""


class Budgets(Strict):
    """Time limits per stage, which exclude queueing, and limits on calls and tokens."""

    init_s: float = Field(default=300.0, gt=0)
    run_s: float = Field(default=600.0, gt=0)
    """For RUNNING. Does not count while the session waits for its model: no call is being sampled and at least one
    has no token yet, because generation is paused or the engine has not begun."""
    wait_s: float = Field(default=3600.0, gt=0)
    """Limit of this waiting, in total. Beyond it the session fails through infrastructure."""
    postrun_s: float = Field(default=300.0, gt=0)
    evaluator_init_s: float = Field(default=300.0, gt=0)
    """To start an evaluator's own runtime, all tries together. While POSTRUN waits for that, `postrun_s` does not
    pass."""
    max_calls: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    """Sampled tokens of the whole session."""
    on_exhausted: Literal["refuse", "final_message"] = "refuse"
    """The answer to requests after `max_calls` or `max_tokens` is used up. refuse: an error, after which most
    harnesses exit with a code above 0. final_message: a fixed last message, not sampled, after which they exit
    with 0."""


class Staleness(Strict):
    """How many policy updates a session may live through."""

    max_updates: int = Field(ge=0)
    """Changes of the policy version since the first call; a session with more is stale."""
    action: Literal["cancel", "mark"] = "cancel"
    """cancel: a stale session is ended at once. mark: it goes on, and its result is marked."""


class WorkspaceSource(Strict):
    """Initial content of the workspace, from the node's disk."""

    folder: str | None = Field(default=None, min_length=1)
    """A folder, copied as it is."""
    git: str | None = Field(default=None, min_length=1)
    """A repository or a bundle. The workspace is a clone of it, without remotes."""
    ref: str = Field(default="HEAD", min_length=1, max_length=500)
    """The commit, branch or tag to check out."""

    @model_validator(mode="after")
    def _one_of_both(self) -> WorkspaceSource:
        if (self.folder is None) == (self.git is None):
            raise ValueError("give either folder or git")
        return self


class PrepareStep(Strict):
    """A command that prepares the workspace; a bare string is the command alone."""

    run: str = Field(min_length=1)
    """For `sh -c`, in the workspace. It runs before the session has a key."""
    timeout_s: float = Field(default=120.0, gt=0)
    """For each try; `budgets.init_s` limits all of them together."""
    retries: int = Field(default=0, ge=0, le=20)
    env: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _command_alone(cls, value: Any) -> Any:
        return {"run": value} if isinstance(value, str) else value


def _stays_inside(path: str) -> str:
    if path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
        raise ValueError("must be a relative path inside the workspace")
    return str(PurePosixPath(path))


InnerPath = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_stays_inside)]


class Keep(Strict):
    """Which of a session's files are kept in its run folder."""

    artifacts: tuple[InnerPath, ...] = Field(default=(), max_length=100)
    """Files and folders of the workspace; `.` is all of it. None may be inside another."""
    patch: bool = False
    """The changes of the workspace as a patch for `git apply`, with new and binary files. Needs git in the
    runtime."""
    harness_logs: bool = True
    """Logs of the harness in its home folder."""
    cap_bytes: ByteSize = Field(default=ByteSize(64 * 2**20), ge=0)
    """Size limit for each of the above. What exceeds it is listed in `SessionResult.left_out`."""

    @model_validator(mode="after")
    def _each_once(self) -> Keep:
        paths = [PurePosixPath(path) for path in self.artifacts]
        for index, path in enumerate(paths):
            others = paths[:index] + paths[index + 1 :]
            if holder := next((other for other in others if path.is_relative_to(other)), None):
                raise ValueError(f"artifacts: {str(path)!r} is already part of {str(holder)!r}; name one of them")
        return self


class NodeNeeds(Strict):
    """What a node must have to get a task's sessions, besides the runtime, image, harness and modules that the
    task names."""

    labels: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = Field(default=(), max_length=50)
    """All of them must be among the node's (`node.labels`)."""
    engine: str | None = Field(default=None, min_length=1, max_length=200)
    """The name of its engine."""
    model: str | None = Field(default=None, min_length=1, max_length=1000)
    """The model, as the node's engine names it (`polar nodes`)."""


class TaskRequest(Strict):
    """A task: what a harness is asked to do, how often, where, and how the outcome is scored.

    TaskRequest.model_validate({"instruction": "Say hello.", "num_samples": 4, "harness": "pi"})
    """

    task_id: Id | None = None
    instruction: str = Field(min_length=1, max_length=1_000_000)
    num_samples: int = Field(default=1, ge=1, le=10_000)
    runtime: Spec = Spec(name="local")
    harness: Spec = Spec(name="pi")
    builder: Spec = Spec(name="prefix_merging")
    evaluator: Spec = Spec(name="session_completion")
    sampling: Sampling = Sampling()
    reasoning: Retention = "preserve"
    """If earlier thinking is left out, the conversation continues in a new trace."""
    budgets: Budgets = Budgets()
    staleness: Staleness | None = None
    """None: a session may live through any number of policy updates."""
    files: dict[str, str] = {}
    """Files to write into the workspace before the harness starts: relative path to text."""
    workspace: WorkspaceSource | None = None
    """None: empty, or as in the runtime's image."""
    prepare: tuple[PrepareStep, ...] = Field(default=(), max_length=100)
    """Run in order after `workspace` and `files`."""
    keep: Keep = Keep()
    callback_url: str | None = None
    priority: int = 0
    """Of a rollout server, as all fields down to `on_enough`: sessions with a higher one are leased first; tasks
    with the same take turns."""
    needs: NodeNeeds = NodeNeeds()
    max_running: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """How many sessions of the task nodes may hold at once. None: any number."""
    group_max_running: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """The same for all tasks of the group, which must agree on this, `enough` and `on_enough`."""
    enough: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """When so many sessions of the group are trainable, the others are cancelled. None: all run."""
    on_enough: Literal["cancel", "queued"] = "cancel"
    """cancel: sessions that run are cancelled too. queued: only those that no node has."""
    metadata: dict[str, Any] = {}
    group_id: Id | None = None
    """Sessions with the same are compared; set it to compare those of several tasks."""

    @property
    def group(self) -> str:
        """`group_id`, else `task_id`: the samples of a task are a group."""
        return self.group_id or self.task_id or ""

    def session_id(self, index: int) -> str:
        """Id of one sample, padded so that the sessions of a task sort by index."""
        return f"{self.task_id}-{index:0{len(str(self.num_samples - 1))}}"
