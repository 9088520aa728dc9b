"""A plan made of a command's options; what is wrong with them is one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from polar.types import Strict

Plan = TypeVar("Plan", bound="Strict")


def checked_plan(kind: type[Plan], **fields: Any) -> Plan:
    from pydantic import ValidationError

    from polar.errors import PolarError, field_problems

    try:
        return kind(**fields)
    except ValidationError as error:
        raise PolarError("; ".join(map(str, field_problems(error, kind)))) from error
