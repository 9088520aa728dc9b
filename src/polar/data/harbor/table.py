"""The `[harbor]` table of a task file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from polar.types import Spec, Strict


class HarborTable(Strict):
    folders: str | tuple[str, ...] = Field(min_length=1)
    """Task folders, or folders of task folders, relative to the task file; `*` matches names."""
    names: tuple[str, ...] = ()
    """Patterns of the folders' names to take. Default: all."""
    exclude: tuple[str, ...] = ()
    """Patterns of names to leave out."""
    limit: int | None = Field(default=None, gt=0)
    """Of tasks, in the order of their names."""
    runtime: Spec = Spec(name="docker")
    """Where sessions run. Docker uses the folder's own image, unless its options name one. Another runtime stands
    in for it, with the image of its options, if the folder allows that."""
    build: bool = False
    """Build environment/Dockerfile also where task.toml names an image."""
    workdir: str | None = Field(default=None, pattern=r"^/.")
    """The working folder, where task.toml does not say it. None: as in the Dockerfile."""
    network: Literal["closed", "task"] | None = None
    """closed: the agent reaches its model and nothing else, and the verifier nothing. task: what task.toml says,
    by default the whole network. None: closed, but a folder whose verifier downloads something is skipped."""
    limits: bool = True
    """Whether cpus, memory_mb and storage_mb of task.toml limit the session, as far as the runtime can."""
    time_factor: float = Field(default=1.0, gt=0)
    """Multiplies the time limits of agent and verifier, for a machine that is slower than the folders expect."""
    where: Literal["own", "session"] | None = None
    """Where the verifiers run: the evaluator's option. None: as the folder says, else own."""
    env: dict[str, str] = Field(default={})
    """Values for variables that [verifier] env takes from outside. Those of the node are not passed."""

    @property
    def patterns(self) -> tuple[str, ...]:
        return (self.folders,) if isinstance(self.folders, str) else self.folders
