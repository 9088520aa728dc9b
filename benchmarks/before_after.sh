#!/usr/bin/env bash
# Did a change make anything slower? Runs the benchmarks of two checkouts in turn, on one machine, twice.
#
#     benchmarks/before_after.sh OTHER_CHECKOUT [PYTHON]      # about 6 minutes on 16 cores
#
# Compare the rows of the same name: a difference between the two rounds of one side is noise.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
other=$(cd "$1" && pwd)
python=${2:-$here/.venv/bin/python}

measure() { # CHECKOUT
    cd "$1"
    export PYTHONPATH=$1/src${EXTRA_PATH:+:$EXTRA_PATH}
    "$python" benchmarks/gateway.py --only calls --rounds 3 --calls 8 | grep "of CPU per call"
    "$python" benchmarks/gateway.py --only sessions --sessions 64 --contexts 8000 80000 | grep "^| [0-9]"
    "$python" benchmarks/builders.py --tokens 100000 --calls 100 --rounds 3 | grep "^| [a-z]*, "
    "$python" benchmarks/node.py --at-once 8 32 --waves 3 | grep "^| [0-9]"
    "$python" - <<'HELP'
import resource, subprocess, sys
code = "import sys; sys.argv = ['polar', '--help']; from polar.cli.app import main; main()"
subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"polar --help: {used.ru_utime + used.ru_stime:.2f} s of CPU")
HELP
}

for round in 1 2; do
    for side in "$other" "$here"; do
        echo "== round $round, $([ "$side" = "$other" ] && echo before || echo after)"
        (measure "$side")
    done
done
