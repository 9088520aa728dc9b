"""The namespace holder's program: creates a session's namespaces, assembles its file system and serves its files.

The node runs it by its path, without site packages, so it imports nothing from `polar` and starts within
milliseconds. It talks over one socket: a JSON object each way, with at most one file descriptor. When the node's
end of the socket closes, it kills the whole session and ends; the namespaces and mounts end with the last process
in them.

Everything is assembled in the session's root folder: `disk` receives what the session writes, `image` and `lower`
are mounts of the folders under its overlays, and `root` is what the session sees as `/`. All mount paths are
relative to it, because overlay options are split at commas and colons. After that the holder changes its own root
to `root`: whatever links an agent leaves, no path of a request leads to the node's files.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
import time
from contextlib import suppress
from typing import Any

MARKER = "POLAR_CAGE"
"""A variable in the environment of the holder and of bubblewrap, which no process inside can change: the machine,
the node and the session folder it was started for."""
MAX_MESSAGE_BYTES = 2**20
LINGER_S, LOOK_S = 1.0, 0.02
NEW_USER, NEW_MOUNT, NEW_NETWORK = 0x10000000, 0x00020000, 0x40000000
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
MOUNT_SETATTR, HERE, BELOW_TOO = 442, -100, 0x8000
READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4
SET_FLAGS, UP_AND_RUNNING, GET_PARENT = 0x8914, 0x41, 0xB702

OF_THE_MACHINE = (errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS)
"""Errors that are not caused by what a session left in its workspace."""

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of the node, or links into /usr, that programs need."""
ETC = """
    alternatives ca-certificates crypto-policies debian_version ld.so.cache localtime mime.types os-release
    pki/ca-trust/extracted pki/tls/certs protocols services ssl/certs ssl/openssl.cnf
""".split()
"""The parts of the node's /etc that are mounted: none holds a secret or tells about the node."""
OWN_ETC = {
    "passwd": "root:x:0:0:root:{home}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


class HolderRefused(Exception):
    """A request that cannot be met; the message says why."""


class PathUnusable(HolderRefused):
    """Something that the session left in its workspace is in the way."""


class MountAttributes(ctypes.Structure):
    """The kernel's `struct mount_attr`."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "spread", "users")]


def kernel(what: str, call: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        raise HolderRefused(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(kind: str, source: str, target: str, *, flags: int = 0, options: str = "") -> None:
    names = (os.fsencode(source), os.fsencode(target), kind.encode() or None)
    kernel(f"cannot mount {kind or source} at {target}", "mount", *names, flags, options.encode() or None)


def bind(source: str, target: str) -> None:
    mount("", source, target, flags=BIND | RECURSIVE)


def read_only(target: str, *, below: bool = True) -> None:
    wanted = MountAttributes(set=READ_ONLY | NO_SETUID | NO_DEVICES)
    where = (HERE, os.fsencode(target), BELOW_TOO if below else 0)
    attributes = (ctypes.byref(wanted), ctypes.sizeof(wanted))
    kernel(f"cannot make {target} read-only", "syscall", MOUNT_SETATTR, *where, *attributes)


def overlay(lower: str, name: str, target: str) -> None:
    """Mounts `lower` at `target`; writes go to the disk."""
    upper, work = f"disk/{name}-upper", f"disk/{name}-overlay"
    os.mkdir(upper, stat.S_IMODE(os.stat(lower).st_mode) | 0o700)
    os.mkdir(work)
    mount("overlay", "polar", target, options=f"lowerdir={lower},upperdir={upper},workdir={work},userxattr")


def assemble(plan: dict[str, Any]) -> None:
    mount("", "none", "/", flags=RECURSIVE | PRIVATE)
    os.umask(0o022)
    os.chdir(plan["root"])
    if plan["disk_bytes"]:
        room = f"size={plan['disk_bytes']},nr_inodes={max(plan['disk_bytes'] // 2048, 1024)},mode=700"
        mount("tmpfs", "polar", "disk", options=room)
    for name, mode in (("work", 0o755), ("home", 0o700), ("tmp", 0o1777), ("shm", 0o1777)):
        os.mkdir(f"disk/{name}")
        os.chmod(f"disk/{name}", mode)
    if plan["image"]:
        bind(plan["image"], "image")
        overlay("image", "root", "root")
    else:
        mount("tmpfs", "polar", "root", options="mode=755")
        show_system(plan)
    mount_folders(plan)
    if not plan["image"]:
        read_only("root", below=False)


def mount_folders(plan: dict[str, Any]) -> None:
    has_workspace = plan["image"] and in_root(os.path.isdir, plan["workspace"])
    for path in ("/proc", "/dev"):
        folder(path)
    parts = {"/tmp": "disk/tmp", plan["home"]: "disk/home", plan["workspace"]: "disk/work"}
    for path in sorted(parts):  # outer ones first, so that they do not hide inner ones
        if path != plan["workspace"]:
            bind(parts[path], folder(path))
        elif plan["base"]:
            bind(plan["base"], "lower")
            overlay("lower", "work", folder(path))
        elif not has_workspace:
            bind(parts[path], folder(path))
    for source, path in plan["programs"]:
        target = folder(path)
        bind(source, target)
        read_only(target)


def show_system(plan: dict[str, Any]) -> None:
    for name in SYSTEM:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"root/{name}")
        elif os.path.isdir(f"/{name}"):
            show(f"/{name}", f"root/{name}")
    os.makedirs("root/etc")
    for name, text in OWN_ETC.items():
        write(f"root/etc/{name}", text.format(home=plan["home"]).encode())
    for name in ETC:
        if os.path.exists(f"/etc/{name}"):
            show(f"/etc/{name}", f"root/etc/{name}")
    write("root/etc/resolv.conf", b"")
    if not plan["own_network"] and os.path.exists("/etc/resolv.conf"):
        with open("/etc/resolv.conf", "rb") as file:
            write("root/etc/resolv.conf", file.read())
    os.makedirs("root/run")
    os.makedirs("root/var")
    os.symlink("../tmp", "root/var/tmp")


def show(source: str, target: str) -> None:
    """Skips what only its owner may read: the session may have the owner's id."""
    if not os.stat(source).st_mode & stat.S_IROTH:
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        write(target, b"")
    bind(source, target)
    read_only(target)


def write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def folder(path: str) -> str:
    """Creates a folder of the session's root if missing, and returns its path outside."""

    def made(path: str) -> str:
        path = os.path.realpath(path)
        os.makedirs(path, exist_ok=True)
        return path

    return f"root{in_root(made, path)}"


def in_root(act: Any, path: str) -> Any:
    """Resolves an image's links as they are inside of it."""
    node, here = os.open("/", os.O_PATH), os.open(".", os.O_PATH)
    os.chroot("root")
    os.chdir("/")
    try:
        return act(path)
    finally:
        os.fchdir(node)
        os.chroot(".")
        os.fchdir(here)
        os.close(node)
        os.close(here)


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", UP_AND_RUNNING))


def inside(base: str, path: str) -> str:
    if not path or "\0" in path or path.startswith("/"):
        raise HolderRefused(f"{path!r} is not a relative path")
    base = os.path.realpath(base)
    found = os.path.realpath(os.path.join(base, path))
    if os.path.commonpath([base, found]) != base:
        raise PathUnusable(f"{path!r} leads out of its folder")
    return found


def listen(request: dict[str, Any], given: list[int]) -> tuple[str, int]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", request["port"]))
        listener.listen(2048)
        return "", listener.detach()


def find(request: dict[str, Any], given: list[int]) -> tuple[str, int]:
    """The name in its parent folder, and the parent's descriptor."""
    found = inside(request["base"], request["path"])
    os.lstat(found)
    parent, name = os.path.split(found)
    return name, os.open(parent, os.O_PATH | os.O_DIRECTORY)


def find_folder(request: dict[str, Any], given: list[int]) -> tuple[str, int]:
    found = inside(request["base"], request["path"])
    if not os.path.isdir(found):
        raise PathUnusable(f"the workspace has no folder {request['path']!r}")
    return found, -1


def open_to_read(request: dict[str, Any], given: list[int]) -> tuple[str, int]:
    found = inside(request["base"], request["path"])
    file = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):  # reading a pipe would block forever
        os.close(file)
        raise FileNotFoundError(f"{request['path']!r} is not a file")
    return "", file


