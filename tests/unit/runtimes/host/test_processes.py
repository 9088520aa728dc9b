"""Which processes belong to a family."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.runtimes.host import processes
from polar.runtimes.host.processes import Family, end, find

NO_MARKER = b"POLAR_PLACE=/nowhere:"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group and a session of its own."""
    process = subprocess.Popen(["sleep", "1000"], env={"POLAR_PLACE": "/place:12"}, start_new_session=True)
    environment = Path(f"/proc/{process.pid}/environ")
    while sys.platform == "linux" and not environment.read_bytes():  # it is still being started
        time.sleep(0.001)
    yield process
    process.kill()
    process.wait()


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux_only
@pytest.mark.parametrize(
    ("marker", "found"),
    [
        (b"POLAR_PLACE=/place:", True),
        (b"POLAR_PLACE=/place:12\0", True),
        (b"POLAR_PLACE=/place:1\0", False),
        (b"POLAR_PLACE=/pl:", False),
        (b"PLACE=/place:", False),
    ],
)
def test_a_marker_is_taken_whole(sleeper: subprocess.Popen[bytes], marker: bytes, found: bool) -> None:
    assert (sleeper.pid in find(Family(marker, leaders=frozenset()))) == found


@linux_only
def test_a_running_commands_id_names_its_group(sleeper: subprocess.Popen[bytes]) -> None:
    assert find(Family(NO_MARKER, leaders=frozenset({sleeper.pid}))) == {sleeper.pid}


@linux_only
def test_a_stranger_with_the_id_of_an_ended_command_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    family = Family(NO_MARKER, leaders=frozenset(), gone_leaders=frozenset({sleeper.pid}))
    assert find(family) == set()


@linux_only
def test_a_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    family = Family(NO_MARKER, leaders=frozenset({sleeper.pid}))
    while b") Z " not in Path(f"/proc/{sleeper.pid}/stat").read_bytes():
        pass
    assert find(family) == set()


async def test_without_proc_the_groups_are_ended(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path / "no-proc")
    family = Family(NO_MARKER, leaders=frozenset({sleeper.pid}))
    assert find(family) == {sleeper.pid}
    processes.signal_all(find(family), processes.signal.SIGTERM)
    assert sleeper.wait() == -processes.signal.SIGTERM
    await end(family, grace_s=1)
