#!/usr/bin/env bash
# What docs/training.md says about learning without a GPU: `make train`, tried on more held-out tasks.
#   bash benchmarks/learning_laptop.sh OUT [SEED...]
# In an environment with the extra `train`. Seeds: 0 and 1 if none is given. MINUTES: of each seed, its last evaluation
# not counted.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
learning=$here/examples/learning
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- 0 1
export PYTHONPATH=$learning:${PYTHONPATH:-}
# 50 of each family, before and after.
sed -e 's/^evaluate_tasks = .*/evaluate_tasks = 400/' -e 's/^evaluate_every = .*/evaluate_every = 1000/' \
    "$learning/laptop.toml" >"$out/laptop.toml"
for seed in "$@"; do
    polar train "$out/laptop.toml" --config "$learning/torch.toml" --seed "$seed" --output "$out/seed-$seed" \
        --minutes "${MINUTES:-60}"
done
