/* The life of the library in a process: begun by CUDA, switched by the reader of its ring, ended at exit.

   Nothing is made before CUDA calls InitializeInjection: a process without CUDA has no file, no thread, no CUPTI. */

#include "kernels.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { IDLE_MS = 100, FLUSHES_AFTER = 3 };

static pthread_mutex_t acting = PTHREAD_MUTEX_INITIALIZER; /* who starts, stops or flushes CUPTI holds it */
static bool is_ending;
static uint32_t kinds;
static uint64_t flush_ms;

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static uint64_t setting(const char *name, uint64_t fallback, uint64_t least, uint64_t most) {
  const char *text = getenv(name);
  char *end;
  errno = 0;
  unsigned long long value = text ? strtoull(text, &end, 10) : 0;
  if (!text || !*text || *end || errno) return fallback;
  return value < least ? least : value > most ? most : value;
}

static uint32_t wanted_kinds(void) {
  static const struct {
    const char *name;
    uint32_t bit;
  } names[] = {{"kernels", KERNELS}, {"copies", COPIES}, {"sync", SYNC},
               {"runtime", RUNTIME}, {"driver", DRIVER}, {"events", EVENTS}};
  const char *text = getenv("SQUALL_KERNEL_KINDS");
  if (!text || !*text) return KERNELS | COPIES;
  uint32_t found = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    size_t n = strlen(names[i].name);
    for (const char *at = text; (at = strstr(at, names[i].name)); at += n)
      if ((at == text || at[-1] == ',') && (!at[n] || at[n] == ',')) found |= names[i].bit;
  }
  return found;
}

/* Meets a wish: odd is on. The reader waits for `done`, so that comes last. */
static void meet(uint32_t wish) {
  bool is_on = wish & 1, has_failed = false;
  int64_t begun_ns = now_ns();
  if (begin_writing()) {
    if (is_on) tell_names_again();
    end_writing();
  }
  if (is_on)
    has_failed = !start_recording(kinds);
  else
    stop_recording();
  int64_t done_ns = now_ns();
  if (!is_on) flush(0);
  if (begin_writing()) {
    write_switch(is_on, has_failed, begun_ns, done_ns);
    end_writing();
  }
  ring->begun_ns = begun_ns;
  ring->done_ns = done_ns;
  __atomic_store_n(&ring->done, wish, __ATOMIC_RELEASE);
}

/* Until the reader wishes something else, or `ms` have passed. The reader wakes us by the same word: a wait costs
   nothing, where looking every half millisecond would cost each process two thousand wake-ups a second. */
static void wait_for_wish(uint32_t seen, uint64_t ms) {
  struct timespec most = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  syscall(SYS_futex, &ring->wanted, FUTEX_WAIT, seen, &most, NULL, 0);
}

/* It keeps the priority of the process: while it flushes, it may hold a lock of CUPTI that a launch waits for. */
static void *controlled(void *unused) {
  int n_flushes = 0; /* after an end, for what was still under way then */
  prctl(PR_SET_NAME, "squall-kernels");
  for (;;) {
    uint32_t met = __atomic_load_n(&ring->done, __ATOMIC_ACQUIRE);
    bool is_on = met & 1;
    wait_for_wish(met, (is_on || n_flushes) && flush_ms ? flush_ms : IDLE_MS);
    pthread_mutex_lock(&acting);
    uint32_t wish = __atomic_load_n(&ring->wanted, __ATOMIC_ACQUIRE);
    bool has_ended = is_ending;
    if (has_ended) {
    } else if (wish != met) {
      meet(wish);
      n_flushes = FLUSHES_AFTER;
    } else if (is_on ? flush_ms : n_flushes && n_flushes--) {
      flush(0);
    }
    pthread_mutex_unlock(&acting);
    if (has_ended) return unused;
  }
}

static bool begin_thread(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the server's signals are not for this thread */
  pthread_t thread;
  int rc = pthread_create(&thread, NULL, controlled, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!rc) pthread_detach(thread);
  return !rc;
}

static void at_exit(void) {
  if (!__atomic_load_n(&ring, __ATOMIC_ACQUIRE)) return;
  pthread_mutex_lock(&acting);
  is_ending = true;
  stop_recording();
  flush(CUPTI_FORCED);
  pthread_mutex_unlock(&acting);
  __atomic_store_n(&ring->is_ended, 1, __ATOMIC_RELEASE);
}

static void begin(const char *folder) {
  uint64_t buffer_bytes = setting("SQUALL_KERNEL_BUFFER_BYTES", 1 << 20, 1 << 14, 1 << 26) & ~UINT64_C(7);
  const char *failed = create_ring(folder, setting("SQUALL_KERNEL_RING_BYTES", 32 << 20, 1 << 12, 1u << 31));
  if (failed) {
    fprintf(stderr, "squall kernels: %s: %s: %s\n", folder, failed, strerror(errno));
    return;
  }
  pthread_atfork(NULL, NULL, leave_ring);
  kinds = wanted_kinds();
  flush_ms = setting("SQUALL_KERNEL_FLUSH_MS", 200, 0, 60000);
  ring->buffer_bytes = (uint32_t)buffer_bytes;
  if (!create_buffers(buffer_bytes, setting("SQUALL_KERNEL_BUFFERS", 32, 2, 256)))
    return say(REFUSED, "no memory for buffers: %s", strerror(errno));
  open_cupti();
  atexit(at_exit); /* after CUPTI was loaded, so that it runs before CUPTI's own ends */
  if (setting("SQUALL_KERNEL_RECORD", 0, 0, 1)) {
    __atomic_store_n(&ring->wanted, 1, __ATOMIC_RELEASE);
    meet(1);
  }
  if (!begin_thread()) say(REFUSED, "no thread can be made that would switch recording");
}

/* Called by CUDA in the first call of a process that uses it. 1 says that all is well: the model runs on whatever
   became of us. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
  static int has_begun;
  const char *folder = getenv("SQUALL_KERNELS");
  if (folder && *folder && !__atomic_exchange_n(&has_begun, 1, __ATOMIC_ACQ_REL)) begin(folder);
  return 1;
}
