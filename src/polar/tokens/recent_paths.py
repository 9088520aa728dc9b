"""The paths of a session's newest requests, so that the messages a request repeats are not matched again."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from polar.types import Message

T = TypeVar("T")
MOST_REQUESTS = 8
MOST_CHARACTERS = 4 * 2**20
"""Of all requests whose paths are kept, though the newest is kept whatever its size. Comparing so much takes a
millisecond at most."""


class ToldPaths(NamedTuple):
    """A request, the paths of its messages, and what it holds up to each."""

    messages: tuple[Message, ...]
    paths: list[bytes]
    characters: list[int]
    empty_turns: list[int]


class RecentPaths:
    """Of the newest requests: the next one usually begins with all of one of them. Several conversations of a
    session may take turns."""

    def __init__(self) -> None:
        self._kept: list[ToldPaths] = []
        """The latest first."""

    @property
    def newest_has_empty_turns(self) -> bool:
        return self._kept[0].empty_turns[-1] > 0

    def longest(self, messages: tuple[Message, ...], start: bytes) -> tuple[ToldPaths | None, int]:
        """The request that has most of these messages at its beginning, and how many; `start` is the path before
        the first."""
        best, most = None, 0
        for known in self._kept:
            common = common_items(known.messages, messages) if known.paths[0] == start else 0
            if common > most:
                best, most = known, common
        return best, most

    def keep(
        self, messages: tuple[Message, ...], paths: list[bytes], before: ToldPaths | None, known: int
    ) -> None:
        """`known` messages are those of `before`, in whose place it is kept if they are at least half of them."""
        characters = before.characters[: known + 1] if before else [0]
        empty_turns = before.empty_turns[: known + 1] if before else [0]
        for message in messages[known:]:
            characters.append(characters[-1] + characters_of(message))
            empty_turns.append(empty_turns[-1] + is_empty_turn(message))
        replaced = before if before and 2 * known >= len(before.messages) else None
        kept, room = [ToldPaths(messages, paths, characters, empty_turns)], MOST_CHARACTERS - characters[-1]
        for told in self._kept:
            room -= told.characters[-1] if told is not replaced else 0
            if told is not replaced and room >= 0:
                kept.append(told)
        self._kept = kept[:MOST_REQUESTS]


def characters_of(message: Message) -> int:
    called = sum(len(call.arguments) for call in message.tool_calls)
    shown = sum(len(image.url) for image in message.images)
    return len(message.content) + len(message.reasoning) + called + shown


def is_empty_turn(message: Message) -> bool:
    return message.role == "assistant" and not (message.content or message.reasoning or message.tool_calls)


def common_items(known: tuple[T, ...], items: tuple[T, ...]) -> int:
    """How many items two sequences begin with that are the same."""
    if items[: len(known)] == known:  # nearly always, and one comparison
        return len(known)
    pairs = enumerate(zip(known, items, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(known), len(items)))
