"""What the built-in runtimes share: creating and removing a session's folders, state checks, `kill` and `stop`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from polar.config import PermitConfig
from polar.errors import NotPermitted, RuntimeFailure
from polar.runtimes.base import HOME, Command, Finished, Interception, Program, SessionFolders
from polar.runtimes.files.folders import remove_tree, take_root
from polar.runtimes.host.cgroups import Cgroup
from polar.runtimes.host.spawn import Job, Spawner
from polar.runtimes.host.threads import in_thread, to_the_end
from polar.runtimes.interception import TRUST, TrustFolder, check_library
from polar.runtimes.options import RuntimeOptions

OptionsT = TypeVar("OptionsT", bound=RuntimeOptions)
UNCHANGED_BUNDLE = "programs that read no variable do not trust the session's authority"


class BuiltinRuntime(Generic[OptionsT]):
    notes: tuple[str, ...] = ()

    def __init__(self, options: OptionsT) -> None:
        self._options = options
        self._folders: SessionFolders | None = None
        self._session_id = ""
        """As the session's processes see it. A runtime that was started ahead has another one in its folders."""
        self._spawner: Spawner | None = None
        self._cgroup = Cgroup({})
        self._trust: TrustFolder | None = None
        """None: the options intercept nothing."""
        self._stopped = False
        self._is_preparing = options.opens_network
        """Until `prepared`, commands have the node's network."""
        self._stopping = asyncio.Lock()

    async def provide(self, permits: PermitConfig, tell: Callable[[str], None]) -> None:
        """Before the first session: gets what all sessions with these options need, such as an image. Raises
        `NotPermitted` if they ask for more than the operator permits, `RuntimeFailure` if a package is missing."""
        await in_thread(_check_permits, self._options, permits)
        if self._options.intercept:
            check_library()

    @classmethod
    async def images(cls, permits: PermitConfig) -> tuple[str, ...] | None:
        """Names of the images on this machine. None: sessions may have any, or need none."""
        return None

    def adopt(self, session_id: str, logs: Path) -> None:
        self._folders = msgspec.structs.replace(self._alive(), logs=logs)
        self._session_id = session_id
        self._spawner = Spawner(logs, self._options)

    async def prepared(self) -> None:
        if self._is_preparing:
            self._alive()
            await to_the_end(self._close_network())

    async def interception(self) -> Interception | None:
        """Only now, when the network of the prepare steps is closed, do programs trust the session's authority."""
        self._check_prepared()
        trust = self._trust
        if trust is None:
            return None
        await self._extend_bundles(trust)
        return trust.served_at(await self._https_listener())

    async def kill(self) -> None:
        if self._folders is not None:
            await to_the_end(self._kill())

    async def stop(self) -> None:
        self._stopped = True
        if self._spawner is not None:
            self._spawner.refuse()
        if self._folders is not None:
            await to_the_end(self._stop(self._folders))

    def program(self, program: Program) -> str:
        return program.mount_point

    @property
    def home(self) -> str:
        return HOME

    async def _take_folders(self, folders: SessionFolders, names: Collection[str]) -> SessionFolders:
        """Checks the permits, and creates the folders `names` under the session's root. If a node died here, ends
        and removes what it left of this session first. Runs to the end even when cancelled, so that `stop` knows
        what to remove."""
        await in_thread(_check_permits, self._options, folders.permits)
        await to_the_end(self._take(folders, names))
        return self._started()

    async def _take(self, folders: SessionFolders, names: Collection[str]) -> None:
        names = (*names, TRUST) if self._options.intercept else names
        root, has_leftovers = await in_thread(_take, folders, names)
        self._folders = msgspec.structs.replace(folders, root=root)
        self._session_id = folders.session_id
        self._spawner = Spawner(folders.logs, self._options)
        if has_leftovers:
            await self._end_leftovers(self._folders)
            await in_thread(_make_folders, root, names)
        if self._options.intercept:
            trust = await in_thread(TrustFolder, root / TRUST, folders.session_id, self._options.intercept)
            programs = (*folders.programs, trust.program)
            self._trust, self._folders = trust, msgspec.structs.replace(self._folders, programs=programs)

    async def _end_leftovers(self, folders: SessionFolders) -> None:
        """Ends the processes that a dead node left of this session."""

    async def _run_job(self, job: Job) -> Finished:
        assert self._spawner is not None, "the runtime is started"
        return await self._spawner.run(job)

    async def _close_network(self) -> None:
        """No process that had the network lives on."""
        await self._kill()
        self._is_preparing = False

    def _check_prepared(self) -> None:
        if self._is_preparing:
            raise RuntimeFailure("the network of the prepare steps is still open")

    async def _extend_bundles(self, trust: TrustFolder) -> None:
        """For programs that read no variable. A bundle that the image's user may not write to stays as it is."""
        finished: Finished = await self.exec(Command(trust.appending(), log_name="interception"))
        if finished.exit_code != 0:
            why = finished.stderr_tail.strip().rpartition("\n")[2]
            self.notes = (*self.notes, f"{UNCHANGED_BUNDLE}: {why}")

    async def exec(self, command: Command) -> Finished:
        raise NotImplementedError

    async def _https_listener(self) -> socket.socket:
        """On port 443 of the session's loopback."""
        raise NotImplementedError

    async def _kill(self) -> None:
        raise NotImplementedError

    async def _release(self, folders: SessionFolders) -> None:
        """Ends what holds the session's folders, after its last process and before they are removed."""

    async def _stop(self, folders: SessionFolders) -> None:
        async with self._stopping:
            await self._kill()
            if self._spawner is not None:
                await self._spawner.close()
            await self._release(folders)
            await in_thread(remove_tree, folders.root)
            await self._cgroup.remove()

    def _started(self) -> SessionFolders:
        if self._folders is None:
            raise RuntimeFailure("the runtime is not started")
        return self._folders

    def _alive(self) -> SessionFolders:
        if self._stopped:
            raise RuntimeFailure("the runtime is stopped")
        return self._started()


def file_mode(*, home: bool, executable: bool) -> int:
    """Of a file that `put` writes: what is in the home is private."""
    return (0o700 if home else 0o755) if executable else (0o600 if home else 0o644)


def _check_permits(options: RuntimeOptions, permits: PermitConfig) -> None:
    if refused := options.refused_by(permits):
        raise NotPermitted("; ".join(refused))


def _take(folders: SessionFolders, names: Collection[str]) -> tuple[Path, bool]:
    """The resolved root, and whether a dead node left something in it whose processes must be ended first."""
    root, has_leftovers = take_root(folders.root, names)
    folders.logs.mkdir(parents=True, exist_ok=True)
    if not has_leftovers:
        _make_folders(root, names)
    return root, has_leftovers


def _make_folders(root: Path, names: Collection[str]) -> None:
    for name in names:
        remove_tree(root / name)
        (root / name).mkdir(mode=0o700)
