"""The errors Polar raises, and `boundary()`, which records where a session failed.

Plug-ins raise plain errors. A boundary around each part turns them into a `SessionError` that names the part, so
that a failed session is data and only the pipeline needs to catch broadly.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from pydantic import ValidationError

from polar.types import Failure


class PolarError(Exception):
    """An error whose message is meant for the user and names the fix."""


class ConfigError(PolarError):
    """A config or task file that cannot be used."""


class UnknownPlugin(ConfigError):
    """A plug-in name that is not registered."""


class EngineError(PolarError):
    """The engine refused, failed or cannot be reached."""


class EngineDefect(EngineError):
    """The engine's reply cannot be trained on: ids are missing, or ids and logprobs do not match."""


class EngineBusy(EngineError):
    """The engine is overloaded; retry after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SchemaRefused(EngineError):
    """The engine cannot constrain a reply to the given JSON schema."""


class ChatRefused(EngineError):
    """In chat mode: the model's template cannot render these messages."""


class HarnessError(PolarError):
    """The harness could not be installed or started, or ended in error."""


class RuntimeFailure(PolarError):
    """The runtime could not be started or lost its process."""


class NotPermitted(RuntimeFailure):
    """A task asks for something that the operator of the node has not permitted."""


class WorkspaceUnusable(RuntimeFailure):
    """The state of the workspace, which the session's own processes caused, prevents reading or writing a file, or
    running a command there."""


class NoSuchFile(WorkspaceUnusable, FileNotFoundError):
    """The workspace has no such file."""


class EvaluatorError(PolarError):
    """The evaluator could not reach a verdict."""


class ContextOverflow(EngineError):
    """The prompt leaves no room for a reply."""

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
"""Failure types of what a machine can run out of, whichever part noticed it."""


def failure_of(where: str, error: BaseException, *, agent: bool = False) -> Failure:
    message = str(error) or type(error).__name__
    kind = shortage_of(error) or type(error).__name__
    return Failure(where=where, type=kind, message=message[:4000], agent=agent)


def shortage_of(error: BaseException) -> str:
    """`DISK_FULL` or `NO_DESCRIPTORS` if the error or one of its causes is that; else empty."""
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
    """Turns any plain error raised inside into a `SessionError` that names the part. Cancellation and time-outs
    pass through: they belong to the code that set the deadline."""
    try:
        yield
    except (SessionError, TimeoutError):
        raise
    except Exception as error:
        raise SessionError(failure_of(where, error)) from error


def first_problem(error: ValidationError, nowhere: str = "") -> str:
    """`field: what is wrong with it`. `nowhere`: in place of the field if the problem is one of the whole."""
    details = error.errors(include_url=False)[0]
    where = ".".join(map(str, details["loc"])) or nowhere
    message = details["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
