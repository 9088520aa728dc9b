"""A rollout server in the middle of its work, for the dashboard: nodes well and sick, queues, results, curves."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from fake_node import CONTROL, FakeNode, Service
from polar.client import SyncPolarClient
from polar.types import Stage, TaskRequest, TrainingPoint

HARNESSES = ("codex", "claude_code", "qwen_code")
ENGINE = {"engine": "vllm", "model": "Qwen/Qwen3-8B"}
FAILURES: list[dict[str, Any]] = [
    {"where": "engine", "type": "EngineUnavailable", "message": "no answer for 60 s", "policy": False},
    {"where": "evaluator", "type": "EvaluatorFailed", "message": "the judge answered 503", "policy": False},
    {"where": "harness", "type": "HarnessFailed", "message": "exit code 1", "policy": True},
    {"where": "harness", "type": "ContextOverflow", "message": "40,960 tokens", "policy": True},
]


def client_of(service: Service) -> SyncPolarClient:
    return SyncPolarClient(service.url, CONTROL)


def task(task_id: str, samples: int = 8, harness: str = "codex", **fields: Any) -> TaskRequest:
    values = {"task_id": task_id, "num_samples": samples, "harness": {"name": harness}, **fields}
    return TaskRequest.model_validate({"instruction": "Repair the failing test.", **values})


def busy(service: Service, groups: int = 14) -> list[FakeNode]:
    """Finished groups, open ones, a queue with a task that no node can run, three nodes of which one is sick, and
    two training runs."""
    chance = random.Random(7)
    nodes = [
        FakeNode(service.url, f"gpu-{number}:4711", slots, **ENGINE, labels=["gpu", f"rack:{number}"])
        for number, slots in enumerate((16, 16, 8), 1)
    ]
    first = nodes[0]
    with client_of(service) as client:
        client.set_policy_version("step-41")
        for number in range(groups):
            client.submit(task(f"django-{11000 + 37 * number}", 8, HARNESSES[number % 3]))
            first.lease(8)
            _finish(first, chance, solved=(0.0, 0.2, 0.5, 0.8, 1.0)[number % 5])
        for number in range(6):
            client.submit(task(f"sympy-{20100 + 13 * number}", 8, HARNESSES[number % 3]))
        client.submit(task("needs-a-tpu", 3, needs={"labels": ["tpu"]}))
        report_curves(client)
    work(nodes[0], 12)
    work(nodes[1], 9)
    sick = {"part": "engine", "why": "HTTP 503 from the engine: out of memory", "since": time.time() - 140}
    nodes[2].report(sick=sick)
    return nodes


def work(node: FakeNode, sessions: int) -> None:
    """Leases, and reports twice, so that the server knows rates."""
    held = node.lease(sessions)
    stages = (Stage.RUNNING, Stage.RUNNING, Stage.RUNNING, Stage.INIT, Stage.POSTRUN, Stage.READY)
    shown = {session: stages[place % len(stages)] for place, session in enumerate(held)}
    node.report({each: Stage.INIT for each in held}, use=use_of(100))
    node.report(shown, use=use_of(140), generating=sum(stage is Stage.RUNNING for stage in shown.values()))


def use_of(calls: int) -> dict[str, float]:
    tokens = {"prompt_tokens": calls * 5200, "sampled_tokens": calls * 310}
    times = {"first_token_s": calls * 0.42, "call_s": calls * 3.9}
    return {"calls": calls, "sampled_calls": calls, "failed_calls": calls // 50, **tokens, **times}


def report_curves(client: SyncPolarClient, runs: int = 2, steps: int = 60) -> None:
    chance = random.Random(11)
    for run in range(runs):
        points: list[TrainingPoint] = []
        for step in range(1, steps + 1 - 20 * run):
            level = 0.15 + (0.62 - 0.2 * run) * (1 - math.exp(-step / 22))
            metrics = {
                "reward": min(1.0, max(0.0, chance.gauss(level, 0.07))),
                "loss": 0.4 * math.exp(-step / 25) + abs(chance.gauss(0, 0.02)),
                "entropy": 1.4 * math.exp(-step / 90) + chance.gauss(0, 0.02),
                "kl": 0.002 * step + abs(chance.gauss(0, 0.004)),
                "grad_norm": abs(chance.gauss(0.9, 0.2)),
                "tokens": 40_000 + 300 * step,
            }
            points.append(TrainingPoint(step=step, metrics=metrics))
            if step % 10 == 0:
                held_out = {"reward": level * 0.82, "pass@1": level * 0.8}
                points.append(TrainingPoint(step=step, phase="eval", metrics=held_out))
        client.report_training(f"grpo-{'ab'[run]}", points)


def _finish(node: FakeNode, chance: random.Random, solved: float) -> None:
    for place, session in enumerate(list(node.held)):
        if place == 3 and chance.random() < 0.5:
            failure = chance.choice(FAILURES)
            stage = Stage.FAILED if not failure["policy"] else Stage.COMPLETED
            node.finish(session, reward=0.0 if failure["policy"] else None, failure=failure, stage=stage)
        else:
            reward = 1.0 if chance.random() < solved else 0.0
            node.finish(session, reward=reward, policy_updates=chance.choice((0, 0, 0, 1, 1, 2)))
        del node.held[session]
