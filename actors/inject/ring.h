/* A ring of frames in a file: many writers, the threads of one process, and one reader in another.

   A frame is made in memory of its thread; a mutex of this process is held only to copy it and to move the written
   position behind it. So the position never shows a piece of a frame, and a process that is killed at any instant
   leaves whole ones without a mark of commitment in each. A copy takes less than a microsecond and batches come by the
   thousand a second: threads hardly meet, and none waits for the reader (squall.actors.inject.batch_ring). A frame that
   finds no room is counted as lost. What is read of the mapping is never trusted: positions are kept outside of it.

   All functions are called with the mutex held. */

#include "ring_file.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
  uint64_t writer; /* 0: this library; 1: models/backend/squall_batches.py */
  uint64_t gap[3];
  _Alignas(64) _Atomic uint64_t written; /* bytes since the start; moves by whole frames */
  _Atomic uint64_t lost;
  _Alignas(64) _Atomic uint64_t read; /* the reader's */
} Header;

enum { UNKNOWN, UNTRIED, ON, OFF };
static struct {
  pthread_mutex_t mutex;
  _Atomic int state;
  Header *header;
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

static void fill_header(void *start, uint64_t n_bytes) {
  Header *header = start;
  memcpy(header->magic, "SQBATCH", 8);
  header->layout = LAYOUT;
  header->header_bytes = HEADER_BYTES;
  header->size = n_bytes - HEADER_BYTES;
  header->pid = getpid();
}

static void unmap(void) {
  if (ring.header) munmap(ring.header, HEADER_BYTES + ring.size);
  ring.header = NULL;
}

static void open_ring(void) {
  const char *path = secure_getenv("SQUALL_BATCHES");
  ring.size = asked_bytes();
  ring.written = ring.lost = 0;
  ring.pid = getpid();
  ring.header = new_ring_file(path ? path : "", "batches", HEADER_BYTES + ring.size, MAP_POPULATE, fill_header);
  if (!ring.header) dprintf(2, "squall: batches are not recorded: %s: %s\n", path ? path : "", strerror(errno));
  atomic_store_explicit(&ring.state, ring.header ? ON : OFF, memory_order_release);
}

static void put(const char *bytes, uint32_t n) {
  uint64_t used = ring.written - atomic_load_explicit(&ring.header->read, memory_order_acquire);
  if (used > ring.size || n > ring.size - used) {
    atomic_store_explicit(&ring.header->lost, ++ring.lost, memory_order_relaxed);
    return;
  }
  char *data = (char *)ring.header + HEADER_BYTES;
  uint64_t at = ring.written % ring.size, first = ring.size - at;
  if (first > n) first = n;
  memcpy(data + at, bytes, first);
  memcpy(data, bytes + first, n - first);
  ring.written += n;
  atomic_store_explicit(&ring.header->written, ring.written, memory_order_release);
}

static bool make_ready(void) {
  if (atomic_load_explicit(&ring.state, memory_order_relaxed) == UNTRIED) open_ring();
  return atomic_load_explicit(&ring.state, memory_order_relaxed) == ON;
}
