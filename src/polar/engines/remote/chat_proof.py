"""The self-test of chat mode: what an engine must show before sessions may let it lay prompts out."""

from __future__ import annotations

from contextlib import aclosing

from polar.engines.base import ChatEngine, ChatPiece, ChatPrompt
from polar.engines.remote.proof import one_piece
from polar.errors import ChatRefused, EngineDefect, EngineError
from polar.types import Message, Sampling, Tool, token_ids

SAID = "Say hi to the moon."
TOKENS = 12
TOOL = Tool(
    name="look",
    description="Looks into a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
ADVICE = "see docs/engines.md for the versions and flags that chat mode needs"


async def prove_conversing(engine: object) -> None:
    """Two short conversations, the second with a tool. Raises `EngineError`, naming the fix."""
    if not isinstance(engine, ChatEngine):
        raise EngineError("this engine has no chat mode: use `vllm` or `sglang`, or leave chat mode off")
    try:
        await _prove(engine, _asked(()))
        await _prove(engine, _asked((TOOL,)))
    except ChatRefused as error:
        raise EngineError(f"the engine does not take a short conversation: {error}; {ADVICE}") from error


def _asked(tools: tuple[Tool, ...]) -> ChatPrompt:
    return ChatPrompt(
        messages=(Message(role="user", content=SAID),),
        tools=tools,
        sampling=Sampling(),
        stop=(),
        session_id="start-up",
        max_tokens=TOKENS,
        seed=1,
    )


async def _prove(engine: ChatEngine, asked: ChatPrompt) -> None:
    async with aclosing(engine.converse(asked)) as pieces:
        heard = [piece async for piece in pieces]
    _check_pieces(heard)
    prompt_ids = heard[0].prompt_ids or token_ids()
    piece = one_piece([part.piece for part in heard])
    if len(piece.ids) != len(piece.logprobs) or not piece.ids:
        raise EngineDefect(
            f"the engine gave {len(piece.ids)} ids and {len(piece.logprobs)} logprobs for a short conversation; "
            f"{ADVICE}"
        )
    if not all(value <= 1e-3 for value in piece.logprobs):  # NaN is neither
        raise EngineDefect(
            "the engine gave no usable logprobs for a short conversation: "
            f"{[round(value, 3) for value in piece.logprobs]}; {ADVICE}"
        )
    text = await engine.decode(prompt_ids + piece.ids)
    if SAID not in text:
        raise EngineDefect(f"the engine's ids do not spell what it was told: {text[:300]!r}; {ADVICE}")


def _check_pieces(heard: list[ChatPiece]) -> None:
    if not heard or not heard[0].prompt_ids:
        raise EngineDefect(f"the engine did not tell the ids of the prompt it laid out; {ADVICE}")
    if [part.piece.finish_reason is not None for part in heard] != [False] * (len(heard) - 1) + [True]:
        raise EngineDefect(f"the engine did not say at the end of a reply, and only there, why it ended; {ADVICE}")
