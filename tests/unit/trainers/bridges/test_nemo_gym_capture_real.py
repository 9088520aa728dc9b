"""NeMo Gym's own token capture on the runs of the bridge. Collected where Gym is newer than 0.5.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nemo_gym.token_id_capture import (
    TokenCaptureStore,
    assert_prefix_contiguity,
    project_main_chain_response,
    run_builder,
)
from nemo_gym.token_id_capture import TokenSink as GymTokenSink
from nemo_gym.token_id_capture import TokenSource as GymTokenSource
from nemo_gym.token_id_capture.delivery import finalize_rollout_token_capture, rollout_carries_token_ids
from stored_calls import LAST, REPLY
from stored_groups import StoredClient, a_group
from test_nemo_gym_bridge import CONFIG, TOKENS, a_body, a_client, an_untaught_client
from test_nemo_gym_real import served

from polar.trainers.bridges.nemo_gym import TokenSource, run_request
from polar.trainers.bridges.nemo_gym.capture import rollout_id_of

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]
PLACE = {"_ng_task_index": 3, "_ng_rollout_index": 1}


class OtherSink:
    """A transport of a trainer: `token_id_capture.sink` names it, and each process makes its own."""

    made: list[OtherSink] = []

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.closed = fails, False
        self.entries: list[Any] = []
        self.incomplete: list[str] = []
        OtherSink.made.append(self)

    async def put(self, entry: Any) -> None:
        if self.fails and self.entries:
            raise OSError("no room")
        self.entries.append(entry)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        self.incomplete.append(rollout_id)

    async def close(self) -> None:
        self.closed = True


def capturing(**fields: Any) -> dict[str, Any]:
    return {"token_id_capture": {"enabled": True, **fields}}


def captured_by_other(monkeypatch: pytest.MonkeyPatch, client: StoredClient, **fields: Any) -> OtherSink:
    gym = capturing(sink=f"{__name__}:OtherSink", rebuild_response=False, **fields)
    with served(monkeypatch, client, gym, token_id_capture=True) as http:
        assert http.post("/run", json=a_body(**PLACE)).status_code == 200
    return OtherSink.made[-1]


def tokens_in(output: list[dict[str, Any]]) -> list[list[int]]:
    return [item[TOKENS[1]] for item in output if item.get(TOKENS[1])]


async def test_gyms_check_of_a_chain_accepts_the_answer() -> None:
    answer = await run_request(a_client(), CONFIG, a_body())
    assert_prefix_contiguity(answer["response"])


async def test_gym_builds_the_chain_from_the_token_source() -> None:
    client = a_client()
    await run_request(client, CONFIG, a_body(_ng_rollout_id="t"))
    source = TokenSource(CONFIG, lambda: client)
    assert isinstance(source, GymTokenSource)
    snapshot = await source.freeze("t")
    assert not snapshot.incomplete and len(snapshot.entries) == 2
    built = project_main_chain_response("t", run_builder(list(snapshot.entries)))
    assert_prefix_contiguity(built)
    assert tokens_in(built["output"]) == [REPLY, LAST]
    assert await source.drop("t", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


def test_the_id_of_a_run_is_gyms() -> None:
    correlation = pytest.importorskip("nemo_gym.rollout_correlation")
    bodies = [{**PLACE, "_ng_attempt_index": 2}, {**PLACE, "_ng_rollout_id": "a.b", "_ng_attempt_index": 0}, PLACE]
    assert [rollout_id_of(body) for body in bodies] == [
        correlation.maybe_rollout_id_from_run_body(body) for body in bodies
    ]


@pytest.mark.parametrize("scope", [{"all_agents": True}, {}], ids=["all agents", "this agent"])
async def test_gyms_reader_finds_the_tokens_in_its_file_store(
    scope: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With Gym's default settings, where Gym rebuilds a response from what its store has."""
    with served(
        monkeypatch, a_client(), capturing(dir=str(tmp_path), **scope), token_id_capture=not scope
    ) as http:
        answer = http.post("/run", json=a_body(**PLACE)).json()
    assert rollout_carries_token_ids(answer), "a reader that does not rebuild has them too"
    for item in answer["response"]["output"]:
        for name in TOKENS:
            item.pop(name, None)
    built = await finalize_rollout_token_capture({**answer, **PLACE}, TokenCaptureStore(tmp_path))
    assert built is not None and not built["mask_sample"]
    assert tokens_in(built["rebuilt_response"]["output"]) == [REPLY, LAST]


async def test_an_answer_with_tokens_needs_no_rebuilding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with served(monkeypatch, a_client(), capturing(dir=str(tmp_path)), token_id_capture=True) as http:
        answer = http.post("/run", json=a_body(**PLACE)).json()
    result = {**answer, **PLACE}
    await finalize_rollout_token_capture(result, TokenCaptureStore(tmp_path))
    assert tokens_in(result["response"]["output"]) == [REPLY, LAST] and "mask_sample" not in result


def test_a_trainers_own_sink_gets_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = captured_by_other(monkeypatch, a_client())
    assert isinstance(sink, GymTokenSink) and sink.closed and not sink.incomplete
    assert [entry.rollout_id for entry in sink.entries] == ["3-1", "3-1"]
    assert [entry.generation_token_ids for entry in sink.entries] == [REPLY, LAST]


@pytest.mark.parametrize(
    "client", [an_untaught_client(), StoredClient(a_group("t", None))], ids=["masked", "infrastructure"]
)
def test_a_run_that_is_not_trained_on_is_marked(client: StoredClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = captured_by_other(monkeypatch, client)
    assert (sink.entries, sink.incomplete) == ([], ["3-1"])


def test_a_sink_that_fails_marks_the_run_and_the_answer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = captured_by_other(monkeypatch, a_client(), sink_kwargs={"fails": True})
    assert len(sink.entries) == 1 and sink.incomplete == ["3-1"]


def test_an_agent_that_takes_no_part_captures_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with served(monkeypatch, a_client(), capturing(dir=str(tmp_path))) as http:
        assert http.post("/run", json=a_body(**PLACE)).status_code == 200
    assert list(tmp_path.iterdir()) == []
