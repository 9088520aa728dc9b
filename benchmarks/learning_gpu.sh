#!/usr/bin/env bash
# What docs/training.md says about learning tasks of several steps, on one GPU, the most important first:
#   bash benchmarks/learning_gpu.sh MODEL OUT
# MODEL: the safetensors that a vLLM at 127.0.0.1:8000 serves. OUT: results; OUT/log has what the commands print.
set -u
model=$1 out=$2
minutes=${MINUTES:-9}
here=$(cd "$(dirname "$0")/.." && pwd)
learning=$here/examples/learning
mkdir -p "$out" && cd "$out" && exec >>log 2>&1
export PYTHONPATH=$learning:${PYTHONPATH:-}

polar() { python3 -c "from polar.cli.app import main; main()" "$@"; }
step() { echo "== $(date +%T) $*" >&2; "$@" || echo "== failed: $*" >&2; }
evaluate() { # NAME CONFIG TASKS [flags]: writes NAME.json
    step polar eval "$3" --config "$learning/$2" --json "${@:4}" >"$1.json"
}
others() { # NAME: without worked examples, and through another harness
    evaluate "$1-plain" vllm_plain.toml some.jsonl
    evaluate "$1-claude" vllm_steps.toml some.jsonl --harness 'claude_code:{"bare": true}'
}

python3 "$learning/families.py" held_out 600 >all.jsonl
head -n 96 all.jsonl >some.jsonl # 8 of each family
until curl -sf -m 2 -o /dev/null http://127.0.0.1:8000/health; do sleep 1; done
python3 "$learning/families.py" demonstrated 240 >demonstrated.jsonl
step polar generate demonstrated.jsonl --out data --split 100/0 --split-by family --attempts 1 --to tokens \
    --config "$learning/demonstrations.toml"
# Not before vLLM is up: it fails if the GPU's free memory changes while it starts.
step python3 "$here/examples/sft/train.py" data/tokens --model "$model" --out warm --epochs 2
evaluate base vllm_steps.toml all.jsonl
others base
for seed in 0 1; do
    step polar train "$learning/gpu.toml" --config "$learning/vllm_steps.toml" --workers 2 --model "$out/warm" \
        --output "$out/seed-$seed" --seed "$seed" --minutes "$minutes"
done
others trained
step python3 "$here/benchmarks/ablation.py" --config "$learning/vllm.toml" --model "$model" --workers 2 --ahead 0 1
echo "== $(date +%T) done"
