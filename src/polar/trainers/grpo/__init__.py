"""The reference trainer: asynchronous GRPO over the rollout service. `loop.py` is where to start reading."""
