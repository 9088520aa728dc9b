"""What the server refuses, each with its HTTP status. The message goes to the client and names the fix."""

from __future__ import annotations

from polar.errors import PolarError
from polar.types import Strict


class Refused(PolarError):
    status = 400


class Unauthorized(Refused):
    status = 401


class Unknown(Refused):
    status = 404


class NotAcceptable(Refused):
    status = 406


class Conflict(Refused):
    status = 409


class Invalid(Refused):
    status = 422


class Problem(Strict):
    """The body of every answer that is not a success."""

    detail: str
    """What is wrong, and how to put it right."""


def unknown(kind: str, name: str) -> Unknown:
    return Unknown(f"there is no {kind} {name!r}")
