"""Where a session can fail, and `boundary()` which names it.

Plug-ins raise plain errors. A boundary around each part turns them into a `SessionError` that says where
it happened, so that a failed session is data and only the pipeline needs to catch broadly.
"""

from __future__ import annotations

import errno
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


class ChatRefused(EngineError):
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


DISK_FULL = "DiskFull"
NO_DESCRIPTORS = "NoDescriptors"
_SHORTAGES = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
    errno.EMFILE: NO_DESCRIPTORS,
    errno.ENFILE: NO_DESCRIPTORS,
}
"""What a machine can run out of is a type of its own, whoever noticed it first."""


def failure_of(where: str, error: BaseException, *, agent: bool = False) -> Failure:
    message = str(error) or type(error).__name__
    kind = shortage_of(error) or type(error).__name__
    return Failure(where=where, type=kind, message=message[:4000], agent=agent)


def shortage_of(error: BaseException) -> str:
    """`DISK_FULL` or `NO_DESCRIPTORS`, where that is what the error or one of its causes says; else nothing."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, OSError) and found.errno in _SHORTAGES:
            return _SHORTAGES[found.errno]
        found = found.__cause__ or found.__context__
    return ""


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
