"""The synchronous client: the same methods, its thread, and a clean end."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from fake_rollout import TOKEN, FakeRollout

from polar.client import PolarClient, Retry, ServerError, SyncPolarClient
from polar.errors import PolarError
from polar.types import TaskRequest
from waiting import HANG_S


class Background:
    """The fake server in a thread, as the trainer's own thread is busy with being synchronous."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.rollout = FakeRollout()
        self.url: str = self.do(self.rollout.start())

    def do(self, work: object) -> object:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()  # type: ignore[arg-type]

    def close(self) -> None:
        self.do(self.rollout.stop())
        self.do(asyncio.sleep(0.01))  # connections that are closed are let go of on the next turns
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


@pytest.fixture
def client(background: Background) -> Iterator[SyncPolarClient]:
    with SyncPolarClient(background.url, TOKEN, retry=Retry(first_s=0.001)) as client:
        yield client


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "polar-client"]


def test_it_has_the_methods_of_the_other_client() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(f).parameters) for name, f in members if not name.startswith("_")}

    assert methods(SyncPolarClient) == methods(PolarClient) | {"close": ["self"]}
    both = (inspect.signature(SyncPolarClient), inspect.signature(PolarClient))
    assert both[0].parameters == both[1].parameters


def test_a_whole_round(client: SyncPolarClient, background: Background) -> None:
    status = client.submit(TaskRequest(task_id="a", instruction="x", num_samples=2, group_id="g"))
    assert [s.session_id for s in client.sessions("a")] == list(client.task("a").session_ids)
    seen: list[str] = []
    background.do(background.rollout.finish("a-0"))
    for entry in client.results(task_ids=[status.task_id]):
        seen.append(entry.result.session_id)
        if len(seen) == 1:
            background.do(background.rollout.finish("a-1"))
    assert seen == ["a-0", "a-1"]
    assert client.result_page(limit=1).cursor == 1
    assert client.upload("a-0").trajectory is None
    assert client.session("a-0").result and client.lease("a-0").task.task_id == "a"


def test_the_rest_of_its_methods(client: SyncPolarClient, background: Background) -> None:
    client.submit_many({"task_id": name, "instruction": "x", "group_id": "g"} for name in ("a", "b", "c"))
    assert (client.cancel_session("a-0"), client.cancel_task("b"), client.cancel_group("g")) == (1, 1, 1)
    assert [entry.result.stage.value for entry in client.results(group_id="g")] == ["CANCELLED"] * 3
    background.rollout.draining = [2, 1]
    assert client.pause(wait=True, timeout_s=60).paused and client.drain().done
    assert client.pause().paused and client.set_policy_version(3).version == "3"
    assert not client.resume().paused and client.policy().version == "3"
    assert len(client.tasks(limit=2)) == 2 and client.nodes()[0].node_id == "n1"
    assert client.url == background.url
    with pytest.raises(ServerError, match="nothing yet"):
        client.trajectory("a-0")


def test_a_loop_that_is_left_early_ends_its_request(client: SyncPolarClient, background: Background) -> None:
    client.submit({"task_id": "a", "instruction": "x"})
    background.do(background.rollout.finish("a-0"))
    for entry in client.results():
        assert entry.result.session_id == "a-0"
        break
    assert client.tasks()[0].done


def test_it_leaves_no_thread(background: Background) -> None:
    with SyncPolarClient(background.url, TOKEN) as client:
        assert threads() == ["polar-client"]
        results = client.results()
    assert threads() == []
    client.close()
    with pytest.raises(PolarError, match="not open"):
        client.tasks()
    with pytest.raises(PolarError, match="not open"):
        next(results)
    with pytest.raises(PolarError, match="opened once"), client:
        pass


def test_closing_it_breaks_off_what_another_thread_waits_for(background: Background) -> None:
    outcome: list[str] = []

    def wait(client: SyncPolarClient) -> None:
        try:
            next(client.results())
        except PolarError as error:
            outcome.append(str(error))

    with SyncPolarClient(background.url, TOKEN) as client:
        thread = threading.Thread(target=wait, args=(client,))
        thread.start()
        while not background.rollout.seen:
            client.policy()
    thread.join()
    assert len(outcome) == 1 and "closed" in outcome[0]


def test_an_unopened_client_says_so() -> None:
    with pytest.raises(PolarError, match="with SyncPolarClient"):
        SyncPolarClient("http://127.0.0.1:1", TOKEN).tasks()


def test_ctrl_c_ends_the_wait(background: Background) -> None:
    """In a process of its own, with nothing said but the interruption itself."""
    script = f"""
from polar.client import SyncPolarClient
with SyncPolarClient({background.url!r}, {TOKEN!r}) as client:
    print("waiting", flush=True)
    try:
        next(client.results())
    except KeyboardInterrupt:
        print("interrupted", len(client.tasks()))
"""
    with subprocess.Popen(
        [sys.executable, "-Werror", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "waiting\n"
        while not background.rollout.seen:
            background.do(asyncio.sleep(0))
        child.send_signal(signal.SIGINT)
        assert (child.stdout.read(), child.stderr.read(), child.wait(HANG_S)) == ("interrupted 0\n", "", 0)
