#!/bin/sh
# Builds the images polar-server and polar-node: deploy/images.sh [BASE]
#
# BASE is an image with Python 3.11 or newer, venv, git and libgomp1, such as python:3.13. Without it, `polar image
# build` makes one from Debian packages, which needs no image registry. POLAR_WHEEL: a wheel to install instead of
# this checkout.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
base=${1:-polar-deploy}
if [ $# -eq 0 ]; then
    polar image build "$base" --for docker --packages ca-certificates,git,libgomp1,procps,python3,python3-venv >&2
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$here/Dockerfile" "$context"
wheel=${POLAR_WHEEL:-}
if [ -z "$wheel" ]; then
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$context" "$here/.."
    wheel=$(echo "$context"/polar_rollout-*.whl)
fi
version=$(docker run --rm --network none "$base" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -m pip download --quiet --only-binary=:all: --python-version "$version" --dest "$context/wheels" \
    "$wheel[postgres,embedded,node,otel,renderers]"
for target in server node; do
    DOCKER_BUILDKIT=0 docker build --quiet --network none --build-arg BASE="$base" --target "$target" \
        --tag "polar-$target" "$context"
done
