"""What the sampler is for: each logprob is the one of a whole forward, whatever shares the batch or the prefix."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import Event

import pytest
from running_batch import CONTEXT_TOKENS, FOREVER_S, Reply, RunningBatch

from polar.engines.torch.batch import BatchSequence, shared_columns
from polar.engines.torch.sampling import SamplingParameters
from polar.engines.torch.weights import WeightsRefused
from tiny_llama import VOCABULARY, recomputed, saved, tiny_llama

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]
EXACT = 1e-4


def prompt(length: int, seed: int = 0) -> list[int]:
    random = Random(seed)
    return [random.randrange(VOCABULARY) for _ in range(length)]


def error_of(reply: Reply, prompt_ids: list[int], seed: int = 0) -> float:
    """Largest difference between a reply's logprobs and those of the weights made with `seed`."""
    expected = recomputed(tiny_llama(seed), prompt_ids, reply.ids)
    return max(abs(a - b) for a, b in zip(reply.logprobs, expected, strict=True))


def test_a_batch_of_mixed_lengths_is_exact() -> None:
    prompts = [prompt(length, seed=length) for length in (1, 2, 17, 90, 200)]
    with RunningBatch(tiny_llama()) as running:
        sequences = [running.submit(ids, max_tokens=20, seed=n) for n, ids in enumerate(prompts)]
        replies = [running.reply(sequence) for sequence in sequences]
    assert [len(reply.ids) for reply in replies] == [20] * 5
    assert max(error_of(reply, ids) for reply, ids in zip(replies, prompts, strict=True)) < EXACT


def test_sequences_that_come_and_go_in_any_order_are_exact() -> None:
    random = Random(5)
    stem = prompt(60)
    prompts = [stem[: random.randrange(1, 60)] + prompt(random.randrange(1, 80), seed=n) for n in range(24)]
    limits = [random.randrange(1, 30) for _ in prompts]
    with RunningBatch(tiny_llama(), parallel=4, prefix_bytes=200_000) as running:
        sequences = [
            running.submit(ids, limit, seed=n) for n, (ids, limit) in enumerate(zip(prompts, limits, strict=True))
        ]
        gone = sequences[7]
        running.first_token(gone)
        running.batch.abort(gone)
        replies = [running.reply(sequence) for sequence in sequences if sequence is not gone]
        assert running.prefixes.size_bytes <= 200_000
    kept = [ids for n, ids in enumerate(prompts) if n != 7]
    assert max(error_of(reply, ids) for reply, ids in zip(replies, kept, strict=True)) < EXACT
    assert any(reply.cached_tokens for reply in replies)


def test_the_next_turn_computes_only_what_is_new_and_is_exact() -> None:
    first = prompt(100)
    with RunningBatch(tiny_llama()) as running:
        reply = running.ask(first)
        second = [*first, *reply.ids, *prompt(10, seed=3)]
        again = running.ask(second)
    assert reply.cached_tokens == 0
    assert again.cached_tokens == len(first) + len(reply.ids) - 1, "the last sampled token was never computed"
    assert error_of(again, second) < EXACT


def test_samples_of_one_prompt_compute_it_once() -> None:
    ids = prompt(150)
    with RunningBatch(tiny_llama(), parallel=4) as running:
        running.batch.pause("keep").result()
        sequences = [running.submit(ids, seed=n) for n in range(4)]
        running.batch.resume().result()
        replies = [running.reply(sequence) for sequence in sequences]
    assert [reply.cached_tokens for reply in replies] == [0, 149, 149, 149]
    assert len({tuple(reply.ids) for reply in replies}) == 4
    assert max(error_of(reply, ids) for reply in replies) < EXACT


