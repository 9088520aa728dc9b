"""What tokens and traces must be, each with the defect of published systems that it rules out."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import Conversation, drops, ids, shapes
from playbook import BASH_TOOL, OpenGateway
from real_families import LLAMA, QWEN3_QUIET, loaded
from rollout import Rollout
from talk import Talk, assistant, system, user

from polar.audit.certificate import certify
from polar.builders.prefix_merging import PrefixMerging
from polar.errors import HarnessError
from polar.testing import ScriptedReply
from polar.tokens.base import Renderer
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.tokens.sequences import digest_of
from polar.types import Policy, Trajectory, logprobs, token_ids
from polar.types.codec import encode

GO: list[Any] = [{"role": "user", "content": "go"}]


def built(talk: Conversation | Rollout) -> Trajectory:
    builder = PrefixMerging(PrefixMerging.Options())  # pyright: ignore[reportArgumentType]
    return builder.build(talk.calls[0].session_id, talk.calls)


def real(which: Any) -> Renderer:
    try:
        return loaded(which)
    except HarnessError as error:
        pytest.skip(str(error))


class TestMerging:
    def test_a_reply_that_came_back_in_other_tokens_is_not_merged(self) -> None:
        """1: only prompts were compared, never the reply with what the next prompt made of it."""
        talk = Conversation()
        first = talk.call("Su", "ab")
        talk.call("Suxyt", "cd", after=first, continues=False)
        assert [prompt for prompt, _, _ in shapes(built(talk))] == ["Su", "Suxyt"]

        lied = Conversation()
        first = lied.call("Su", "ab")
        lied.call("t", "cd", after=first, prompt_digest=digest_of(ids("Suxyt")))
        assert drops(built(lied)) == [("c2", 0, 2, "digest_mismatch")]

    def test_calls_after_a_turn_without_an_end_are_kept(self) -> None:
        """2: a tail without an end of turn ended the chain, and everything later was thrown away."""
        talk = Conversation()
        call = talk.call("Su", "ab", finish_reason="length")
        for new in "xyz":
            call = talk.call(new, "cd", after=call)
        assert shapes(built(talk)) == [("Su", "abxcdycdzcd", "^^.^^.^^.^^")]

    def test_the_answer_a_harness_went_on_from_survives_a_retry(self) -> None:
        """3: of a retry and what followed it, only the abandoned answer was left."""
        talk = Conversation()
        talk.call("Su", "ab", received=False)
        second = talk.call("Su", "cd")
        talk.call("u", "gh", after=talk.call("t", "ef", after=second))
        trajectory = built(talk)
        assert shapes(trajectory) == [("Su", "cdtefugh", "^^.^^.^^")]
        assert drops(trajectory) == [("c1", 0, 2, "not_received")]

    def test_a_subagent_that_knows_the_agents_history_does_not_take_its_place(self) -> None:
        """7: a sub-agent seeded with the parent's history carried the parent's chain away."""
        talk = Conversation()
        first = talk.call("Su", "ab")
        talk.call("x", "sub", after=first, kind="subagent")
        talk.call("t", "cd", after=first)
        assert shapes(built(talk))[0] == ("Su", "abtcd", "^^.^^")

    def test_titles_and_probes_are_neither_trained_on_nor_rewarded(self) -> None:
        """9: auxiliary calls got the full reward of the session."""
        talk = Conversation()
        talk.call("Su", "ab")
        talk.call("T", "title", kind="auxiliary")
        trajectory = built(talk)
        assert [trace.kind for trace in trajectory.traces] == ["agent"]
        assert drops(trajectory) == [("c2", 0, 5, "kind:auxiliary")]

    @pytest.mark.parametrize(
        ("changes", "reason", "lost"),
        [
            ({"finish_reason": "aborted"}, "aborted", 3),
            ({"logprobs": logprobs([-0.5, -9999.0, -0.5])}, "missing_logprob", 1),
            ({"logprobs": logprobs([-0.5, float("nan"), -0.5])}, "missing_logprob", 1),
            ({"logprobs": logprobs([-0.5, -0.5])}, "unequal_lengths", 3),
            ({"completion_ids": token_ids(), "logprobs": logprobs()}, "empty_completion", 0),
        ],
        ids=["aborted", "sentinel", "missing", "short", "empty"],
    )
    def test_what_cannot_be_trained_on_is_named_and_the_rest_stays(
        self, changes: dict[str, Any], reason: str, lost: int
    ) -> None:
        """10: broken generations ended as successes, and one missing logprob cost all of them."""
        talk = Conversation()
        call = talk.call("Su", "abc", **changes)
        trajectory = built(talk)
        assert [(drop.length, drop.reason) for drop in trajectory.dropped] == [(lost, reason)]
        kept = len(call.completion_ids) - lost
        assert sum(trace.trainable_tokens for trace in trajectory.traces) == kept

    def test_what_is_kept_of_a_call_does_not_grow_with_its_history(self) -> None:
        """12: each call held its whole history, so that a session took the square of its length."""
        talk = Conversation()
        call = talk.call("S" * 1000, "ab")
        sizes = [len(encode(talk.calls[0]))]
        for _ in range(30):
            call = talk.call("t", "cd", after=call, new_items=(b"i",), shared_items=2)
            sizes.append(len(encode(call)))
        assert max(sizes[1:]) - min(sizes[1:]) < 50 < sizes[0]
        (trace,) = built(talk).traces
        assert len(trace.prompt_ids) + len(trace.response_ids) == 1002 + 30 * 3


class TestRendering:
    def test_where_a_turn_ends_is_no_guess(self, smollm2: SmolLM2Renderer) -> None:
        """4: the end of turn was taken to be the last token of the first reply, be it an ordinary word."""
        talk = Talk(smollm2)
        start = [system("S"), user("go")]
        first = talk.say(start, list(smollm2.encode("Stop here")))
        prompt = talk.ask([*start, first.response, user("on")])
        assert smollm2.decode(prompt.prompt_ids).endswith(
            "assistant\nStop here<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_each_of_several_ends_of_turn_ends_a_turn(self) -> None:
        """4: with more than one end of turn, text was doubled or swallowed."""
        llama = real(LLAMA)
        for stop in llama.stop_ids:
            talk = Talk(llama)
            first = talk.say([user("go")], [*llama.encode("Yes"), stop])
            prompt = talk.ask([user("go"), first.response, user("on")])
            assert prompt.continues and llama.decode(prompt.new_prompt_ids).count("on<|eot_id|>") == 1

    async def test_a_system_message_stays_in_its_place(self, open_gateway: OpenGateway) -> None:
        """5: all system and developer messages were moved to the front."""
        gateway = await open_gateway(["ok"])
        later = [{"role": "assistant", "content": "Yes?"}, {"role": "developer", "content": "Be kind."}]
        body = {"messages": [{"role": "system", "content": "S"}, *GO, *later, {"role": "user", "content": "on"}]}
        assert (await gateway.post(await gateway.open(), body))[0] == 200
        prompt = gateway.renderer.decode(gateway.engine.requests[0].request.prompt_ids)
        assert prompt.index("Yes?") < prompt.index("Be kind.") < prompt.index("user\non")

    async def test_text_and_call_of_one_reply_are_one_turn(self, open_gateway: OpenGateway) -> None:
        """6: a Responses reply with text and a call came back as two turns, and stood twice in the context."""
        said = 'I look.<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
        gateway = await open_gateway([said, "Done."])
        slot = await gateway.open()
        tool = {"type": "function", **BASH_TOOL["function"]}  # pyright: ignore
        _, first, _ = await gateway.post(slot, {"input": GO, "tools": [tool]}, "/v1/responses")
        call_id = next(item["call_id"] for item in first["output"] if item["type"] == "function_call")
        result = {"type": "function_call_output", "call_id": call_id, "output": "a.txt"}
        await gateway.post(slot, {"input": [*GO, *first["output"], result], "tools": [tool]}, "/v1/responses")
        one, two = await gateway.calls()
        assert (two.parent_id, two.continues) == (one.call_id, True)
        assert gateway.renderer.decode(gateway.engine.requests[1].request.prompt_ids).count("I look.") == 1

    def test_glue_of_the_prompt_does_not_split_a_conversation(self) -> None:
        """8: an empty think block in prompts and not in the history made every turn a new chain."""
        qwen = real(QWEN3_QUIET)
        rollout, history = Rollout(qwen), [system("S"), user("go")]
        for _ in range(3):
            prompt = rollout.request(history, ())
            ended = qwen.encode("Yes.") + token_ids(qwen.stop_ids[:1])
            reply = rollout.reply(prompt, (history, ()), ended, "stop")
            history = [*history, reply.response, user("on")]
        trajectory = built(rollout)
        assert len(trajectory.traces) == 1 and trajectory.statistics["merge_rate"] == 1.0
        assert certify(rollout.calls, trajectory).exact


class TestCapture:
    async def test_each_call_has_its_own_version_tools_and_place(self, open_gateway: OpenGateway) -> None:
        """11: one policy version for a whole task, the tools of the first call, an order by chance."""
        gateway = await open_gateway(["One.", "Two."])
        slot = await gateway.open()
        gateway.gate.set(Policy(version="v1"))
        await gateway.post(slot, {"messages": GO, "tools": [BASH_TOOL]})
        gateway.gate.set(Policy(version="v2"))
        await gateway.post(slot, {"messages": [{"role": "user", "content": "title?"}]})
        calls = await gateway.calls()
        assert [(call.policy_version, len(call.tools or ())) for call in calls] == [("v1", 1), ("v2", 0)]
        status, refused, _ = await gateway.post(slot, {"messages": GO, "n": 2})
        assert status == 400 and "n" in refused["error"]["message"], "a second choice would not be recorded"

    @pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
    async def test_reasoning_is_known_by_either_name(self, open_gateway: OpenGateway, name: str) -> None:
        """13: reasoning got lost between two names for it."""
        gateway = await open_gateway(["ok"])
        turn = {"role": "assistant", "content": "Yes?", name: "Because."}
        await gateway.post(await gateway.open(), {"messages": [*GO, turn, {"role": "user", "content": "on"}]})
        (call,) = await gateway.calls()
        assert call.new_messages[1] == assistant("Yes?", reasoning="Because.")

    async def test_the_name_of_the_model_changes_nothing(self, open_gateway: OpenGateway) -> None:
        """13: thinking was switched off by a part of the model's name."""
        gateway = await open_gateway(["a", "b"])
        slot = await gateway.open()
        for model in ("polar", "qwen3-instruct-nothink"):
            await gateway.post(slot, {"messages": GO, "model": model})
        one, two = (seen.request.prompt_ids for seen in gateway.engine.requests)
        assert one == two

    async def test_arguments_are_kept_as_the_model_spelled_them(self, open_gateway: OpenGateway) -> None:
        """13: the arguments of tool calls were read and written again."""
        spelled = '{"command":   "ls",\\u0020"n": 1.0}'.replace("\\u0020", " ")
        gateway = await open_gateway([f'<tool_call>{{"name": "bash", "arguments": {spelled}}}</tool_call>'])
        _, body, _ = await gateway.post(await gateway.open(), {"messages": GO, "tools": [BASH_TOOL]})
        (told,) = body["choices"][0]["message"]["tool_calls"]
        (call,) = await gateway.calls()
        assert told["function"]["arguments"] == call.response.tool_calls[0].arguments == spelled

    async def test_a_broken_generation_is_no_quiet_success(self, open_gateway: OpenGateway) -> None:
        """10: an engine that breaks off, or gives no logprobs, left no trace of it."""
        gateway = await open_gateway(
            [ScriptedReply(text="half", abort=True), ScriptedReply(text="mute", without_logprobs=True)]
        )
        slot = await gateway.open()
        for text in ("a", "b"):
            await gateway.post(slot, {"messages": [{"role": "user", "content": text}]})
        calls = await gateway.calls()
        builder = PrefixMerging(PrefixMerging.Options())  # pyright: ignore[reportArgumentType]
        reasons = {drop.reason for drop in builder.build("s1", calls).dropped}
        assert reasons == {"aborted", "missing_logprob"}
