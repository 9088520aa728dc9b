from __future__ import annotations

import asyncio

import pytest

from polar.monitoring import readiness
from polar.monitoring.readiness import Readiness
from waiting import hang_limit


async def works() -> str:
    return ""


async def noted() -> str:
    return "ok, though slow"


async def fails() -> str:
    raise OSError("the disk is gone")


async def fails_silently() -> str:
    raise ValueError


async def hangs() -> str:
    await asyncio.Event().wait()
    return ""


async def test_each_part_has_its_reason() -> None:
    checks = {"a": works, "b": fails, "c": fails_silently, "d": noted}
    report = await Readiness(checks).report()
    assert (report.ready, report.status) == (False, 503)
    wanted = {"a": "ok", "b": "the disk is gone", "c": "ValueError", "d": "ok, though slow"}
    assert report.body() == {"ready": False, "checks": wanted}


async def test_ready_means_that_all_parts_work() -> None:
    report = await Readiness({"a": works, "d": noted}).report()
    assert (report.ready, report.status) == (True, 200)


async def test_a_part_that_does_not_answer_does_not_work() -> None:
    async with hang_limit():
        report = await Readiness({"a": works, "slow": hangs}, check_s=0.01).report()
    assert report.problems == {"slow": "no answer within 0.01 s"}


async def test_a_time_out_of_the_part_itself_is_its_own_reason() -> None:
    async def own_time_out() -> str:
        raise TimeoutError("the engine took 5 s")

    assert (await Readiness({"a": own_time_out}).report()).problems == {"a": "the engine took 5 s"}


async def test_requests_at_once_share_one_round() -> None:
    rounds, go = 0, asyncio.Event()

    async def counted() -> str:
        nonlocal rounds
        rounds += 1
        await go.wait()
        return ""

    checked = Readiness({"a": counted})
    asking = [asyncio.create_task(checked.report()) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()  # a prober that hangs up takes nothing from the others
    go.set()
    done = await asyncio.gather(*asking[1:])
    assert rounds == 1 and all(report.ready for report in done)
    await checked.report()
    assert rounds == 1, "an answer stays fresh for a moment"


async def test_an_answer_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_S", -1.0)
    outcome = [works, fails]

    async def first_well_then_sick() -> str:
        return await outcome.pop(0)()

    checked = Readiness({"a": first_well_then_sick})
    assert (await checked.report()).ready
    assert not (await checked.report()).ready


async def test_closing_ends_a_round() -> None:
    checked = Readiness({"slow": hangs})
    asking = asyncio.create_task(checked.report())
    await asyncio.sleep(0)
    async with hang_limit():
        await checked.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
