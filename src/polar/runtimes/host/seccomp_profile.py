"""Seccomp profiles as JSON, in the form that container engines share.

Sockets have the families of `system_calls`. Keys, io_uring, which could open sockets past that rule, and joining
other namespaces are closed; where the engine is able to, so are mounts, new namespaces, kernel modules and
clocks.
"""

from __future__ import annotations

import errno
from typing import Any

from polar.runtimes.host.system_calls import FAMILIES

NEW_NAMESPACES = 0x7E020000
"""The flags of clone that make a namespace."""
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Plain Linux, 32-bit programs, another kernel version, both, and a question."""
ARCHITECTURES = {"X86_64": ("X86", "X32"), "AARCH64": ("ARM",)}
"""Each with those whose programs it also runs."""
ALLOWED = """
_llseek _newselect accept accept4 access adjtimex alarm arch_prctl arm_fadvise64_64 bdflush bind breakpoint brk
cacheflush cachestat capget capset chdir chmod chown chown32 clock_getres clock_getres_time64 clock_gettime
clock_gettime64 clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2
dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat
exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat
fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr
fsetxattr fstat fstat64 fstatat fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue
futex_time64 futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area get_tls getcpu getcwd
getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer
getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr inotify_add_watch
inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64
io_setup io_submit ioctl ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self lchown lchown32 lgetxattr link linkat listen listxattr llistxattr llseek lremovexattr
lseek lsetxattr lsm_get_self_attr lsm_list_modules lstat lstat64 madvise map_shadow_stack membarrier
memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 modify_ldt
mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64
mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep
newfstatat nice oldfstat oldlstat oldolduname oldstat olduname open openat openat2 pause pidfd_open
pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv
preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64
pwritev pwritev2 read readahead readdir readlink readlinkat readv recvfrom recvmmsg recvmmsg_time64 recvmsg
remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64
rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr
sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64
sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address set_tls setfsgid
setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid
setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid
setuid32 setxattr sgetmask shmat shmctl shmdt shmget shutdown sigaction sigaltstack signal signalfd signalfd4
sigpending sigprocmask sigreturn sigsuspend splice ssetmask stat stat64 statfs statfs64 statx symlink symlinkat
sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun
timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64
timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink unlinkat usr26
usr32 utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev
"""
"""System calls of Linux that need no rule of their own."""


HIGHEST_FAMILY = 63
"""Linux has fewer."""
CLOSED = ("add_key", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl", "request_key", "setns")
WITH_FAMILY = ("socket", "socketpair")


def session_profile() -> dict[str, Any]:
    """Allows what is listed. `socketcall`, with which 32-bit programs opened sockets before Linux 4.3, is
    closed: a filter cannot see its arguments. Neither can it see those of `clone3`; programs then use clone."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "archMap": [
            {"architecture": f"SCMP_ARCH_{name}", "subArchitectures": [f"SCMP_ARCH_{each}" for each in others]}
            for name, others in ARCHITECTURES.items()
        ],
        "syscalls": [
            {"names": ALLOWED.split(), "action": "SCMP_ACT_ALLOW"},
            *(_rule("ALLOW", WITH_FAMILY, "EQ", family) for family in FAMILIES),
            *(_rule("ALLOW", ("personality",), "EQ", value) for value in PERSONALITIES),
            _rule("ALLOW", ("clone",), "MASKED_EQ", NEW_NAMESPACES),
            # Without this rule libseccomp would allow socketcall for what it allows of socket, with any family.
            {"names": ["clone3", "socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        ],
    }


def denying_profile() -> dict[str, Any]:
    """Allows what is not listed, for Apptainer, which answers every closed call with the same error: to a
    program that tries clone3, this one would not mean that it should use clone. It ends programs of other
    architectures, such as 32-bit ones."""
    others = (family for family in range(HIGHEST_FAMILY + 1) if family not in FAMILIES)
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {"names": [*CLOSED, "socketcall"], "action": "SCMP_ACT_ERRNO"},
            *(_rule("ERRNO", WITH_FAMILY, "EQ", family) for family in others),
            _rule("ERRNO", WITH_FAMILY, "GT", HIGHEST_FAMILY),
        ],
    }


def _rule(action: str, names: tuple[str, ...], comparison: str, value: int) -> dict[str, Any]:
    """If the first argument compares so with the value."""
    argument = {"index": 0, "value": value, "valueTwo": 0, "op": f"SCMP_CMP_{comparison}"}
    return {"names": list(names), "action": f"SCMP_ACT_{action}", "args": [argument]}
