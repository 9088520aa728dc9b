"""Building blocks of the other types: strict models, ids, compact token arrays."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

if TYPE_CHECKING:
    TokenIds = array[int]
    Logprobs = array[float]
    LossMask = array[int]
else:  # array is not subscriptable at run time before Python 3.12
    TokenIds = Logprobs = LossMask = array

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Ids become folder names: no separator, no dot at the beginning."""

Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]

MAX_COUNT = 2**31 - 1
"""The largest value of an integer column in the database."""
MAX_CURSOR = 2**63 - 1


def is_id(text: str) -> bool:
    return re.fullmatch(ID_PATTERN, text) is not None


def token_ids(values: Iterable[int] = ()) -> TokenIds:
    return array("i", values)


def logprobs(values: Iterable[float] = ()) -> Logprobs:
    return array("f", values)


def loss_mask(values: Iterable[int] = ()) -> LossMask:
    return array("b", values)


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