def test_a_long_common_beginning_is_read_once_for_all_rows_and_is_exact() -> None:
    stem, shared = prompt(100), list[int]()
    prompts = [stem + prompt(length, seed=length) for length in (1, 5, 30, 60)]
    with RunningBatch(tiny_llama(), parallel=4) as running:
        step = running.model.step
        running.model.step = lambda ids, places, columns=0: (shared.append(columns), step(ids, places, columns))[1]
        sequences = [running.submit(ids, max_tokens=20, seed=n) for n, ids in enumerate(prompts)]
        replies = [running.reply(sequence) for sequence in sequences]
    assert shared.count(len(stem)) >= 15, "once all four are filled"
    assert max(error_of(reply, ids) for reply, ids in zip(replies, prompts, strict=True)) < EXACT


def test_what_rows_share_is_what_all_of_them_have_computed() -> None:
    rows = [BatchSequence(prompt(100) + tail, SamplingParameters(max_tokens=1)) for tail in ([1, 2], [1, 3], [4])]
    for each in rows:
        each.filled = 101
    assert shared_columns(rows) == 100
    assert shared_columns(rows[:2]) == 101
    assert shared_columns(rows[:1]) == 101
    rows[1].filled = 80
    assert shared_columns(rows) == 80
    rows[1].filled = 0
    assert shared_columns(rows) == 0


def test_a_seed_gives_the_same_tokens_alone_and_in_company() -> None:
    ids = prompt(30)
    with RunningBatch(tiny_llama()) as running:
        alone = running.ask(ids, seed=9)
        company = [running.submit(prompt(50, seed=n), max_tokens=40) for n in (1, 2)]
        beside = running.ask(ids, seed=9)
        for sequence in company:
            running.reply(sequence)
        assert beside.ids == alone.ids
        assert running.ask(ids, seed=10).ids != alone.ids


def test_a_stop_id_ends_a_reply_and_stays_in_it() -> None:
    ids = prompt(20)
    with RunningBatch(tiny_llama()) as running:
        free = running.ask(ids, temperature=0.0)
        stopped = running.ask(ids, temperature=0.0, stop_token_ids=(free.ids[4],))
    end = free.ids.index(free.ids[4]) + 1
    assert (stopped.ids, stopped.ending, free.ending) == (free.ids[:end], "stop", "length")


def test_the_models_end_token_ends_a_reply_unless_it_is_ignored() -> None:
    ids, model = prompt(20), tiny_llama()
    with RunningBatch(model) as running:
        free = running.ask(ids, temperature=0.0)
        model.generation_config.eos_token_id = [free.ids[2]]
        assert running.ask(ids, temperature=0.0).ending == "stop"
        assert running.ask(ids, temperature=0.0, ignore_eos=True).ids == free.ids


def test_a_full_context_ends_a_reply() -> None:
    ids = prompt(CONTEXT_TOKENS - 5)
    with RunningBatch(tiny_llama()) as running:
        reply = running.ask(ids, max_tokens=50)
    assert (len(reply.ids), reply.ending) == (5, "length")
    assert error_of(reply, ids) < EXACT


def test_new_weights_within_a_reply_sample_the_rest_of_it(tmp_path: Path) -> None:
    ids, arrived = prompt(40), Event()

    def tell(sequence: BatchSequence) -> None:
        if sequence.sampled_tokens == 6:
            arrived.set()
            running.batch.pause("keep")

    with RunningBatch(tiny_llama(seed=0)) as running:
        running.after_token = tell
        running.batch.set_version("1").result()
        sequence = running.submit(ids, max_tokens=15)
        assert arrived.wait(FOREVER_S)
        running.batch.load_weights(saved(tmp_path, seed=1)).result()
        running.batch.set_version("2").result()
        running.after_token = lambda sequence: None
        running.batch.resume().result()
        reply = running.reply(sequence)
    assert reply.versions == [("1", 0), ("2", 6)]
    old = recomputed(tiny_llama(0), ids, reply.ids)
    new = recomputed(tiny_llama(1), ids, reply.ids)
    assert reply.logprobs == pytest.approx([*old[:6], *new[6:]], abs=EXACT)
    assert reply.logprobs[6:] != pytest.approx(old[6:], abs=0.1)


