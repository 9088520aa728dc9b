"""The account of each task: which of its sessions have ended and how, and whether it needs another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from sys import intern

from polar.data.stored_tasks import LazyTasks, set_origin
from polar.errors import ConfigError
from polar.runs.generate.label import AttemptLabel, label_of_session, own_task
from polar.runs.generate.plan import GeneratePlan, Outcome
from polar.runs.stored import StoredSession
from polar.types import EarlierAttempt, Lease, Session, SessionResult, Stage, TaskRequest, is_id

INTERRUPTED = EarlierAttempt(attempt=1, where="node", why="polar generate was interrupted")
INDEX_DIGITS = 3


class TaskAttempts:
    """The sessions of one task. It is small: a set may have a hundred thousand of them."""

    __slots__ = (
        "_ended",
        "_failed_here",
        "_lost",
        "_place",
        "_plan",
        "_tasks",
        "_under_way",
        "repository",
        "task_id",
    )

    def __init__(
        self, task: TaskRequest, plan: GeneratePlan, tasks: Sequence[TaskRequest] = (), place: int = 0
    ) -> None:
        """`tasks`, `place`: where to find the task again, so that it is not kept here."""
        self.task_id = task.task_id or ""
        self.repository = intern(plan.repository_of(task))
        self._plan = plan
        self._tasks = tasks or (task,)
        self._place = place
        self._ended: dict[int, Outcome] = {}
        """By the session's index."""
        self._under_way: set[int] = set()
        self._lost: dict[int, Lease] = {}
        """Sessions that an interruption ended. They run again under their own ids."""
        self._failed_here = 0
        """Without those of earlier runs: whoever continues has repaired the machine."""
        if not is_id(self._session_id(0)):
            raise ConfigError(f"task_id {self.task_id!r} leaves no room for the sample number; shorten it to 120")

    @property
    def origin(self) -> str:
        """Of the set, if that is in a git repository."""
        return set_origin(self._tasks)

    @property
    def task(self) -> TaskRequest:
        return self._tasks[self._place].model_copy(update={"num_samples": self._plan.attempts})

    @property
    def counts(self) -> Counter[Outcome]:
        return Counter(self._ended.values())

    @property
    def accepted(self) -> int:
        return self.counts["accepted"]

    @property
    def attempts(self) -> int:
        """That have ended and count."""
        return self.accepted + self.counts["rejected"]

    @property
    def failed(self) -> int:
        return self.counts["failed"]

    @property
    def begun(self) -> int:
        """All sessions in the journal."""
        return len(self._ended) + len(self._under_way) + len(self._lost)

    @property
    def done(self) -> bool:
        """It has enough, or may have no more attempts."""
        return not self._under_way and not self.wants_more

    @property
    def wants_more(self) -> bool:
        counts, plan, under_way = self.counts, self._plan, len(self._under_way)
        return (
            counts["accepted"] + under_way < plan.wanted
            and counts["accepted"] + counts["rejected"] + under_way < plan.attempts
            and self._failed_here < plan.max_failures
        )

    def restore(self, session: StoredSession) -> None:
        """A session of an earlier run into the same folder."""
        if own_task(session.task, self._plan.attempts) != self.task:
            raise ConfigError(
                f"task {self.task_id!r} is another one than the sessions in the folder are of; give the changed "
                "task a new task_id, or choose another --out"
            )
        label, outcome = label_of_session(session), self._plan.outcome_of(session.result)
        if outcome != "lost":
            self._ended[label.index] = outcome
            self._lost.pop(label.index, None)
        elif label.index not in self._ended:  # at a server, each time under another id
            self._lost[label.index] = self._lease_of(session, label)

    def _lease_of(self, session: StoredSession, label: AttemptLabel) -> Lease:
        """That of an earlier run, under the ids that it has in this one."""
        ids = {"session_id": self._session_id(label.index), "task_id": self.task_id, "index": label.index}
        own = session.lease.session.model_copy(update=ids | {"attempt": label.attempt})
        return Lease(session=own, task=self.task, earlier=session.lease.earlier)

    def next(self) -> Lease:
        """The next session, which is under way from now on."""
        index = min(self._lost, default=1 + max((*self._ended, *self._under_way), default=-1))
        self._under_way.add(index)
        if index not in self._lost:
            session = Session(session_id=self._session_id(index), task_id=self.task_id, index=index)
            return Lease(session=session, task=self.task)
        lost = self._lost.pop(index)
        attempt = lost.session.attempt
        session = lost.session.model_copy(update={"attempt": attempt + 1, "stage": Stage.QUEUED})
        earlier = (*lost.earlier, INTERRUPTED.model_copy(update={"attempt": attempt}))
        return Lease(session=session, task=self.task, earlier=earlier)

    def end(self, result: SessionResult, lease: Lease) -> Outcome:
        outcome = self._plan.outcome_of(result)
        self._under_way.remove(result.index)
        if outcome == "lost":
            self._lost[result.index] = lease
        else:
            self._ended[result.index] = outcome
            self._failed_here += outcome == "failed"
        return outcome

    def _session_id(self, index: int) -> str:
        return f"{self.task_id}-{index:0{INDEX_DIGITS}}"


class TasksOfAccounts(LazyTasks):
    def __init__(self, accounts: Sequence[TaskAttempts]) -> None:
        self._accounts = accounts
        self.origin = accounts[0].origin if accounts else ""

    def at(self, position: int) -> TaskRequest:
        return self._accounts[position].task

    def __len__(self) -> int:
        return len(self._accounts)


def restored(
    tasks: Sequence[TaskRequest], plan: GeneratePlan, sessions: Sequence[StoredSession] = ()
) -> list[TaskAttempts]:
    """The accounts of all tasks, with what earlier runs have. Sessions of tasks that are not among these count for
    nothing."""
    accounts = {task.task_id: TaskAttempts(task, plan, tasks, place) for place, task in enumerate(tasks)}
    for session in sessions:
        if account := accounts.get(label_of_session(session).task):
            account.restore(session)
    return list(accounts.values())
