"""polar.toml: defaults without a file, clear refusals with a bad one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polar.config import Config, cache_dir, load
from polar.errors import ConfigError
from polar.token_files import config_dir, make_secret, read_secret


def test_no_file_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load()
    assert config == Config()
    assert config.gateway.host == "127.0.0.1", "closed by default"


def test_a_file_in_the_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("polar.toml").write_text(
        'runs_dir = "out"\n[pools]\nrunning = 9\n[engine]\nname = "embedded"\n[engine.options]\nparallel = 2\n'
    )
    config = load()
    assert (config.runs_dir, config.pools.running) == (Path("out"), 9)
    assert config.engine.options == {"parallel": 2}


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file at"):
        load(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x =", "not valid TOML"),
        ("unknown = 1", "line 1: unknown: unknown field"),
        ("[pools]\nrunning = 0", r"line 2: pools\.running"),
        ("[gateway]\nport = 70000", r"gateway\.port"),
        ("[gateway]\nheartbeat_s = -1", r"gateway\.heartbeat_s"),
        (
            '[server]\nallowed_modules = ["my_package.*"]',
            r"line 2: server\.allowed_modules.*write a module as 'my_package'",
        ),
    ],
)
def test_a_bad_file_is_refused_with_the_field(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load(path)


@pytest.mark.parametrize("blobs", ["s3://bucket/a//b", "s3://bucket/../b", "s3://me:hidden@bucket/a", "s3:///a"])
def test_a_store_that_cannot_be_is_refused_without_its_password(tmp_path: Path, blobs: str) -> None:
    (tmp_path / "polar.toml").write_text(f'[server]\nblobs = "{blobs}"\n')
    with pytest.raises(ConfigError, match=r"server\.blobs") as refused:
        load(tmp_path / "polar.toml")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("blobs", ["s3://bucket", "s3://bucket/", "s3://bucket/a/b/", "folder:a//b", "database"])
def test_a_store_that_can_be_is_taken(tmp_path: Path, blobs: str) -> None:
    (tmp_path / "polar.toml").write_text(f'[server]\nblobs = "{blobs}"\n')
    assert load(tmp_path / "polar.toml").server.blobs == blobs


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(path)


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLAR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "polar"
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"


class TestSecrets:
    @pytest.fixture(autouse=True)
    def own_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POLAR_CONFIG_DIR", str(tmp_path / "config"))
        for variable in ("POLAR_CONTROL_TOKEN", "POLAR_NODE_TOKEN"):
            monkeypatch.delenv(variable, raising=False)

    def test_a_token_is_made_once_and_only_its_owner_can_read_it(self) -> None:
        token = make_secret("control-token")
        assert len(token) >= 40
        assert make_secret("control-token") == read_secret("control-token") == token
        assert (config_dir() / "control-token").stat().st_mode & 0o777 == 0o600
        assert config_dir().stat().st_mode & 0o777 == 0o700
        assert make_secret("node-token") != token

    def test_the_environment_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_secret("node-token")
        monkeypatch.setenv("POLAR_NODE_TOKEN", "from-elsewhere")
        assert read_secret("node-token") == "from-elsewhere"

    def test_a_missing_token_says_how_to_get_one(self) -> None:
        with pytest.raises(ConfigError, match=r"`polar server` makes one .* set POLAR_CONTROL_TOKEN"):
            read_secret("control-token")

    def test_a_file_that_is_empty_is_no_token(self) -> None:
        """A node with an empty metrics token would show its metrics to everyone."""
        config_dir().mkdir(parents=True)
        (config_dir() / "metrics-token").touch()
        with pytest.raises(ConfigError, match=r"metrics-token is empty: remove it"):
            make_secret("metrics-token")

    def test_who_makes_it_at_the_same_time_has_the_same_one(self) -> None:
        """As the workers of one gateway do at their first start: no one finds a file that is not written yet."""
        for _ in range(50):
            (config_dir() / "metrics-token").unlink(missing_ok=True)
            with ThreadPoolExecutor(8) as pool:
                made = set(pool.map(lambda _: make_secret("metrics-token"), range(8)))
            assert len(made) == 1
        assert [path.name for path in config_dir().iterdir()] == ["metrics-token"]

    def test_the_folder_follows_the_desktop_rules(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("POLAR_CONFIG_DIR")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert config_dir() == tmp_path / "polar"
