"""A spec that no container can satisfy is refused when the options are checked."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from polar.errors import ConfigError
from polar.registry import options_of
from polar.runtimes.docker.options import DockerOptions
from polar.runtimes.docker.runtime import DockerRuntime


def options(**given: Any) -> DockerOptions:
    made = options_of("runtime", DockerRuntime, given)
    assert isinstance(made, DockerOptions)
    return made


def test_the_strictest_network_is_the_default() -> None:
    assert options().network_mode == "gateway_only"
    assert options(network="none").network_mode == "none"


def test_a_disk_limit_needs_an_engine_that_holds_it() -> None:
    with pytest.raises(ConfigError, match=r"cannot enforce the limit disk_bytes, only cpus.*xfs with pquota"):
        options(limits={"disk_bytes": "1GiB"})
    assert options(limits={"disk_bytes": "1GiB"}, quota=True).limits.disk_bytes == 2**30


def test_the_other_limits_are_held() -> None:
    made = options(limits={"cpus": 0.5, "memory_bytes": "512MiB", "pids": 100})
    assert made.limits.asked == ("cpus", "memory_bytes", "pids")


@pytest.mark.parametrize(
    "wrong",
    [
        {"workspace": "work"},
        {"workspace": "/"},
        {"workspace": "/work/.."},
        {"workspace": "/work/"},
        {"image": ""},
        {"image": "-v"},
        {"engine": "ssh://me@elsewhere"},
        {"engine": "/var/run/docker.sock"},
        {"network": "host"},
        {"privileged": True},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        options(**wrong)


def test_a_capability_that_leads_outside_is_refused() -> None:
    assert DockerOptions(cap_add=("CHOWN", "SETUID")).cap_add == ("CHOWN", "SETUID")
    for name in ("SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "ALL"):
        with pytest.raises(ValidationError, match="cap_add"):
            DockerOptions.model_validate({"cap_add": [name]})
