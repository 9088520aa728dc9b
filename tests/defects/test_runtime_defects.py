"""What sessions in containers must hold, each with the defect of published systems that it rules out."""

from __future__ import annotations

import pytest
from workshop import Workshop, shell_task

from polar import registry
from polar.runtimes.base import Runtime
from polar.types import Stage
from skips import skip_without_runtime

pytestmark = pytest.mark.check

CALL_THE_MODEL = r"""
address=${OPENAI_BASE_URL#http://}; address=${address%%/*}
body='{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n' >&3
printf 'Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s' "$OPENAI_API_KEY" "${#body}" "$body" >&3
read -r status <&3; echo "$status"
"""
"""Without a program that minimal images lack."""


@pytest.fixture(params=["bubblewrap", "docker"])
async def contained(request: pytest.FixtureRequest) -> dict[str, str]:
    runtime: type[Runtime] = registry.find("runtime", request.param)
    skip_without_runtime(request.param, await runtime.lacking())
    return {"name": request.param}


async def test_nothing_of_a_harness_lives_on_in_its_container(
    workshop: Workshop, contained: dict[str, str]
) -> None:
    """21: the process went on in the container, edited files and called the model while it was graded."""
    spoiler = "setsid sh -c 'while :; do echo spoilt > answer.txt; sleep 0.05; done' & "
    check = {"command": "echo hello > answer.txt; sleep 0.5; cat answer.txt", "expect_pattern": "^hello$"}
    task = shell_task(
        f"{CALL_THE_MODEL} {spoiler} exit 0",
        runtime=contained,
        evaluator={"name": "test_on_output", "options": check},
    )
    await workshop.run(["Hello."], [task])
    result = workshop.only
    assert result.stage == Stage.COMPLETED and result.statistics.trainable_tokens > 0
    assert result.score and result.score.reward == 1.0


async def test_a_patch_holds_untracked_files(workshop: Workshop, contained: dict[str, str]) -> None:
    """27: the difference left untracked files out."""
    make = f"{CALL_THE_MODEL} echo new > untracked.txt; printf '\\0\\1\\377' > binary.bin"
    task = shell_task(make, runtime=contained, keep={"patch": True})
    await workshop.run(["Hello."], [task])
    patch = (workshop.paths.session(workshop.only.session_id).root / "patch.diff").read_text()
    assert "b/untracked.txt" in patch and "+new" in patch
    assert "b/binary.bin" in patch and "GIT binary patch" in patch


async def test_without_a_network_the_model_is_still_reached(workshop: Workshop, contained: dict[str, str]) -> None:
    """28: a runtime without a network had no gateway either."""
    look = f"{CALL_THE_MODEL} tail -n +3 /proc/net/dev | cut -d: -f1"
    await workshop.run(["Hello."], [shell_task(look, runtime=contained)])
    result = workshop.only
    printed = (workshop.paths.session(result.session_id).logs / "harness.stdout").read_text().split()
    assert result.failure is None and result.statistics.calls == 1
    assert "200" in printed and printed[-1] == "lo", "its only interface is loopback"
