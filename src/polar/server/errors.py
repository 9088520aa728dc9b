"""Errors that become HTTP answers. The message goes to the client and names the fix."""

from __future__ import annotations

from polar.errors import PolarError
from polar.types import Strict


class ApiError(PolarError):
    status = 400


class Unauthorized(ApiError):
    status = 401


class Forbidden(ApiError):
    status = 403


class NotFound(ApiError):
    status = 404


class NotAcceptable(ApiError):
    status = 406


class Conflict(ApiError):
    status = 409


class Gone(ApiError):
    """Retention has removed it."""

    status = 410


class TooLargeUpload(ApiError):
    status = 413


class Invalid(ApiError):
    status = 422


class UpgradeRequired(ApiError):
    """A node speaks another version of the protocol."""

    status = 426


class TooManyTries(ApiError):
    status = 429


class ErrorBody(Strict):
    """The body of every answer that is not a success."""

    detail: str
    """What is wrong, and how to fix it."""


def not_found(kind: str, name: str) -> NotFound:
    return NotFound(f"there is no {kind} {name!r}")