def test_new_weights_drop_the_stored_prefixes(tmp_path: Path) -> None:
    ids = prompt(80)
    with RunningBatch(tiny_llama(seed=0)) as running:
        running.ask(ids)
        running.batch.load_weights(saved(tmp_path, seed=1)).result()
        assert len(running.prefixes) == 0
        reply = running.ask(ids)
        scored = running.batch.score([*ids, *reply.ids]).result()
    assert reply.cached_tokens == 0
    assert error_of(reply, ids, seed=1) < EXACT
    assert scored[len(ids) - 1 :] == pytest.approx(reply.logprobs, abs=EXACT)


def test_a_forgotten_context_is_computed_again_and_the_reply_goes_on() -> None:
    ids = prompt(60)
    with RunningBatch(tiny_llama()) as running:
        whole = running.ask(ids, max_tokens=150)
        sequence = running.submit(ids, max_tokens=150)
        first = running.first_token(sequence)
        running.batch.forget(live=True).result()
        rest = running.reply(sequence)
    assert [first.token_id, *rest.ids] == whole.ids
    assert [first.logprob, *rest.logprobs] == pytest.approx(whole.logprobs, abs=EXACT)


def test_samples_of_one_prompt_compute_it_once_after_new_weights_too(tmp_path: Path) -> None:
    ids, filled = prompt(150), list[int]()
    with RunningBatch(tiny_llama(seed=0), parallel=3) as running:
        compute = running.model.fill
        sequences = [running.submit(ids, max_tokens=100, seed=n) for n in range(3)]
        for sequence in sequences:
            running.first_token(sequence)
        running.batch.pause("keep").result()
        running.batch.load_weights(saved(tmp_path, seed=1)).result()
        running.model.fill = lambda row, start, new: (filled.append(len(new)), compute(row, start, new))[1]
        before = sum(sequence.sampled_tokens for sequence in sequences)
        running.batch.resume().result()
        for sequence in sequences:
            running.reply(sequence)
    assert sum(filled) <= 150 + before


def test_refused_weights_leave_the_sampler_as_it_was(tmp_path: Path) -> None:
    ids = prompt(30)
    with RunningBatch(tiny_llama()) as running:
        before = running.ask(ids)
        with pytest.raises(WeightsRefused, match="no safetensors"):
            running.batch.load_weights(tmp_path).result()
        after = running.ask(ids)
    assert after.ids == before.ids
    assert after.cached_tokens == len(ids) - 1


def test_a_pause_that_aborts_ends_what_runs_and_what_waits() -> None:
    with RunningBatch(tiny_llama(), parallel=1) as running:
        live = running.submit(prompt(10), max_tokens=200)
        waiting = running.submit(prompt(10), max_tokens=200)
        running.first_token(live)
        running.batch.pause("abort").result()
        assert running.reply(live).ending == running.reply(waiting).ending == "abort"
        later = running.submit(prompt(10), max_tokens=2)
        assert running.batch.counts()["live"] == 0
        running.batch.resume().result()
        assert running.reply(later).ending == "length"


def test_a_pause_that_waits_is_answered_at_the_end_of_what_runs() -> None:
    with RunningBatch(tiny_llama(), parallel=1) as running:
        live = running.submit(prompt(10), max_tokens=30)
        waiting = running.submit(prompt(10), max_tokens=2)
        running.first_token(live)
        running.batch.pause("wait").result()
        assert (len(live.ids), len(waiting.ids)) == (40, 10)
        assert running.batch.is_paused
        running.batch.resume().result()
        assert running.reply(waiting).ending == "length"


def test_a_cancelled_command_is_not_carried_out() -> None:
    with RunningBatch(tiny_llama()) as running:
        sequence = running.submit(prompt(200), max_tokens=30)
        order = running.batch.set_version("9")
        cancelled = order.cancel()
        running.reply(sequence)
        assert running.batch.version == ("default" if cancelled else "9")
