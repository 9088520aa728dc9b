#!/usr/bin/env bash
# After all folders were received: `serve.sh ROOT [flags of vLLM]` starts vLLM at 127.0.0.1:8000, which takes new weights
# also by IPC, and waits until it answers.
set -euo pipefail
root=$(cd "$1" && pwd)
for mark in site vllm ray kernels moe model; do
    until [ -e "$root/marks/$mark" ]; do sleep 0.2; done
done
source "$root/env"
export VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_INSECURE_SERIALIZATION=1
cd /tmp
setsid python3 -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --model "$root/model" --served-model-name m \
    --dtype bfloat16 --max-model-len 8192 --max-num-seqs 256 --gpu-memory-utilization 0.3 \
    --weight-transfer-config '{"backend": "ipc"}' "${@:2}" >"$root/vllm.log" 2>&1 </dev/null &
server=$!
until curl -sf -m 2 -o /dev/null http://127.0.0.1:8000/health; do
    kill -0 $server 2>/dev/null || { tail -n 40 "$root/vllm.log"; exit 1; }
    sleep 0.3
done
