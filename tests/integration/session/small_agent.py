"""An agent with what the smallest image has, in any runtime that this machine has."""

from __future__ import annotations

from typing import Any

import pytest
from workshop import shell_task

from polar import registry
from polar.runtimes.base import Runtime
from polar.types import TaskRequest
from skips import skip_without_runtime

AGENT = r"""
address=${OPENAI_BASE_URL#http://} address=${address%%/*}
body='{"model": "polar", "messages": [{"role": "user", "content": "Go."}]}'
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: polar\r\nAuthorization: Bearer %s\r\n' "$OPENAI_API_KEY" >&3
printf 'Content-Type: application/json\r\nContent-Length: %d\r\n' "${#body}" >&3
printf 'Connection: close\r\n\r\n%s' "$body" >&3
cat <&3 >/dev/null
echo hello >answer.txt
"""
"""One call and an answer, with what the smallest image has."""
CONTAINED = ("bubblewrap", "docker", "apptainer")
RUNTIMES = ["local", *(pytest.param(name, marks=pytest.mark.check) for name in CONTAINED)]
OPTIONS: dict[str, dict[str, Any]] = {"bubblewrap": {"image": "polar-base"}}


async def task_in(runtime: str, end: str, limits: dict[str, Any] | None = None, **fields: Any) -> TaskRequest:
    """An agent that writes its answer and then ends in its own way; it is skipped where the runtime is missing."""
    known: type[Runtime] = registry.find("runtime", runtime)
    skip_without_runtime(runtime, await known.lacking())
    options = OPTIONS.get(runtime, {}) | ({"limits": limits} if limits else {})
    spec = {"name": runtime, "options": options}
    files = {**fields.pop("files", {}), "agent.sh": AGENT}
    return shell_task(f"bash agent.sh\n{end}", runtime=spec, files=files, **fields)
