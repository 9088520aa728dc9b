"""The launcher's program: forks one supervisor per command, which keeps the command's process tree together.

A supervisor is a child subreaper: whatever its command starts stays below it, even a daemon that forked twice,
called setsid and cleared its environment. So the tree is found by walking down from the supervisor, and it is
empty when the supervisor has no child left.

The node runs this file by its path, without site packages, so it imports nothing from `polar`. Forking a
supervisor takes a few milliseconds; starting a Python for each would take fifty. A supervisor whose channel to the
node closes kills its tree: a node that is killed leaves nothing running.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

MAX_MESSAGE_BYTES = 4096
KILL_LIMIT_S = 30.0
"""How long SIGKILL is repeated: a process that survives this hangs in the kernel."""
LOOK_S = 0.01
OPEN_FILES = 65536
"""More than are open at the start."""
NAME = b"polar-launcher"
SET_NAME, SET_CHILD_SUBREAPER = 15, 36
NEW_USER, NEW_MOUNT = 0x10000000, 0x00020000
BIND, RECURSIVE, SLAVE = 4096, 16384, 1 << 19
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""A supervisor ends with its tree or with the node, not with a signal meant for others."""
DEFAULTED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that Python, this program or the node's parent may have changed; reset for a command."""


def kernel(call: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def become_subreaper() -> None:
    kernel("prctl", SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> set[int]:
    """All processes below this one. May miss one that is forked meanwhile: call again."""
    found, ahead = set[int](), [os.getpid()]
    children = children_by_parent() if not os.path.exists("/proc/thread-self/children") else None
    while ahead:
        parent = ahead.pop()
        below = children_of(parent) if children is None else children.get(parent, set())
        ahead += below - found
        found |= below
    return found


def children_of(pid: int) -> set[int]:
    found = set[int]()
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    return found


def children_by_parent() -> dict[int, set[int]]:
    """For a kernel that lists no children: reads every process of the machine."""
    found: dict[int, set[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            found.setdefault(parent, set()).add(int(name))
    return found


def signal_all(number: signal.Signals) -> None:
    for pid in descendants():
        with suppress(OSError):
            os.kill(pid, number)


def has_children() -> bool:
    """Reaps the dead first."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        return True
    return False


def show(source: str, target: str) -> None:
    """Mounts `source` at `target`, for this process and all below it. A user other than root needs a user
    namespace for that; the user id stays the same, and executing a program drops the rights over the namespace."""
    user, group = os.geteuid(), os.getegid()
    kernel("unshare", NEW_MOUNT | (NEW_USER if user != 0 else 0))
    if user != 0:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{user} {user} 1")
        write("/proc/self/gid_map", f"{group} {group} 1")
    # Later mounts of the machine are visible inside; mounts made inside are not visible to the machine.
    kernel("mount", b"none", b"/", None, RECURSIVE | SLAVE, None)
    kernel("mount", os.fsencode(source), os.fsencode(target), None, BIND | RECURSIVE, None)


def write(path: str, text: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())


def wake(number: int, frame: Any) -> None:
    """A signal needs a handler to be written to the pipe of `set_wakeup_fd`, which ends a wait."""


class Supervisor:
    """A command, all processes that it starts, and the channel to the node."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._command = 0
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)
        become_subreaper()
        signal.signal(signal.SIGCHLD, wake)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def run(self, request: dict[str, Any], out: int, err: int) -> None:
        """Returns when nothing of the tree is left. Without a command it only tries the view."""
        try:
            if request["view"]:
                show(*request["view"])
            self._command = start(request, out, err) if request["argv"] else 0
        except (OSError, ValueError) as error:
            with suppress(OSError):
                self._channel.send(refusal(error))
            return
        finally:
            os.close(out)
            os.close(err)
        self._tell(started=self._command)
        self._watch()
        self._tell(empty=True)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        while not self._is_empty():
            if any(descriptor == self._channel.fileno() for descriptor, _ in poll.poll()):
                message = self._receive()
                if not message:
                    poll.unregister(self._channel)
                if stuck := self._end(json.loads(message)["grace_s"] if message else 0.0):
                    self._tell(stuck=sorted(stuck)[:100])
            self._clear_wakes()

    def _end(self, grace_s: float) -> set[int]:
        """Sends SIGTERM, and SIGKILL after `grace_s`. Returns the processes that cannot be killed."""
        signal_all(signal.SIGTERM)
        if self._empties_within(grace_s):
            return set()
        deadline = time.monotonic() + KILL_LIMIT_S
        while time.monotonic() < deadline:
            signal_all(signal.SIGKILL)
            if self._empties_within(LOOK_S):
                return set()
        return descendants()

    def _empties_within(self, limit_s: float) -> bool:
        """The last process of the tree is our own child, so its end wakes us."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        deadline = time.monotonic() + limit_s
        while not self._is_empty():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            poll.poll(left_s * 1000)
            self._clear_wakes()
        return True

    def _is_empty(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._command:
                self._command = -1
                self._tell(exited=os.waitstatus_to_exitcode(status))

    def _clear_wakes(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 65536)

    def _receive(self) -> bytes:
        with suppress(OSError):
            return self._channel.recv(MAX_MESSAGE_BYTES)
        return b""

    def _tell(self, **message: Any) -> None:
        with suppress(OSError):  # the node is gone; the channel shows that too
            self._channel.send(json.dumps(message).encode())


def refusal(error: OSError | ValueError) -> bytes:
    number, text = (error.errno, error.strerror) if isinstance(error, OSError) else (0, str(error))
    return json.dumps({"refused": text, "errno": number}).encode()


def start(request: dict[str, Any], out: int, err: int) -> int:
    """Returns the command's process id. Raises the error that executing it gave."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(request, out, err)
        except (OSError, ValueError) as error:
            os.write(write_end, refusal(error))
        finally:
            os._exit(127)
    os.close(write_end)
    with open(read_end, "rb") as file:
        message = file.read()  # executing the program closes the other end
    if message:
        os.waitpid(pid, 0)
        failure = json.loads(message)
        raise OSError(failure["errno"], failure["refused"])
    return pid


def become(request: dict[str, Any], out: int, err: int) -> None:
    for number in DEFAULTED:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(request["cwd"])
    os.execvpe(request["argv"][0], request["argv"], request["env"])


def supervise(channel: int, request_file: int, out: int, err: int) -> None:
    with open(request_file, "rb") as file:
        request = json.loads(file.read())
    with socket.socket(fileno=channel) as opened:
        Supervisor(opened).run(request, out, err)


def main(control: socket.socket) -> None:
    """Each message has four descriptors: the channel to the node, the request, stdout and stderr."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the supervisors
    os.closerange(3, control.fileno())  # sessions get nothing that the node itself inherited
    os.closerange(control.fileno() + 1, OPEN_FILES)
    os.set_inheritable(control.fileno(), False)
    kernel("prctl", SET_NAME, NAME, 0, 0, 0)
    become_subreaper()  # adopts the processes of a supervisor that is killed
    os.get_exec_path()  # imports on first use: once here instead of once per command
    gc.freeze()
    while True:
        message, given, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 4)
        if not message:
            break
        for descriptor in given:
            os.set_inheritable(descriptor, False)
        try:
            is_supervisor = os.fork() == 0
        except OSError as error:  # too many processes
            os.write(given[0], refusal(error))
            is_supervisor = False
        if is_supervisor:
            try:
                control.close()
                supervise(*given)
            finally:
                os._exit(0)
        for descriptor in given:
            os.close(descriptor)
    end_the_rest()


def end_the_rest() -> None:
    """The node is gone. Supervisors end their own trees; this ends what killed supervisors left."""
    deadline = time.monotonic() + KILL_LIMIT_S
    time.sleep(LOOK_S)
    while has_children() and time.monotonic() < deadline:
        signal_all(signal.SIGKILL)
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
