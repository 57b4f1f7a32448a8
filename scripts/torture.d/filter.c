/* Filters for all threads that end the process, or fail the call, for what a guest in the process might use:
 *   nofutex      futex, mmap, mprotect, munmap, mremap, madvise, open, socket, process_vm_*, userfaultfd: the process dies
 *   only         all but the five calls it makes: the process dies
 *   errno        all but those fail with EPERM
 *   trap         all but those raise SIGSYS, which is counted: none may come
 *   strict       the old mode, one thread */
#include "torture.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

static volatile sig_atomic_t trapped;
static void trap(int signal) { (void)signal, trapped++; }

static const int banned[] = {SYS_futex, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_mremap, SYS_madvise, SYS_openat, SYS_socket,
                             SYS_process_vm_readv, SYS_process_vm_writev, SYS_userfaultfd, SYS_process_madvise, SYS_clone,
                             SYS_clone3, SYS_ptrace, SYS_move_pages, SYS_memfd_create};
static const int allowed[] = {SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_write, SYS_exit_group,
                              SYS_restart_syscall, SYS_rt_sigreturn};

static atomic_int stop;
static void *work(void *argument)
{
    while (!stop)
        field_step(argument, 64), rest(0.0005);
    /* Ends with the process: even the end of a thread takes system calls. */
    for (;;)
        rest(1);
    return NULL;
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "only";
    int strict = !strcmp(how, "strict"), list = !strcmp(how, "nofutex");
    struct field *own = field_new(mib() << 19);
    if (!strict) {
        pthread_t thread;
        for (int i = 0; i < 2; i++)
            MUST(pthread_create(&thread, NULL, work, field_new(mib() << 18)) == 0);
    }
    signal(SIGSYS, trap);
    rest(seconds() / 3);
    const int *calls = list ? banned : allowed;
    size_t number = list ? sizeof banned / sizeof *banned : sizeof allowed / sizeof *allowed, n = 0;
    uint32_t other = !strcmp(how, "errno") ? SECCOMP_RET_ERRNO | EPERM : !strcmp(how, "trap") ? SECCOMP_RET_TRAP : SECCOMP_RET_KILL_PROCESS;
    struct sock_filter code[64];
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < number; i++)
        code[n] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i], (uint8_t)(number - i), 0), n++;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, list ? SECCOMP_RET_ALLOW : other);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, list ? other : SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)n, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    fflush(stdout);
    if (strict)
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0);
    else
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    if (strict) {
        for (int round = 0; round < 20000 * seconds(); round++)
            field_step(own, 16);
    } else {
        field_run(own, seconds() * 2 / 3);
    }
    field_check_all(own);
    const char *said = trapped ? "odd: a system call that is not the program's was trapped\n" : odd_seen ? "odd: see above\n" : "nothing odd\n";
    if (write(1, said, strlen(said)) < 0)
        odd("write");
    if (strict)
        syscall(SYS_exit, odd_seen != 0);
    syscall(SYS_exit_group, odd_seen || trapped);
}
