/* A ring of frames in a file: many writers, the threads of one process, and one reader in another.

   A frame is made in memory of its thread; a mutex of this process is held only to copy it and to move the written
   position behind it. So the position never shows a piece of a frame, and a process that is killed at any instant
   leaves whole ones without a mark of commitment in each. A copy takes less than a microsecond and batches come by the
   thousand a second: threads hardly meet, and none waits for the reader (squall.actors.inject.batch_ring). A frame that
   finds no room is counted as lost. What is read of the mapping is never trusted: positions are kept outside of it.

   All functions are called with the mutex held. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rings and frames are little-endian"
#endif

#define LAYOUT 1u
#define HEADER_BYTES 4096u
#define DEFAULT_RING_BYTES (8ull << 20)
#define LEAST_RING_BYTES (64ull << 10)
#define MOST_RING_BYTES (1ull << 30)

typedef struct { /* the first HEADER_BYTES of a ring's file; what two processes write stands in lines of its own */
  char magic[8];
  uint32_t layout, header_bytes;
  uint64_t size; /* of the data behind the header */
  int64_t pid;
  uint64_t gap[4];
  _Alignas(64) _Atomic uint64_t written; /* bytes since the start; moves by whole frames */
  _Atomic uint64_t lost;
  _Alignas(64) _Atomic uint64_t read; /* the reader's */
} Header;

enum { UNKNOWN, UNTRIED, ON, OFF };
static struct {
  pthread_mutex_t mutex;
  _Atomic int state;
  Header *header;
  char *data;
  uint64_t size, written, lost;
  int32_t pid;
} ring = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static uint64_t asked_bytes(void) {
  const char *text = secure_getenv("SQUALL_BATCHES_BYTES");
  uint64_t bytes = 0;
  if (!text || !*text) return DEFAULT_RING_BYTES;
  for (; *text; text++) {
    if (*text < '0' || *text > '9') return DEFAULT_RING_BYTES;
    bytes = bytes * 10 + (uint64_t)(*text - '0');
    if (bytes > MOST_RING_BYTES) return MOST_RING_BYTES;
  }
  return bytes < LEAST_RING_BYTES ? LEAST_RING_BYTES : (bytes + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES;
}

/* 0, or the errno of what failed. The room is reserved now: a write into a mapped file on a full disk would end the
   server (SIGBUS), and so would a file beyond its limit (SIGXFSZ). */
static int reserve(int fd, uint64_t bytes) {
  struct rlimit most;
  if (fchmod(fd, 0600)) return errno; /* whatever the umask is: the reader is of the same user */
  if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur != RLIM_INFINITY && bytes > most.rlim_cur) return EFBIG;
  return posix_fallocate(fd, 0, (off_t)bytes);
}

static int map(int fd, uint64_t size) {
  void *start = mmap(NULL, HEADER_BYTES + size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (start == MAP_FAILED) return errno;
  ring.header = start;
  ring.data = (char *)start + HEADER_BYTES;
  ring.size = size;
  ring.written = ring.lost = 0;
  memcpy(ring.header->magic, "SQBATCH", 8);
  ring.header->layout = LAYOUT;
  ring.header->header_bytes = HEADER_BYTES;
  ring.header->size = size;
  ring.header->pid = ring.pid = getpid();
  return 0;
}

static void unmap(void) {
  if (ring.header) munmap(ring.header, HEADER_BYTES + ring.size);
  ring.header = NULL;
}

/* The file gets the name that a reader looks for when it is whole. */
static int create_in(int folder) {
  uint64_t chance[2];
  char name[80], young[sizeof name + 4];
  if (getrandom(chance, sizeof chance, 0) != sizeof chance) return EAGAIN;
  snprintf(name, sizeof name, "batches-%d-%016llx%016llx.ring", (int)getpid(), (unsigned long long)chance[0],
           (unsigned long long)chance[1]);
  snprintf(young, sizeof young, "%s.new", name);
  int fd = openat(folder, young, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  uint64_t size = asked_bytes();
  int why = reserve(fd, HEADER_BYTES + size);
  if (!why) why = map(fd, size);
  if (!why && renameat(folder, young, folder, name)) why = errno;
  if (why) {
    unmap();
    unlinkat(folder, young, 0);
  }
  close(fd);
  return why;
}

static void open_ring(void) {
  const char *path = secure_getenv("SQUALL_BATCHES");
  int folder = open(path ? path : "", O_PATH | O_DIRECTORY | O_CLOEXEC);
  int why = folder < 0 ? errno : create_in(folder);
  if (folder >= 0) close(folder);
  if (why) dprintf(2, "squall: batches are not recorded: %s: %s\n", path ? path : "", strerror(why));
  atomic_store_explicit(&ring.state, why ? OFF : ON, memory_order_release);
}

static void put(const char *bytes, uint32_t n) {
  uint64_t used = ring.written - atomic_load_explicit(&ring.header->read, memory_order_acquire);
  if (used > ring.size || n > ring.size - used) {
    atomic_store_explicit(&ring.header->lost, ++ring.lost, memory_order_relaxed);
    return;
  }
  uint64_t at = ring.written % ring.size, first = ring.size - at;
  if (first > n) first = n;
  memcpy(ring.data + at, bytes, first);
  memcpy(ring.data, bytes + first, n - first);
  ring.written += n;
  atomic_store_explicit(&ring.header->written, ring.written, memory_order_release);
}

static bool make_ready(void) {
  if (atomic_load_explicit(&ring.state, memory_order_relaxed) == UNTRIED) open_ring();
  return atomic_load_explicit(&ring.state, memory_order_relaxed) == ON;
}
