"""The options of the evaluator `judge`: which model judges, by which rubric, and what it sees."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, FiniteFloat, field_validator, model_validator

from polar.types import Strict

SHOWN = Literal["transcript", "answer", "patch", "output"]
WHOLE = "score"
"""The name of the one criterion of a rubric that is a text."""
OURS = frozenset({"model", "messages", "stream", "n", "response_format", "temperature"})
"""Fields of a request that `body` may not replace."""


class Criterion(Strict):
    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
    asks: str = Field(min_length=1, max_length=20_000)
    """What the judge has to score."""
    weight: FiniteFloat = Field(default=1.0, gt=0)
    """The reward is the weighted mean of the criteria."""


class ScoreRange(Strict):
    """The numbers that the judge may give; the reward is 0.0 at `low` and 1.0 at `high`."""

    low: FiniteFloat = 0.0
    high: FiniteFloat = 10.0
    whole: bool = False
    """Only whole numbers, to which more endpoints can constrain a reply."""

    @model_validator(mode="after")
    def _is_a_range(self) -> ScoreRange:
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self

    def reward(self, number: float) -> float:
        return (number - self.low) / (self.high - self.low)


class JudgeOptions(Strict):
    base_url: str
    """Of an OpenAI-compatible API: `/chat/completions` follows it. The operator of the node allows it in
    `permits.endpoints` of its polar.toml."""
    model: str = Field(min_length=1)
    rubric: str | tuple[Criterion, ...] = Field(min_length=1)
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The variable of the node's environment with the key. The key itself does not belong into a task."""
    scale: ScoreRange = ScoreRange()
    per: Literal["session", "call"] = "session"
    """call: each of the agent's calls gets a reward of its own (`Score.call_rewards`), and the session's is their
    mean."""
    sees: tuple[SHOWN, ...] = Field(default=("transcript",), min_length=1)
    """Beside the instruction. `answer`: the agent's last message; `patch` needs `keep.patch`; `output`: what the
    harness printed."""
    cap_chars: int = Field(default=60_000, ge=1000)
    """Limit of each of these parts. What is left out is marked in its place."""
    temperature: float | None = Field(default=0.0, ge=0)
    """None: the endpoint's default."""
    votes: int = Field(default=1, ge=1, le=15)
    """Verdicts to ask for. The median of each number counts."""
    timeout_s: float = Field(default=120.0, gt=0)
    """For each request."""
    retries: int = Field(default=4, ge=0, le=20)
    """Further tries of a request, with growing pauses, if the endpoint is busy, fails or cannot be reached."""
    constrain: Literal["json_schema", "json_object", "none"] = "json_schema"
    """The `response_format` to ask for. The verdict is checked in any case."""
    reason_chars: int | None = Field(default=None, gt=0)
    """Limit of a reason in the schema, for small models that find no end. Not all endpoints know `maxLength`."""
    max_tokens: int | None = Field(default=2048, gt=0)
    """Limit of a verdict, thinking included."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The endpoint's name of this limit."""
    body: dict[str, Any] = {}
    """Further fields of each request, such as `{ reasoning_effort = "low" }`."""

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of an API; write it as https://host/v1")
        if "@" in parts.netloc:
            raise ValueError("the address must not contain a key: name an environment variable in `api_key_env`")
        if parts.query or parts.fragment or ".." in parts.path:
            raise ValueError(f"{url!r} is more than an address; leave out `?`, `#` and `..`")
        return url.rstrip("/")

    @field_validator("body")
    @classmethod
    def _leaves_ours(cls, body: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OURS & body.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be set here")
        return body

    @model_validator(mode="after")
    def _fits_together(self) -> JudgeOptions:
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) < len(names):
            raise ValueError("rubric: each criterion needs a name of its own")
        if self.votes > 1 and self.temperature == 0:
            raise ValueError("votes: at temperature 0 they are all the same; set temperature too, such as 0.7")
        if self.per == "call" and "transcript" not in self.sees:
            raise ValueError('per = "call" needs "transcript" in sees')
        return self

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        rubric = self.rubric
        return (Criterion(name=WHOLE, asks=rubric),) if isinstance(rubric, str) else rubric