def open_to_write(request: dict[str, Any], given: list[int]) -> tuple[str, int]:
    found = inside(request["base"], request["path"])
    try:
        os.makedirs(os.path.dirname(found), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(found, flags, request["mode"])
        os.fchmod(file, request["mode"])
    except OSError as error:
        what = HolderRefused if error.errno in OF_THE_MACHINE else PathUnusable
        raise what(f"cannot write {os.path.basename(found)!r}: {error.strerror}") from error
    return "", file


def copy_in(request: dict[str, Any], given: list[int]) -> tuple[str, int]:
    found = inside(request["base"], request["path"])
    os.makedirs(found, exist_ok=True)
    copy_folder(given[0], found)
    return "", -1


def copy_folder(source: int, target: str) -> None:
    """Replaces what is there; only a folder stays where a folder is copied."""
    with os.scandir(source) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        path, seen = os.path.join(target, name), os.stat(name, dir_fd=source, follow_symlinks=False)
        is_folder = stat.S_ISDIR(seen.st_mode)
        if os.path.lexists(path) and not (is_folder and os.path.isdir(path) and not os.path.islink(path)):
            remove(path)
        if stat.S_ISLNK(seen.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), path)
        elif is_folder:
            os.makedirs(path, exist_ok=True)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=source)
            try:
                copy_folder(below, path)
            finally:
                os.close(below)
        elif stat.S_ISREG(seen.st_mode):
            copy_file(source, name, path)
        if not stat.S_ISLNK(seen.st_mode) and os.path.lexists(path):
            os.chmod(path, stat.S_IMODE(seen.st_mode))
            os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def copy_file(folder: int, name: str, target: str) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(source, "rb", buffering=0) as reading, open(target, "xb", buffering=0) as writing:
        while os.sendfile(writing.fileno(), reading.fileno(), None, 2**30):
            pass


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            remove(os.path.join(path, name))
        os.rmdir(path)
    else:
        os.unlink(path)


