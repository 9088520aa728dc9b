"""What a bridge is configured with: the rollout server, how a row becomes a task, what a trainer takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
from pydantic import Field, SecretStr

from polar.builders.drops import PLAIN
from polar.client import PolarClient
from polar.client.client import DEFAULT_URL
from polar.credit.advantages import Estimator
from polar.errors import ConfigError
from polar.types import CallKind, Sampling, Strict, TaskRequest

TASK_FIELD = "polar"
"""The column or metadata key of a data row that holds fields of its task."""
SYSTEM_ROLES = ("system", "developer")
TEXT_PARTS = ("text", "input_text")


class BridgeConfig(Strict):
    """The same for all bridges. Trainers with a YAML file of their own write it there as a mapping."""

    url: str = DEFAULT_URL
    token: SecretStr | None = None
    """None: the user's control token."""
    task: dict[str, Any] = {}
    """Fields that all tasks share: `harness`, `runtime`, `evaluator`, `budgets`, `staleness` and so on."""
    max_tokens: int | None = Field(default=None, gt=1)
    """Of prompt and response. A longer trace is cut at its end; one whose prompt leaves no room is left out."""
    max_age: int | None = Field(default=None, ge=0)
    """Updates of the policy since a token was sampled. Older tokens stay as context and are not trained on. Needs
    policy versions that are whole numbers."""
    kinds: tuple[CallKind, ...] = ("agent", "subagent", "compaction")
    """What is trained on. Auxiliary calls, such as titles, say little about the task."""
    estimator: Estimator = "grpo"
    """For trainers that take advantages or normalised rewards from the bridge."""

    def client(self) -> PolarClient:
        return PolarClient(self.url, None if self.token is None else self.token.get_secret_value())

    def task_for(self, prompt: Any, fields: Mapping[str, Any] | None = None, samples: int = 1) -> TaskRequest:
        """The task of one data row: the shared fields, then the row's own in `fields["polar"]`.

        The server gives it an id, because a row comes back in every epoch. An id of the row's own stays in the
        metadata as `row`."""
        own = _own_fields((fields or {}).get(TASK_FIELD))
        values: dict[str, Any] = {"instruction": instruction_of(prompt)} | self.task | own
        values["num_samples"] = samples
        if row := values.pop("task_id", None):
            values["metadata"] = {**values.get("metadata", {}), "row": row}
        if values.pop("group_id", None):
            raise ConfigError("a bridge compares the samples of one row; remove group_id from its task")
        return TaskRequest.model_validate(values)


def with_sampling(task: TaskRequest, params: Mapping[str, Any], *, training: bool) -> TaskRequest:
    """The task with a trainer's own sampling parameters, named as for vLLM, unless the task has `sampling`."""
    if "sampling" in task.model_fields_set:
        return task
    given = {name: params[name] for name in (*PLAIN, "max_tokens", "stop") if params.get(name) is not None}
    if "top_k" in given:
        given["top_k"] = max(0, int(given["top_k"]))  # -1 is all tokens, too
    sampling = Sampling.model_validate(given)
    asked = [f"{name} {value:g}" for name in PLAIN if (value := getattr(sampling, name)) != PLAIN[name]]
    if training and asked:
        raise ConfigError(
            f"the trainer samples with {', '.join(asked)}, and such tokens cannot be trained on: in its "
            "configuration set temperature and top_p to 1, top_k to -1 and min_p to 0. If the engine's logprobs "
            "are processed, give the tasks a `sampling` of their own instead"
        )
    return task.model_copy(update={"sampling": sampling})


def _own_fields(value: Any) -> dict[str, Any]:
    """Fields as a mapping, or as JSON in one text: a column of a data set has one type for all of its rows."""
    return orjson.loads(value) if isinstance(value, str) else dict(cast("Mapping[str, Any]", value or {}))


def instruction_of(prompt: Any) -> str:
    """A prompt as trainers have it, a text or chat messages, as the text that a harness is asked. A system message
    comes before the user's: a harness has a system prompt of its own."""
    if isinstance(prompt, str):
        return prompt
    messages = cast("Sequence[Any]", prompt) if isinstance(prompt, Sequence) else ()
    roles = [str(message.get("role")) for message in messages]
    if roles.count("user") != 1 or roles[-1] != "user" or not {*roles} <= {"user", *SYSTEM_ROLES}:
        raise ConfigError(
            "a prompt is a text, or one message of the user, after system messages if any: a harness begins a "
            f"conversation and cannot continue one; this prompt has messages of {', '.join(roles) or 'no role'}"
        )
    return "\n\n".join(text for message in messages if (text := _text_of(message.get("content"))))


def _text_of(content: Any) -> str:
    """Of a message: a text, or parts of text as OpenAI's and Anthropic's APIs have them."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [cast("Mapping[str, Any]", part) for part in cast("Sequence[Any]", content)]
    other = [str(part.get("type")) for part in parts if part.get("type") not in TEXT_PARTS]
    if other:
        raise ConfigError(f"a prompt is text; this one has parts of the type {', '.join(other)}")
    return "\n".join(str(part.get("text") or "") for part in parts)
