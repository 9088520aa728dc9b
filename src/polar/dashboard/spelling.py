"""How the tokens of a session become text: by the model's renderer, or as numbers where it cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable

from polar import registry
from polar.errors import PolarError
from polar.tokens.base import Renderer
from polar.types import Spec, TokenIds

Spelling = Callable[[TokenIds], str]

NUMBERS = "Tokens are shown as numbers: "
OF_THE_ENGINE = "only the engine of this run can spell them."
OF_A_SERVER = (
    "this process cannot spell them. Give `[model]` in its polar.toml the renderer of the nodes, or run "
    "`polar view --server URL SESSION` where that renderer is."
)


async def spelling(renderer: Spec | None) -> Spelling:
    """Decodes tokens to text; to numbers without a renderer, where only the engine knows the text."""
    if renderer is None:
        return lambda ids: " ".join(map(str, ids))
    loaded: Renderer = registry.make("renderer", renderer)
    await loaded.load()
    return loaded.decode


async def spelling_or_numbers(renderer: Spec | None, why_none: str = OF_THE_ENGINE) -> tuple[Spelling, str]:
    """With the reason if tokens become numbers. `why_none`: the reason if there is no renderer, which says how
    to get one. Load it once: a renderer takes seconds and megabytes."""
    if renderer is None:
        return await spelling(None), NUMBERS + why_none
    try:
        return await spelling(renderer), ""
    except PolarError as error:
        return await spelling(None), f"{NUMBERS}{error}"
