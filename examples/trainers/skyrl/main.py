"""SkyRL's entry point with Polar's sessions as its rollouts:

    python examples/trainers/rows.py FOLDER
    python examples/trainers/skyrl/main.py generator.step_wise_trajectories=true \
        trainer.algorithm.advantage_estimator=grpo trainer.policy.model.path=MODEL \
        data.train_data=[FOLDER/train.parquet] data.val_data=[FOLDER/test.parquet] \
        generator.n_samples_per_prompt=8 generator.sampling_params.max_generate_length=2048 \
        trainer.placement.colocate_all=false generator.inference_engine.run_engines_locally=false \
        generator.inference_engine.external_server_urls=[http://127.0.0.1:8000]

Nodes of Polar sample from the same vLLM server (docs/engines.md), to which SkyRL sends its weights.
"""

from __future__ import annotations

import sys
from typing import Any

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.skyrl import Generator

CONFIG = BridgeConfig(
    max_tokens=16384,
    task={
        "harness": {"name": "pi", "options": {"tools": ["bash"]}},
        "runtime": "bubblewrap",
        "budgets": {"run_s": 240, "max_calls": 6},
    },
)


class PolarExp(BasePPOExp):
    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Generator:
        return Generator(CONFIG)


@ray.remote(num_cpus=1)
def train(cfg: SkyRLTrainConfig) -> None:
    PolarExp(cfg).run()


if __name__ == "__main__":
    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(train.remote(cfg))