REQUESTS = {act.__name__: act for act in (listen, find, find_folder, open_to_read, open_to_write, copy_in)}


def answer(channel: socket.socket, message: bytes, given: list[int]) -> None:
    passed = -1
    request = json.loads(message)
    try:
        value, passed = REQUESTS[request["act"]](request, given)
        reply = {"value": value}
    except FileNotFoundError as error:
        reply = {"missing": f"there is no {request['path']!r}" if error.strerror else str(error)}
    except HolderRefused as error:
        reply = {"unusable" if isinstance(error, PathUnusable) else "refused": str(error)}
    except OSError as error:
        kind = "refused" if error.errno in OF_THE_MACHINE or "path" not in request else "unusable"
        reply = {kind: f"{request.get('path', request['act'])!r}: {error.strerror}"}
    except RecursionError:
        reply = {"unusable": f"{request['path']!r}: too deep"}
    socket.send_fds(channel, [json.dumps(reply).encode()], [passed] if passed >= 0 else [])
    for descriptor in (*given, passed):
        if descriptor >= 0:
            os.close(descriptor)


def end_the_rest(processes: int) -> None:
    """Bubblewrap dies with the node, unless it is just starting or was prevented from inside: so we scan for a
    while."""
    deadline = time.monotonic() + LINGER_S
    while time.monotonic() < deadline:
        for name in filter(str.isdigit, os.listdir(processes)):
            if int(name) != os.getpid() and is_in_session(processes, name):
                with suppress(OSError):
                    os.kill(int(name), signal.SIGKILL)
        time.sleep(LOOK_S)


def is_in_session(processes: int, name: str) -> bool:
    """Whether it is in our user namespace or one below it, which no process can leave."""
    ours, opened = os.stat("self/ns/user", dir_fd=processes), list[int]()
    try:
        opened.append(os.open(f"{name}/ns/user", os.O_RDONLY, dir_fd=processes))
        while not os.path.samestat(os.fstat(opened[-1]), ours):
            opened.append(fcntl.ioctl(opened[-1], GET_PARENT))
        return True
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)


def main(channel: socket.socket) -> None:
    plan = json.loads(channel.recv(MAX_MESSAGE_BYTES))
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        namespaces = NEW_USER | NEW_MOUNT | (NEW_NETWORK if plan["own_network"] else 0)
        kernel("the kernel permits no namespaces", "unshare", namespaces)
        channel.send(b"{}")
        if not channel.recv(MAX_MESSAGE_BYTES):  # the node has mapped the ids of the new user namespace
            return
        if plan["own_network"]:
            raise_loopback()
        assemble(plan)
        os.chroot("root")
        os.chdir("/")
        channel.send(b"{}")
    except (OSError, HolderRefused) as error:
        channel.send(json.dumps({"refused": f"cannot assemble the session's file system: {error}"}).encode())
        return
    with suppress(OSError):
        serve(channel)
    end_the_rest(processes)


def serve(channel: socket.socket) -> None:
    """Returns when the node's end of the channel closes."""
    while True:
        message, given, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 1)
        if not message:
            return
        answer(channel, message, given)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
