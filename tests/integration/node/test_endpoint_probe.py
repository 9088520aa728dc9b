"""A node with an endpoint asks it for a word when it suspects it, and `polar doctor` tells what it is good for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_endpoint import KEY, KEY_VARIABLE, fake_endpoint
from polar.cli.app import app
from polar.engines.endpoint.engine import EndpointEngine, EndpointOptions
from polar.errors import EngineError
from polar.gateway.calls.policy_gate import PolicyGate
from polar.node.probes import check_engine


async def test_a_probe_is_a_short_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    async with fake_endpoint([]) as fake:
        engine = EndpointEngine(EndpointOptions.model_validate(fake.options("openai")))
        await engine.start()
        try:
            await check_engine(engine, PolicyGate())
        finally:
            await engine.stop()
        with pytest.raises(EngineError, match="not running"):
            await check_engine(engine, PolicyGate())


def test_the_doctor_says_that_it_cannot_be_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    config = '[engine]\nname = "endpoint"\n[engine.options]\nurl = "http://127.0.0.1:9"\nmodel = "m"\n'
    (tmp_path / "polar.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    checks = {row["check"]: row for row in json.loads(result.stdout)["checks"]}
    assert "no tokens to train on" in checks["renderer of the engine"]["found"]
    assert not checks["engine endpoint"]["ok"] and "`url`" in checks["engine endpoint"]["found"]
