#!/usr/bin/env bash
# On the GPU machine, for each folder of pack.sh: `receive.sh FOLDER ROOT` takes its files and unpacks them in the
# background. ROOT/marks has a file for each archive that is ready.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
part=$(cd "$1" && pwd)
mkdir -p "$2"/{parts,marks,site,cache/npm,bin}
root=$(cd "$2" && pwd)
files=("$part"/*)
mv "${files[@]}" "$root/parts/"

background() { # MARK COMMAND: the mark is made if the command succeeds
    setsid bash -c "cd '$root' && { $2; } && touch marks/$1" >>"$root/receive.log" 2>&1 </dev/null &
}
site() { # ARCHIVE: compiled, so that each of many processes starts sooner
    background "$1" "tar xJf parts/$1.txz -C site && { python3 -m compileall -q -j 8 site || true; }"
}

cat >"$root/env" <<ENV
export PYTHONPATH=$here/src:$root/site POLAR_CACHE=$root/cache PATH=$root/bin:\$PATH HF_HUB_OFFLINE=1
ENV
weights=$(cd "$here/src" && python3 -c "
import ast
names = {t.id: v for n in ast.parse(open('polar/store/weights.py').read()).body if isinstance(n, ast.Assign)
         for t in n.targets if isinstance(t, ast.Name) for v in [n.value]}
digest = ast.literal_eval(names['GGUF_SHA256'])
print(f'smollm2-135m-instruct-q4_1-{digest[:16]}/' + ast.literal_eval(names['GGUF_NAME']))")
for file in "${files[@]}"; do
    case $(basename "$file") in
    site.txz | vllm.txz | ray.txz | kernels.txz | moe.txz) site "$(basename "$file" .txz)" ;;
    npm.txz) background npm "tar xJf parts/npm.txz -C cache/npm" ;;
    bwrap.txz) background bwrap "tar xJf parts/bwrap.txz && ln -sf $root/bwrap/bwrap bin/bwrap" ;;
    gguf.2) # vLLM is started from weights in safetensors whose head is not tied (docs/weights.md)
        background model "
            mkdir -p 'cache/weights/$(dirname "$weights")' && cat parts/gguf.1 parts/gguf.2 >'cache/weights/$weights'
            until [ -e marks/site ]; do sleep 0.2; done; source '$root/env'; cd /tmp
            tied=\$(python3 -c 'import asyncio; from polar.engines.torch.default_model import default_model
print(asyncio.run(default_model()))') && python3 -m polar.trainers.weights.untie \"\$tied\" '$root/model'"
        ;;
    esac
done
