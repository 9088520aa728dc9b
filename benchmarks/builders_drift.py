"""Sessions whose prompts drift, and what the three rules for it make of them.

An engine that lays prompts out itself encodes the conversation anew for each call. Here that is done with the
vocabulary of the default model: a reply is sampled in a spelling that its own text does not encode to (one token
in two parts, as a sampling model now and then does), or with reasoning that the next prompt leaves out. Whether
the next call continues it or drifts is then found out by comparing tokens, as the gateway does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence

from polar import registry
from polar.audit.certificate import certify
from polar.builders.base import Builder
from polar.store.trajectories import packed
from polar.store.weights import default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary
from polar.tokens.sequences import digest_of
from polar.types import Call, CallTimes, Message, Spec, TokenIds, logprobs, token_ids

HEAD = ["session, rule", "calls", "calls that drift", "traces", "tokens in traces", "trained / sampled"]
HEAD += ["merge rate", "inexact traces", "file, kB"]
SESSIONS = {"one reply in ten respelled": 0.1, "each reply respelled": 1.0, "reasoning left out": None}
"""By how many replies come back in other tokens; None: all come back without their reasoning."""
RULES = {rule: Spec(name="prefix_merging", options={"drift": rule}) for rule in ("fork", "heal", "splice")}
RULES |= {"tree": Spec(name="tree")}
WORDS = (
    'the file has two lines and one of them says {"path": "src/main.py", "limit": 20} while return value equals '
    "naïve façade 東京 to build configuration unbelievable indentation tokenizer so that nothing is lost"
).split()
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


class DriftingTalk:
    """A session while it grows: calls as the gateway stores them in chat mode."""

    def __init__(self, vocabulary: Vocabulary, respelled: float | None, seed: int) -> None:
        self._vocabulary = vocabulary
        self._respelled = respelled
        self._chance = random.Random(seed)
        self._end = vocabulary.control("<|im_end|>")
        self._opening = [vocabulary.control("<|im_start|>"), *vocabulary.encode("assistant\n")]
        self._history = token_ids()
        """As the engine lays it out, without what opens a reply."""
        self._tokens: TokenIds = token_ids()
        """Prompt and completion of the last call."""
        self.calls: list[Call] = []

    def add(self, new_tokens: int) -> None:
        said = self._text(new_tokens * 2 // 3)
        self._history.extend(self._turn("user", said))
        prompt = self._history + token_ids(self._opening)
        reply, answer, completion = self._reply(max(4, new_tokens // 3))
        continues = bool(self.calls) and prompt[: len(self._tokens)] == self._tokens
        before = self.calls[-1] if self.calls else None
        number = len(self.calls)
        echo = (before.response,) if before else ()
        self.calls.append(
            Call(
                call_id=f"c{number}",
                session_id="s",
                parent_id=before.call_id if before else None,
                continues=continues,
                new_prompt_ids=prompt[len(self._tokens) :] if continues else prompt,
                completion_ids=completion,
                logprobs=logprobs([-0.5] * len(completion)),
                prompt_digest=digest_of(prompt),
                prompt_tokens=len(prompt),
                finish_reason="stop",
                new_messages=(*echo, Message(role="user", content=said)),
                response=Message(role="assistant", content=answer, reasoning=reply.removesuffix(answer)),
                tools=None if before else (),
                new_items=(f"reply {number}".encode(), f"message {number}".encode()),
                shared_items=2 * number,
                dialect="openai_chat",
                kind="agent",
                sampling=PLAIN,
                engine="none",
                logprob_mode="raw",
                times=CallTimes(0.0, 0.0, 0.0),
                received=True,
                break_reason="" if continues or not before else self._why(),
            )
        )
        self._tokens = prompt + completion
        self._history.extend(self._turn("assistant", answer))

    def _why(self) -> str:
        return "rewritten" if self._respelled is None else "retokenised"

    def _reply(self, tokens: int) -> tuple[str, str, TokenIds]:
        """What was sampled, what of it the next prompt has, and the sampled ids."""
        answer = self._text(tokens)
        if self._respelled is None:
            reply = f"<think>{self._text(tokens)}</think>{answer}"
            return reply, answer, token_ids([*self._vocabulary.encode(reply), self._end])
        ids = self._vocabulary.encode(answer)
        if self._chance.random() < self._respelled:
            ids = self._other_spelling(ids)
        return answer, answer, token_ids([*ids, self._end])

    def _other_spelling(self, ids: list[int]) -> list[int]:
        """The same text with one token in two parts, anywhere."""
        text = self._vocabulary.decode(ids)
        for position in self._chance.sample(range(len(ids)), len(ids)):
            token = self._vocabulary.decode(ids[position : position + 1])
            parts = [self._vocabulary.encode(part) for part in (token[:1], token[1:])]
            other = [*ids[:position], *parts[0], *parts[1], *ids[position + 1 :]]
            if other != ids and self._vocabulary.decode(other) == text:
                return other
        return ids

    def _turn(self, role: str, text: str) -> TokenIds:
        encode, start = self._vocabulary.encode, self._opening[0]
        return token_ids([start, *encode(f"{role}\n{text}"), self._end, *encode("\n")])

    def _text(self, tokens: int) -> str:
        """About so many tokens of text."""
        return " ".join(self._chance.choices(WORDS, k=max(1, tokens // 2)))


def drift_rows(calls: int, tokens: int) -> Iterator[list[str]]:
    vocabulary = load_vocabulary(asyncio.run(default_weights()))
    for name, respelled in SESSIONS.items():
        talk = DriftingTalk(vocabulary, respelled, seed=calls)
        for _ in range(calls):
            talk.add(max(12, tokens // calls))
        for rule, spec in RULES.items():
            yield _row(f"{name}, {rule}", spec, talk.calls)


def _row(name: str, spec: Spec, calls: Sequence[Call]) -> list[str]:
    builder: Builder = registry.make("builder", spec)
    trajectory = builder.build("s", calls)
    certificate = certify(calls, trajectory)
    if certificate.findings or certificate.exact != (not certificate.inexact_traces):
        raise SystemExit(f"{name}: {certificate.reasons}")
    statistics = trajectory.statistics
    return [
        name,
        str(len(calls)),
        str(sum(call.parent_id is not None and not call.continues for call in calls)),
        str(len(trajectory.traces)),
        str(sum(len(trace.prompt_ids) + len(trace.response_ids) for trace in trajectory.traces)),
        f"{statistics['trainable_tokens'] / statistics['sampled_tokens']:.3f}",
        f"{statistics['merge_rate']:.2f}" if statistics["merge_rate"] is not None else "-",
        str(statistics["inexact_traces"]),
        f"{len(packed(trajectory)) / 1000:.0f}",
    ]
