"""What `polar eval` was asked to do, and the commands it names to go on if it broke off."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polar.cli.options import CommandForm
    from polar.cli.runs.eval_runs import PolicyRun


@dataclass(frozen=True)
class EvalCall:
    """The arguments of one call, except those for its output."""

    tasks: tuple[str, ...]
    """A task file; with --compare stored runs."""
    config: Path | None
    against: tuple[Path, ...]
    harness: tuple[str, ...]
    runtime: tuple[str, ...]
    samples: int | None
    k: str | None
    solved_at: float
    seed: int
    server: str | None
    """None: the sessions run here."""
    server_is_given: bool
    """False: POLAR_SERVER named it."""

    @property
    def configs(self) -> dict[str, Path | None]:
        """By the policy's name; None: ./polar.toml, or the server's nodes have their own."""
        from polar.errors import ConfigError

        files = [self.config, *self.against]
        own = "server" if self.server else "policy"
        names = [own if file is None else file.stem for file in files]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"two configs have the same name ({', '.join(names)}), which names the policy: rename one"
            )
        return dict(zip(names, files, strict=True))

    def next_steps(self, policies: Sequence[PolicyRun], polar: CommandForm) -> list[str]:
        """Commands that run what is left and make the whole report; empty: nothing is left that can go on. Tasks
        at a server are cancelled and cannot."""
        if self.server is not None:
            return []
        steps = {
            self._resume(policy.paths.run_id, self.configs[policy.name]): f"runs what is left of {policy.name}"
            for policy in policies
            if policy.not_ended
        }
        not_run = [name for name in self.configs if name not in {policy.name for policy in policies}]
        steps |= {self._alone(self.configs[name]): f"runs {name}, which was not run" for name in not_run}
        if not steps:
            return []
        runs = [(policy.name, str(policy.paths.root)) for policy in policies]
        missing = f"; RUN is that of {' or '.join(not_run)}" if not_run else ""
        steps[self._compare([*runs, *((name, "RUN") for name in not_run)])] = f"then makes the report{missing}"
        width = max(len(polar(command)) for command in steps)
        return [f"{polar(command):<{width}}  {what}" for command, what in steps.items()]

    def _resume(self, run_id: str, config: Path | None) -> str:
        return _command("run", ("--resume", run_id), _option("--config", config))

    def _alone(self, config: Path | None) -> str:
        specs = [("--harness", each) for each in self.harness] + [("--runtime", each) for each in self.runtime]
        samples = _option("--samples", self.samples)
        return _command("eval", self.tasks, _option("--config", config), *specs, samples, *self._rates())

    def _compare(self, runs: Iterable[tuple[str, str]]) -> str:
        return _command("eval", ("--compare",), [f"{name}={run}" for name, run in runs], *self._rates())

    def _rates(self) -> list[tuple[str, ...]]:
        solved_at, seed = (
            None if value == usual else value for value, usual in ((self.solved_at, 1.0), (self.seed, 0))
        )
        return [_option("-k", self.k), _option("--solved-at", solved_at), _option("--seed", seed)]


def _option(name: str, value: object) -> tuple[str, ...]:
    """Empty if it was not given."""
    return () if value is None else (name, str(value))


def _command(name: str, *arguments: Iterable[str]) -> str:
    return shlex.join([name, *(word for words in arguments for word in words)])
