/* Tries what a contained session may not do, and prints one line for each attempt: its name and how it ended. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char ring[256]; /* the parameters of io_uring_setup */

static void tell(const char *name, long result, int number) {
    printf("%s: %s\n", name, result >= 0 ? "open" : strerror(number));
    fflush(stdout);
}

static void call(const char *name, long number, long a, long b, long c) {
    errno = 0;
    long result = syscall(number, a, b, c);
    tell(name, result, errno);
    if (result > 2) close((int)result);
}

#if defined(__x86_64__)
/* The 32-bit entry of the kernel, which a 64-bit program can use too. Its arguments are 32-bit addresses. */
static long by_interrupt(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    return (long)(int)result;
}

/* A filter may end whoever uses another architecture's calls. */
static int in_child(const char *name) {
    int status;
    pid_t child = fork();
    if (child == 0) return 1;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) printf("%s: ended by signal %d\n", name, WTERMSIG(status));
    fflush(stdout);
    return 0;
}

static int words[3]; /* the program is linked without PIE, so this has a 32-bit address */

static void by_other_numbers(int family, int type, const char *direct, const char *multiplexed, const char *x32) {
    words[0] = family, words[1] = type, words[2] = 0;
    long result;
    if (in_child(direct)) result = by_interrupt(359, family, type, 0), tell(direct, result, (int)-result), _exit(0);
    if (in_child(multiplexed))
        result = by_interrupt(102, 1, (long)words, 0), tell(multiplexed, result, (int)-result), _exit(0);
    if (in_child(x32)) call(x32, 0x40000000L | 41, family, type, 0), _exit(0);
}
#endif

int main(void) {
    static const struct { const char *name; int family, type; } tried[] = {
        {"AF_UNIX", AF_UNIX, SOCK_STREAM}, {"AF_INET", AF_INET, SOCK_STREAM}, {"AF_INET6", AF_INET6, SOCK_STREAM},
        {"AF_NETLINK", AF_NETLINK, SOCK_RAW}, {"AF_VSOCK", AF_VSOCK, SOCK_STREAM}, {"AF_PACKET", AF_PACKET, SOCK_RAW},
        {"AF_ALG", AF_ALG, SOCK_SEQPACKET}, {"AF_KEY", AF_KEY, SOCK_RAW}, {"AF_BLUETOOTH", AF_BLUETOOTH, SOCK_RAW},
        {"AF_CAN", AF_CAN, SOCK_RAW}, {"AF_RDS", AF_RDS, SOCK_SEQPACKET}, {"AF_TIPC", AF_TIPC, SOCK_STREAM},
        {"AF_XDP", AF_XDP, SOCK_RAW}, {"AF_UNSPEC", AF_UNSPEC, SOCK_STREAM},
    };
    for (unsigned i = 0; i < sizeof tried / sizeof *tried; i++)
        call(tried[i].name, SYS_socket, tried[i].family, tried[i].type, 0);
    call("AF_VSOCK with bits above an int", SYS_socket, 0x100000000L | AF_VSOCK, SOCK_STREAM, 0);
    int pair[2];
    int result = socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    tell("pair of AF_UNIX", result, errno);
    call("io_uring_setup", 425, 4, (long)ring, 0);
    call("keyctl", SYS_keyctl, 0, -3, 0);
    call("unshare of users", SYS_unshare, 0x10000000, 0, 0);
#if defined(__x86_64__)
    by_other_numbers(AF_UNIX, SOCK_STREAM, "AF_UNIX by 32 bits", "AF_UNIX by socketcall", "AF_UNIX by x32");
    by_other_numbers(AF_VSOCK, SOCK_STREAM, "AF_VSOCK by 32 bits", "AF_VSOCK by socketcall", "AF_VSOCK by x32");
    by_other_numbers(AF_ALG, SOCK_SEQPACKET, "AF_ALG by 32 bits", "AF_ALG by socketcall", "AF_ALG by x32");
    memset(ring, 0, sizeof ring);
    long made;
    const char *ring_name = "io_uring_setup by 32 bits";
    if (in_child(ring_name)) made = by_interrupt(425, 4, (long)ring, 0), tell(ring_name, made, (int)-made), _exit(0);
#endif
    return 0;
}
