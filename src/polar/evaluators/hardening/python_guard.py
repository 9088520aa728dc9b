"""Runs in every Python process of an evaluator's command, as its `sitecustomize`: notes how the process ends.

A copy of this file stands outside the workspace, on PYTHONPATH, beside the folder for its notes. It imports only
what Python has loaded by then, and nothing of Polar. Tested code runs in the same process and could undo it all:
it makes a cheat harder and visible, not impossible. It runs in Python 3.7 and later.
"""

import atexit
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NOTES = os.path.join(HERE, "notes")
MARK = "POLAR_GUARDED"
"""In the environment of what a Python process starts."""
MAX_FRAMES = 40


class Guard:
    """The notes of this process: a line for its start, then one for each event. A child by fork writes none."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._name = f"{time.time_ns()}-{self._pid}"
        self._exit = sys.exit
        self._hard_exit = os._exit

    def begin(self) -> None:
        main = sys.argv[0] if sys.argv else ""
        main = main if main in ("", "-c", "-m") else os.path.realpath(main)
        first = "" if MARK in os.environ else "first"
        self.note("began", str(self._pid), first, main, *words())
        os.environ[MARK] = "1"
        self._rename_report()
        atexit.register(self.end)
        sys.exit = self.exit
        if hasattr(sys, "addaudithook"):
            sys.addaudithook(self._audit)
        sys._polar_reached_end = self.reached_end  # pyright: ignore[reportAttributeAccessIssue]
        for module in (os, sys.modules[os.name]):
            module._exit = self.hard_exit  # pyright: ignore[reportAttributeAccessIssue]

    def note(self, *words: str) -> None:
        if os.getpid() != self._pid:
            return
        line = "\t".join(word.replace("\t", " ").replace("\n", " ") for word in words) + "\n"
        try:
            file = os.open(os.path.join(NOTES, self._name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line.encode(errors="backslashreplace"))
            os.close(file)
        except OSError:
            pass

    def reached_end(self) -> None:
        """The last line of a script of the task's calls it."""
        self.note("reached")

    def exit(self, status: object = None) -> None:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        files: "list[str]" = []  # noqa: UP037 - old Pythons have no list[str]
        while frame is not None and len(files) < MAX_FRAMES:
            files.append(os.path.realpath(frame.f_code.co_filename))
            frame = frame.f_back
        self.note("exit", *files)
        self._exit(status)  # pyright: ignore[reportArgumentType]

    def hard_exit(self, status: int) -> None:
        self.note("hard_exit")
        self._hard_exit(status)

    def end(self) -> None:
        if hasattr(sys, "last_type"):  # nothing caught it
            self.note("exception")
        self.note("ended")

    def _audit(self, event: str, arguments: object) -> None:
        if event == "os.exec":
            self.note("exec")

    def _rename_report(self) -> None:
        """Each pytest of a command writes a report of its own."""
        before, mark, after = os.environ.get("PYTEST_ADDOPTS", "").partition(os.path.join(NOTES, "report"))
        if mark:
            _, _, rest = after.partition(".xml")
            os.environ["PYTEST_ADDOPTS"] = f"{before}{mark}-{self._name}.xml{rest}"


def words() -> "list[str]":
    """The whole command line, also before Python 3.10."""
    if hasattr(sys, "orig_argv"):
        return sys.orig_argv
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return sys.argv


def run_next() -> None:
    """Runs the `sitecustomize` of the base, which this one hides."""
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder) != HERE and os.path.isfile(path):
            with open(path, "rb") as file:
                exec(compile(file.read(), path, "exec"), {"__name__": "sitecustomize", "__file__": path})
            return


if __name__ == "sitecustomize":
    if hasattr(sys, "argv"):  # Python 3.6 does not know yet what it runs
        Guard().begin()
    run_next()
