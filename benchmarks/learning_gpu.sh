#!/usr/bin/env bash
# What docs/training.md says about learning tasks of several steps, on one GPU, the most important first:
#   bash benchmarks/learning_gpu.sh MODEL OUT [STAGE...]
# MODEL: the safetensors that a vLLM at 127.0.0.1:8000 serves. OUT: results; OUT/log has what the commands print.
# Stages: base base-others seed-N others ablation async, and weights, ipc, trl, which need a vLLM that takes weights
# by IPC (docs/weights.md). Without a stage: all but those three, with two seeds.
# CONFIG: of the seeds, gpu.toml or joined.toml. MINUTES: of each seed, its last evaluation not counted.
set -u
model=$1 out=$2
shift 2
minutes=${MINUTES:-9}
config=${CONFIG:-gpu.toml}
here=$(cd "$(dirname "$0")/.." && pwd)
learning=$here/examples/learning
mkdir -p "$out" && cd "$out" && exec >>log 2>&1
export PYTHONPATH=$learning:${PYTHONPATH:-}

program="from polar.cli.app import main; main()"
polar() { python3 -c "$program" "$@"; }
step() { echo "== $(date +%T) $*" >&2; "$@" || echo "== failed: $*" >&2; }
evaluate() { # NAME CONFIG TASKS [flags]: writes NAME.json
    step polar eval "$3" --config "$learning/$2" --json "${@:4}" >"$1.json"
}
demonstrations() {
    python3 "$learning/families.py" demonstrated 240 >demonstrated.jsonl
    step polar generate demonstrated.jsonl --out data --split 100/0 --split-by family --attempts 1 \
        --to tokens --config "$learning/demonstrations.toml"
}
warm_start() { # SEED
    [ ! -d "warm-$1" ] || return 0
    step python3 "$here/examples/sft/train.py" data/tokens --model "$model" --out "warm-$1" --epochs 2 --seed "$1"
}
train() { # NAME CONFIG [flags]
    step polar train "$2" --config "$learning/vllm_steps.toml" --workers 2 --output "$out/$1" "${@:3}"
}
variant() { # NAME STEPS EDIT: a few steps of CONFIG without evaluation, changed by a sed program
    sed -e "$3" -e "s/^steps = .*/steps = $2/" -e '/^evaluate/d' "$learning/$config" >"$1.toml"
    warm_start 0
    train "$1" "$1.toml" --model "$out/warm-0"
}
others() { # NAME: the weights that the engine has now, without worked examples and through another harness
    evaluate "$1-without-examples" vllm_plain.toml some.jsonl
    evaluate "$1-claude-code" vllm_steps.toml some.jsonl --harness 'claude_code:{"bare": true}'
}
ablation() {
    step python3 "$here/benchmarks/ablation.py" --config "$learning/vllm.toml" --model "$model" --workers 2 \
        --groups 4 --samples 8 --output "$out/ablation" "$@"
}

trl() { # without network TRL has no attention kernel; PyTorch computes the same
    python3 -c "$program" up --config "$learning/vllm.toml" --workers 2 & # not `polar`: a signal would reach its subshell
    local service=$!
    until curl -sf -m 2 -o /dev/null http://127.0.0.1:8700/readyz; do sleep 0.5; done
    step timeout 300 python3 "$learning/trl_async.py" "$model" --out "$out/trl" --steps "${TRL_STEPS:-15}" --transfer ipc \
        --plain-attention
    kill $service && wait $service
}

python3 "$learning/families.py" held_out 800 >all.jsonl
head -n 128 all.jsonl >some.jsonl # 8 of each family
[ $# -gt 0 ] || set -- base base-others seed-0 seed-1 others ablation async
case " $* " in *" seed-"* | *" async "*) demonstrations ;; esac # a script solves these tasks: no GPU, so while vLLM starts
# Nothing else may use the GPU before vLLM is up: it fails if the free memory changes while it starts.
until curl -sf -m 2 -o /dev/null http://127.0.0.1:8000/health; do sleep 1; done
for stage in "$@"; do
    case $stage in
    base) evaluate base vllm_steps.toml all.jsonl ;;
    base-others) others base ;;
    seed-*)
        warm_start "${stage#seed-}"
        train "$stage" "$learning/$config" --model "$out/warm-${stage#seed-}" --seed "${stage#seed-}" --minutes "$minutes"
        ;;
    others) others trained ;;
    ablation)
        ablation --builders prefix_merging tree per_request --ahead 1
        ablation --builders prefix_merging tree --ahead 0
        ;;
    async)
        variant asynchronous 6 's/^ahead = .*/ahead = 1/'
        variant synchronous 6 's/^ahead = .*/ahead = 0/'
        ;;
    ipc) # what is tried is the transfer: no warm start
        { grep -v '^evaluate' "$learning/one_step.toml" && printf '\n[rollout]\ntransfer = "ipc"\n'; } |
            sed -e 's/^groups = .*/groups = 8/' -e 's/^samples = .*/samples = 8/' -e 's/^steps = .*/steps = 4/' >ipc.toml
        step polar train ipc.toml --config "$learning/vllm.toml" --workers 2 --output "$out/ipc" --model "$model"
        ;;
    weights)
        step python3 "$here/benchmarks/weight_updates.py" --model "$model" --transfer disk ipc --rounds 3 \
            --json "$out/weights.json"
        ;;
    trl) trl ;;
    *) echo "== unknown stage: $stage" ;;
    esac
done
echo "== $(date +%T) done"
