/* A clock that does not depend on how fast or busy the machine is.

   Preloaded into a router that is counted. While $BENCH_CLOCK says that it is held, time passes by
   STEP_NS with each look at the clock, and by what that file says: a router's timers come due after
   so much work, not after so many seconds. Under valgrind, a hundred times as slow, they would
   otherwise be much of what is counted. A wait for events that nothing ends lasts PATIENCE_MS, and
   the clock moves on by what it was to last. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* A unary request looks some ten times: 50 us, as at its own speed. */
#define STEP_NS 5000
#define PATIENCE_MS 200
#define NS 1000000000LL
#define CLOCKS 8
#define KERNEL_MASK_BYTES 8

/* The file: see clock.py. */
struct control {
    long long is_held, skipped_ns;
};

static const volatile struct control *control;
static long long begun[CLOCKS];
static atomic_llong passed;
static atomic_int starting, started;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("BENCH_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *control, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        control = page;
    if (file >= 0)
        close(file);
}

/* Whether time is held; the first one who asks takes down all clocks at one moment. */
static int is_held(void) {
    if (!control || !control->is_held)
        return 0;
    if (!atomic_load(&started) && !atomic_exchange(&starting, 1)) {
        for (int id = 0; id < CLOCKS; id++) {
            struct timespec now = {0, 0};
            syscall(SYS_clock_gettime, id, &now);
            begun[id] = now.tv_sec * NS + now.tv_nsec;
        }
        atomic_store(&started, 1);
    }
    return atomic_load(&started);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int is_cpu = id < 0 || id >= CLOCKS || id == CLOCK_PROCESS_CPUTIME_ID ||
                 id == CLOCK_THREAD_CPUTIME_ID;
    if (!is_held() || is_cpu)
        return syscall(SYS_clock_gettime, id, now);
    long long is = begun[id] + control->skipped_ns + atomic_fetch_add(&passed, STEP_NS);
    now->tv_sec = is / NS;
    now->tv_nsec = is % NS;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec fine;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &fine))
        return -1;
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int epoll_pwait(int epoll, struct epoll_event *events, int most, int timeout, const sigset_t *mask) {
    int wait = is_held() && timeout > 0 && timeout < PATIENCE_MS ? PATIENCE_MS : timeout;
    int found = syscall(SYS_epoll_pwait, epoll, events, most, wait, mask, KERNEL_MASK_BYTES);
    if (!found && wait > 0 && is_held())
        atomic_fetch_add(&passed, timeout * (NS / 1000));
    return found;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    return epoll_pwait(epoll, events, most, timeout, 0);
}
