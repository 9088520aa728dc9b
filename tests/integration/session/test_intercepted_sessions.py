"""What a session that intercepts its providers sees, and what nothing outside it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from intercepting import complaint, intercepting_task, permit_python, printed
from workshop import Workshop

from polar.data.source import TaskFileSource
from polar.data.tasks import read_tasks
from polar.node import Node
from polar.types import Call, Stage

pytestmark = pytest.mark.check
PROBE = (Path(__file__).parent / "provider_probe.py").read_text()
CONTAINED = ("bubblewrap", "docker", "apptainer")
PROVIDERS = ("api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com")
EXAMPLE = Path(__file__).parents[3] / "examples" / "intercepted.toml"
OF_THE_NODE = (Path("/etc/hosts"), Path("/etc/ssl/certs/ca-certificates.crt"))


async def probing(runtime: str, **fields: Any) -> Any:
    return await intercepting_task(runtime, "$PYTHON probe.py", files={"probe.py": PROBE}, **fields)


def seen_by(workshop: Workshop, session_id: str) -> dict[str, Any]:
    result = workshop.results[session_id]
    assert result.stage == Stage.COMPLETED, (result.failure, complaint(workshop, session_id))
    return json.loads(printed(workshop, session_id))


class Kept:
    """The calls of sessions, read before their node ends."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {}

    def of(self, *session_ids: str) -> Any:
        async def serve(node: Node, source: TaskFileSource) -> None:
            await node.serve(source)
            for session_id in session_ids:
                self.calls[session_id] = await node.journal.calls(session_id)

        return serve


@pytest.mark.parametrize("runtime", CONTAINED)
async def test_providers_are_the_gateway_and_nothing_else_is_there(workshop: Workshop, runtime: str) -> None:
    permit_python(workshop)
    before = [path.read_bytes() for path in OF_THE_NODE if path.exists()]
    kept = Kept()
    tasks = [await probing(runtime, task_id="probe", num_samples=2)]
    await workshop.run(["Hello."], tasks, during=kept.of("probe-0", "probe-1"))

    first, second = seen_by(workshop, "probe-0"), seen_by(workshop, "probe-1")
    for session_id, seen in {"probe-0": first, "probe-1": second}.items():
        addresses = {name: found for name, found in seen["resolved"].items() if found}
        assert addresses == {name: ["127.0.0.1"] for name in PROVIDERS}, (
            "a name that is not intercepted is unknown"
        )
        authority = f"Polar session {session_id}"
        assert seen["by_variable"] == dict.fromkeys(PROVIDERS, authority)
        assert seen["by_system"] == dict.fromkeys(PROVIDERS, authority), "for programs that read no variable"
        assert seen["status"] == 200, "its own key is as good as the session's"
        assert seen["https_is_taken"] and seen["private_keys"] == []
        assert len(kept.calls[session_id]) == 1
        assert workshop.results[session_id].notes == ()
    assert first["authority"] != second["authority"]
    assert [path.read_bytes() for path in OF_THE_NODE if path.exists()] == before, "the node is as it was"
    assert workshop.leftovers() == []


async def test_an_image_in_bubblewrap(workshop: Workshop) -> None:
    permit_python(workshop)
    task = await probing("bubblewrap", task_id="probe", image="polar-base")
    await workshop.run(["Hello."], [task])
    seen = seen_by(workshop, "probe-0")
    assert set(seen["by_system"].values()) == set(seen["by_variable"].values()) == {"Polar session probe-0"}


@pytest.mark.parametrize("runtime", CONTAINED)
async def test_only_the_named_hosts_are_intercepted(workshop: Workshop, runtime: str) -> None:
    look = "cat /etc/hosts; ! getent hosts api.openai.com"
    task = await intercepting_task(runtime, look, intercept=["llm.example.com"], task_id="one")
    permit_python(workshop)
    await workshop.run(["Hello."], [task])
    assert workshop.only.exit_code == 0
    hosts = printed(workshop, "one-0").split("\n")
    assert "127.0.0.1 llm.example.com" in [" ".join(line.split()) for line in hosts]
    assert "api.openai.com" not in str(hosts)


@pytest.mark.parametrize("runtime", ["bubblewrap", "apptainer"])
async def test_prepare_steps_with_the_nodes_network_find_hosts_where_they_are(
    workshop: Workshop, runtime: str
) -> None:
    permit_python(workshop)
    workshop.permits["prepare_network"] = True
    signed = '"$(sed -n 5p /opt/polar/trust/authority.pem)"'
    step = f"! grep -q api.openai.com /etc/hosts && ! grep -qF {signed} /etc/ssl/certs/ca-certificates.crt"
    task = await probing(runtime, task_id="probe", prepare=[step], prepare_network="open")
    await workshop.run(["Hello."], [task])
    assert seen_by(workshop, "probe-0")["status"] == 200


async def test_the_example_runs_as_it_is(workshop: Workshop) -> None:
    await intercepting_task("bubblewrap", "true")  # skips where there is no bubblewrap
    (task,) = read_tasks(EXAMPLE)
    kept = Kept()
    await workshop.run(["Blue."], [task], during=kept.of("ask-0", "ask-1"))
    for session_id in ("ask-0", "ask-1"):
        result = workshop.results[session_id]
        assert result.score and result.score.reward == 1.0, (result.failure, complaint(workshop, session_id))
        assert [call.dialect for call in kept.calls[session_id]] == ["openai_chat"]
