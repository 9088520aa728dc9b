"""The errors Polar raises, and `boundary()`, which records where a session failed.

Plug-ins raise plain errors. A boundary around each part turns them into a `SessionError` that names the part, so
that a failed session is data and only the pipeline needs to catch broadly.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Self

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from polar.types import ID_PATTERN, Failure


class PolarError(Exception):
    """An error whose message is meant for the user and names the fix."""


class ConfigError(PolarError):
    """A config or task file that cannot be used."""


class FieldProblem(str):
    """What is wrong with a field of a task or config file, or with an option of a plug-in: `FIELD: why`."""

    field: tuple[int | str, ...]
    """As the user wrote it: `("evaluator", "options", "comand")`."""

    def __new__(cls, field: tuple[int | str, ...], why: str) -> Self:
        made = super().__new__(cls, f"{'.'.join(map(str, field))}: {why}" if field else why)
        made.field = field
        return made


class FieldsRefused(ConfigError):
    """Fields that cannot be used."""

    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class UnknownPlugin(ConfigError):
    """A plug-in name that is not registered."""


class ModuleNotAllowed(ConfigError):
    """A task names a module that the operator of the node has not allowed."""


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


def field_problems(
    error: ValidationError, model: type[BaseModel], before: tuple[str, ...] = ()
) -> list[FieldProblem]:
    """All problems, unknown fields first: a misspelled name explains a missing one. `before`: the fields in which
    the model stands."""
    details = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    return [FieldProblem((*before, *each["loc"]), _explained(each, model, before)) for each in details]


def _explained(details: ErrorDetails, model: type[BaseModel], before: tuple[str, ...]) -> str:
    kind = "option" if before and before[-1] == "options" else "field"
    match details["type"]:
        case "missing":
            return f"missing; this {kind} is required"
        case "extra_forbidden":
            known = _fields_at(model, details["loc"][:-1])
            return f"unknown {kind}{did_you_mean(str(details['loc'][-1]), known)}"
        case "string_pattern_mismatch" if details.get("ctx", {}).get("pattern") == ID_PATTERN:
            rule = "letters, digits, '.', '_' and '-', a letter or digit first, at most 128"
        case _:
            message = details["msg"].removeprefix("Value error, ")
            rule = message[:1].lower() + message[1:]
    given = details["input"]
    secret = any(word in str(details["loc"]).lower() for word in ("key", "token", "secret", "password"))
    has_user = isinstance(given, str) and re.search(r"//[^/\s]*@", given)  # an address, perhaps with a password
    return rule if secret or has_user else f"{rule} (is {_short(given)})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name nearest to one that is not, or all of them; empty: none is known."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def _fields_at(model: Any, location: tuple[int | str, ...]) -> list[str]:
    """The fields of the model that stands at this location; empty: that is no model."""
    for part in location:
        field = model.model_fields.get(str(part))
        model = field.annotation if field else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
