#!/usr/bin/env bash
# verl's V1 trainer on one machine with GPUs: bash examples/trainers/verl/train.sh MODEL FOLDER [verl's settings]
#
# Before: pip install 'polar-rollout[verl]' vllm; python examples/trainers/rows.py FOLDER; polar server
# verl prints the address of the vLLM that it starts (`LLMServerManager: [...]`). Start a node of Polar with that
# address as its engine's url (`polar gateway`, docs/engines.md). Until then the sessions wait at the server.
set -euo pipefail
model=$1 folder=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
exec python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=false \
    data.train_files="$folder/train.parquet" \
    data.val_files="$folder/test.parquet" \
    data.train_batch_size=8 \
    data.max_prompt_length=8192 \
    data.max_response_length=8192 \
    actor_rollout_ref.model.path="$model" \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.use_dynamic_bsz=true \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.calculate_log_probs=true \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent_loops.yaml" \
    trainer.n_gpus_per_node=1 \
    trainer.logger='[console]' \
    trainer.test_freq=10 \
    "$@"
