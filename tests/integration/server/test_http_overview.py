"""What a person watches, over HTTP."""

from __future__ import annotations

import pytest
from desk import Api

from polar.types import GroupListPage, Overview, Score, SessionListPage


async def test_the_overview_follows_a_session(api: Api) -> None:
    await api.submit(num_samples=2, harness="codex")
    node = await api.register(slots=3)
    lease = await node.lease_one()
    await node.beat(lease)
    running = Overview.model_validate(await api.get("/v1/overview"))
    assert (running.stages["QUEUED"], running.stages["RUNNING"], running.slots, running.busy) == (1, 1, 3, 1)
    assert running.nodes[0].sessions == (lease.session.session_id,)
    await node.report(lease, score=Score(reward=1.0))
    ended = Overview.model_validate(await api.get("/v1/overview"))
    assert (ended.stages["COMPLETED"], ended.busy, ended.window) == (1, 0, 1)
    assert [(one.harness, one.mean_reward) for one in ended.harnesses] == [("codex", 1.0)]
    assert ended.cursor > running.cursor


async def test_a_list_is_filtered_by_its_query(api: Api) -> None:
    await api.submit("a", num_samples=3, harness="codex")
    await api.submit("b", harness="pi")
    page = SessionListPage.model_validate(await api.get("/v1/overview/sessions?harness=codex&open=True&limit=2"))
    assert [row.session_id for row in page.sessions] == ["a-2", "a-1"]
    rest = SessionListPage.model_validate(
        await api.get(f"/v1/overview/sessions?harness=codex&open=True&limit=2&before={page.before}")
    )
    assert ([row.session_id for row in rest.sessions], rest.before) == (["a-0"], None)


async def test_groups_are_listed(api: Api) -> None:
    await api.submit("a", num_samples=2)
    page = GroupListPage.model_validate(await api.get("/v1/overview/groups"))
    assert [(group.group_id, group.sessions, group.unfinished) for group in page.groups] == [("a", 2, 2)]


@pytest.mark.parametrize(
    "query",
    [
        "/v1/overview/sessions?stage=ASLEEP",
        "/v1/overview/sessions?colour=red",
        "/v1/overview/sessions?reward_at_least=nan",
        "/v1/overview/sessions?limit=0",
        "/v1/overview/sessions?before=-1",
        "/v1/overview/groups?limit=1000000",
    ],
)
async def test_a_wrong_query_is_refused(api: Api, query: str) -> None:
    answer = await api.ask("GET", query)
    assert answer.status == 422 and answer.detail
