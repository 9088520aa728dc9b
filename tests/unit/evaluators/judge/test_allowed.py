"""The operator of a node decides which addresses its evaluators call, and with which key."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged import judge, session

from fake_judge import fake_judge
from polar.config import Config, PermittedEndpoint, for_foreign_tasks, is_loopback, parse
from polar.errors import ConfigError
from polar.evaluators.judge.allowed import EndpointNotAllowed, refuse_unless_allowed


def listed(*values: object) -> tuple[PermittedEndpoint, ...]:
    return tuple(PermittedEndpoint.model_validate(value) for value in values)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://judge.example/v1", "https://judge.example"),
        ("https://judge.example/v1", "https://Judge.example:443/v1/"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
    ],
)
def test_an_address_within_a_listed_one_is_allowed(url: str, allowed: str) -> None:
    refuse_unless_allowed(listed(allowed), url, None)


@pytest.mark.parametrize(
    "url",
    [
        "http://judge.example/v1",
        "https://judge.example:8443/v1",
        "https://judge.example.attacker.example/v1",
        "https://judge.example/v10",
        "http://169.254.169.254/latest",
        "http://localhost:8700/v1",
    ],
)
def test_every_other_address_is_refused_with_the_name_of_the_list(url: str) -> None:
    with pytest.raises(EndpointNotAllowed, match=r"permits\.endpoints.*https://judge\.example/v1"):
        refuse_unless_allowed(listed("https://judge.example/v1"), url, None)


def test_a_variable_goes_only_to_the_address_that_it_is_listed_with() -> None:
    allowed = listed({"url": "https://a.example", "api_key_env": "KEY_A"}, "https://b.example")
    refuse_unless_allowed(allowed, "https://a.example/v1", "KEY_A")
    for url, variable in (("https://a.example/v1", "AWS_SECRET"), ("https://b.example/v1", "KEY_A")):
        with pytest.raises(EndpointNotAllowed, match=f"{variable} may not be sent"):
            refuse_unless_allowed(allowed, url, variable)


async def test_a_judge_that_is_not_allowed_is_never_called(tmp_path: Path) -> None:
    async with fake_judge(lambda asked: asked.verdict()) as fake:
        with pytest.raises(EndpointNotAllowed, match="allowed: none"):
            await judge(fake.url).evaluate(session(tmp_path, endpoints=()))
        assert fake.requests == []
        score = await judge(fake.url).evaluate(session(tmp_path, endpoints=listed(fake.url)))
    assert score.reward == 1.0


def test_a_node_with_tasks_of_others_allows_none_unless_its_config_lists_them() -> None:
    assert Config().permits.endpoints is None
    assert for_foreign_tasks(Config()).permits.endpoints == ()
    own = parse({"permits": {"endpoints": ["http://127.0.0.1:8000/v1"]}}, "polar.toml")
    assert for_foreign_tasks(own).permits.endpoints == listed("http://127.0.0.1:8000/v1")
    with pytest.raises(ConfigError, match="not the address of an endpoint"):
        parse({"permits": {"endpoints": ["judge.example"]}}, "polar.toml")


def test_loopback_is_the_own_machine() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "node-7")] == [
        *(True, True, True),
        *(False, False),
    ]
