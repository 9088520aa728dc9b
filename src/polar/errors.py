"""Where a session can fail, and `boundary()` which names it.

Plug-ins raise plain errors. A boundary around each part turns them into a `SessionError` that says where
it happened, so that a failed session is data and only the pipeline needs to catch broadly.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from polar.types import Failure


class PolarError(Exception):
    """An error whose message is meant for the user and names the fix."""


class ConfigError(PolarError):
    """A config or task file that cannot be used."""


class UnknownPlugin(ConfigError):
    """A plug-in name nobody registered."""


class EngineError(PolarError):
    """The engine refused, broke off or is not there."""


class EngineDefect(EngineError):
    """The engine answered, but not with what training needs: missing ids, unequal lengths."""


class EngineBusy(EngineError):
    """The engine takes no more work for now."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SchemaRefused(EngineError):
    """The engine cannot hold a reply to the JSON schema it was given."""


class ConversationRefused(EngineError):
    """The engine lays prompts out itself, and the model's template does not take this conversation."""


class HarnessError(PolarError):
    """The harness could not be installed or started, or ended in error."""


class RuntimeFailure(PolarError):
    """The runtime could not be started or lost its process."""


class WorkspaceUnusable(RuntimeFailure):
    """What stands in the workspace keeps a file from being read or written, or a command from being run there. The
    session's own processes made it so."""


class NoSuchFile(WorkspaceUnusable, FileNotFoundError):
    """The workspace has no such file."""


class EvaluatorError(PolarError):
    """The evaluator could not reach a verdict."""


class ContextOverflow(EngineError):
    """A prompt that leaves no room for a reply."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens, the model's context {context_tokens}")
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class SessionError(Exception):
    """A part of a session failed; carries the `Failure` for its result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.where}: {failure.message}")
        self.failure = failure


def failure_of(where: str, error: BaseException, *, policy: bool = False) -> Failure:
    message = str(error) or type(error).__name__
    return Failure(where=where, type=type(error).__name__, message=message[:4000], policy=policy)


@contextmanager
def boundary(where: str) -> Generator[None]:
    """Names the place of any plain error raised inside. Cancellation and time-outs pass through unnamed:
    they belong to whoever set the deadline."""
    try:
        yield
    except (SessionError, TimeoutError):
        raise
    except Exception as error:
        raise SessionError(failure_of(where, error)) from error
