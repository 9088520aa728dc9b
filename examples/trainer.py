"""A trainer's point of view: a group of samples in, rewards and trainable tokens out, each as soon as it is there.

Start a server with a node in one terminal, `polar up`, and in another: `python examples/trainer.py [URL]`.
"""

from __future__ import annotations

import sys
from collections import Counter

import polar

EVALUATOR = {"name": "test_on_output", "options": {"command": "cat answer.txt", "expect_pattern": "^hello$"}}
TASK = {
    "instruction": "Write the word hello into the file answer.txt.",
    "num_samples": 4,
    "harness": {"name": "pi", "options": {"tools": ["bash"]}},
    "evaluator": EVALUATOR,
    "sampling": {"max_tokens": 128},
    "budgets": {"run_s": 240, "max_calls": 6},
}


def main(*url: str) -> None:
    with polar.SyncPolarClient(*url) as client:
        task = client.submit(TASK)
        rewards: list[float] = []
        left_out: Counter[str] = Counter()
        for entry in client.results(task_ids=[task.task_id]):
            result = entry.result
            if not result.trainable or result.reward is None:
                why = result.untrainable_reason
                left_out[why] += 1
                print(f"{result.session_id}: left out ({why}): {result.stage}, {result.failure}")
                continue
            rewards.append(result.reward)
            tokens = [trace.trainable_tokens for trace in client.trajectory(result.session_id).traces]
            print(f"{result.session_id}: reward {result.reward}, trainable tokens of its traces {tokens}")
        print(f"baseline {sum(rewards) / len(rewards):.2f} of {len(rewards)}" if rewards else "no rewards")
        print(f"left out: {dict(left_out) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
