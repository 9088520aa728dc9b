"""A real Slurm on this machine: munge, a controller, and a daemon for each of two machines, all started here."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from ports import port_to_come_back_to
from service_bench import POLAR, ServiceBench
from waiting import HANG_S, blocked_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "squeue", "sinfo", "scontrol", "srun")
CONF = """
ClusterName=polar
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
NodeName=m1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=100
NodeName=m2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=100
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmMachines:
    def __init__(self, bench: ServiceBench) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
        if missing:
            pytest.skip(f"there is no {missing[0]}: `make slurm` installs Slurm")
        self.bench = bench
        self.folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
        """Short: munge has a unix socket in it."""
        self.env = {**bench.env, "PATH": _path(), "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        ports = [port_to_come_back_to() for _ in range(3)]
        values = {"host": socket.gethostname().split(".")[0], "user": getpass.getuser(), "ports": ports}
        (self.folder / "slurm.conf").write_text(CONF.format(folder=self.folder, **values))
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {
            "key-file": key.name,
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
        }
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *options)
        blocked_until((self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D", "-c")
        for name in ("m1", "m2"):
            self._daemon("slurmd", "-D", "-N", name)
        blocked_until(lambda: self.answer("sinfo", "-h", "-o", "%t %D").strip() == "idle 2", pause_s=0.2)

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"daemon-{len(self._daemons)}.log").open("wb") as log:
            daemon = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._daemons.append(daemon)

    def answer(self, *command: str) -> str:
        """Empty if the controller does not answer yet."""
        done = subprocess.run(
            command,
            env=self.env,
            cwd=self.bench.folder,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert [daemon.args for daemon in self._daemons if daemon.poll() is not None] == [], self.logs()
        return done.stdout

    def submit(self, *options: str) -> str:
        """Writes a batch script with `polar cluster slurm`, gives it to sbatch, and returns the job's id."""
        wrapper = self.bench.folder / "polar"
        wrapper.write_text(f'#!/bin/sh\nexec {POLAR[0]} {POLAR[1]} {POLAR[2]} "{POLAR[3]}" "$@"\n')
        wrapper.chmod(0o755)
        script = subprocess.run(
            [*POLAR, "cluster", "slurm", "--polar", str(wrapper), "--cpus", "1", *options],
            env=self.env,
            cwd=self.bench.folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (self.bench.folder / "job.sh").write_text(script)
        job = self.answer("sbatch", "--parsable", "job.sh").strip()
        assert job, self.logs()
        return job

    def state(self, job: str) -> str:
        """As `COMPLETED 0:0`."""
        fields = dict(field.partition("=")[::2] for field in self.answer("scontrol", "show", "job", job).split())
        return f"{fields.get('JobState')} {fields.get('ExitCode')}"

    def output(self, job: str) -> str:
        path = self.bench.folder / f"polar-{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        if self._daemons and self._daemons[-1].poll() is None:
            subprocess.run(["scancel", "--user", getpass.getuser()], env=self.env, check=False)
            blocked_until(lambda: not self.answer("squeue", "-h"), pause_s=0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(HANG_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def _path() -> str:
    """Daemons are not on everybody's."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"
