"""A runtime whose `python3` has pytest, for tests of evaluators that run it."""

from __future__ import annotations

import pytest

from polar import registry
from polar.errors import RuntimeFailure
from polar.runtimes.base import Runtime
from polar.runtimes.images.build import ImageOrder, build, recipe
from polar.types import Spec
from skips import skip_without_runtime

IMAGE = "polar-pytest"
PACKAGES = ("git", "python3", "python3-pytest")
"""As docs/swe_set.md says."""


async def spec_with_pytest(name: str) -> Spec:
    """Builds the image where there is none. Skips where this machine lacks the runtime."""
    runtime: type[Runtime] = registry.find("runtime", name)
    skip_without_runtime(name, await runtime.lacking())
    if name == "local":
        return Spec(name=name)
    try:
        await build(ImageOrder(IMAGE, recipe("debian", PACKAGES, None)), lambda step: None)
    except RuntimeFailure as error:
        pytest.skip(f"{name}: an image with pytest cannot be built: {error}")
    return Spec(name=name, options={"image": IMAGE})
