"""What the journal acknowledged survives `kill -9`, and every call comes back byte for byte."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polar.store.journal import Journal
from polar.types import Call, CallTimes, Lease, Message, Session, TaskRequest, ToolCall, logprobs, token_ids
from polar.types.codec import encode

APPENDS_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from polar.types.codec import decode
from polar.store.journal import Journal
from polar.types import Call, Lease
import msgspec

async def append(journal, call, name):
    await journal.append_call(msgspec.structs.replace(call, call_id=name))
    sys.stdout.write(name + "\\n")
    sys.stdout.flush()

async def main(path, call_path, lease_path):
    journal = await Journal.open(Path(path))
    await journal.add_session(Lease.model_validate_json(Path(lease_path).read_text()))
    call = decode(Path(call_path).read_bytes(), Call)
    for turn in range(1_000_000):
        await asyncio.gather(*(append(journal, call, f"c{turn}-{n}") for n in range(3)))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_every_acknowledged_call_survives_kill_9(
    tmp_path: Path, make_call: Callable[..., Call], make_lease: Callable[..., Lease]
) -> None:
    path, call_path, lease_path = tmp_path / "journal.db", tmp_path / "call", tmp_path / "lease"
    call_path.write_bytes(encode(make_call(new_prompt_ids=token_ids(range(5000)))))
    lease_path.write_text(make_lease().model_dump_json())
    acknowledged = run_until_killed([str(path), str(call_path), str(lease_path)], lines=200)
    async with await Journal.open(path) as journal:
        kept = {call.call_id for call in await journal.calls("add-0")}
        await journal.append_call(make_call("after"))
    assert len(acknowledged) >= 200
    assert acknowledged <= kept


def run_until_killed(arguments: list[str], lines: int) -> set[str]:
    """What the child said until it was killed; its last line may be cut short and then says nothing."""
    command = [sys.executable, "-c", APPENDS_FOR_EVER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        said += child.stdout.readlines()
    return {line.strip() for line in said if line.endswith("\n")}


ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)
text = st.text(max_size=20)
plain = st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | text, st.lists)
tool_calls = st.builds(ToolCall, name=text, arguments=text, call_id=text)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=text,
    reasoning=text,
    tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
    tool_call_id=text,
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    completion = draw(ids)
    numbers = st.floats(width=32)
    values: dict[str, Any] = {
        "call_id": draw(st.text(min_size=1, max_size=20)),
        "parent_id": draw(st.none() | text),
        "new_prompt_ids": token_ids(draw(ids)),
        "completion_ids": token_ids(completion),
        "logprobs": logprobs(draw(st.lists(numbers, min_size=len(completion), max_size=len(completion)))),
        "new_messages": tuple(draw(st.lists(messages, max_size=3))),
        "response": draw(messages),
        "new_items": tuple(draw(st.lists(st.binary(max_size=16), max_size=3))),
        "sampling": draw(st.dictionaries(text, plain, max_size=3)),
        "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls", "aborted"])),
        "kind": draw(st.sampled_from(["agent", "subagent", "compaction", "auxiliary"])),
        "evaluated_tokens": draw(st.none() | st.integers(0, 2**31)),
        "received": draw(st.booleans()),
        "tolerant": tuple(draw(st.lists(text, max_size=2))),
    }
    return Call(
        session_id="s",
        continues=False,
        prompt_digest=b"",
        prompt_tokens=len(values["new_prompt_ids"]),
        tools=(),
        dialect="openai_chat",
        engine="scripted",
        logprob_mode="raw",
        times=CallTimes(0.0, 0.0, 0.0),
        **values,
    )


@given(call=calls())
@settings(max_examples=40, deadline=None)
async def test_any_call_comes_back_byte_for_byte(call: Call) -> None:
    lease = Lease(session=Session(session_id="s", task_id="t", index=0), task=TaskRequest(instruction="x"))
    with tempfile.TemporaryDirectory() as folder:
        async with await Journal.open(Path(folder) / "journal.db") as journal:
            await journal.add_session(lease)
            await journal.append_call(call)
            [stored] = await journal.calls("s")
    assert encode(stored) == encode(call)
