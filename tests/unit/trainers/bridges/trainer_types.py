"""The types of other trainers. Where a package is installed its own are used, else doubles with the same fields,
as published in the versions that docs/trainers.md names."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def provide(patch: pytest.MonkeyPatch, module: str, **names: Any) -> None:
    """The double of a module, with its parents."""
    parts = module.split(".")
    for size in range(1, len(parts)):
        parent = ".".join(parts[:size])
        if parent not in sys.modules:
            patch.setitem(sys.modules, parent, ModuleType(parent))
    double = ModuleType(module)
    double.__dict__.update(names)
    patch.setitem(sys.modules, module, double)


class SampleStatus(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class SlimeSample:
    Status = SampleStatus
    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None


@dataclass
class SlimeTrainOutput:
    samples: list[Any]
    metrics: dict[str, Any] | None = None


@dataclass
class SlimeEvalOutput:
    data: dict[str, Any]
    metrics: dict[str, Any] | None = None


def provide_slime(patch: pytest.MonkeyPatch) -> None:
    if not is_installed("slime.utils.types"):
        provide(patch, "slime.utils.types", Sample=SlimeSample)
        provide(
            patch,
            "slime.rollout.base_types",
            RolloutFnTrainOutput=SlimeTrainOutput,
            RolloutFnEvalOutput=SlimeEvalOutput,
        )


class VerlMetrics(BaseModel):
    model_config = ConfigDict(extra="forbid")
    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class VerlOutput(BaseModel):
    model_config = ConfigDict(extra="forbid")
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: VerlMetrics
    extra_fields: dict[str, Any] = {}


def provide_verl(patch: pytest.MonkeyPatch) -> None:
    module = "verl.experimental.agent_loop.agent_loop"
    if is_installed(module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it imports warns of what it uses
            import_module(module)
    else:
        provide(patch, module, AgentLoopOutput=VerlOutput, AgentLoopMetrics=VerlMetrics)
