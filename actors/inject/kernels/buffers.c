/* The buffers that CUPTI fills: a fixed number, so that memory is bounded. Untouched ones cost address space only.

   They are zero when they are handed out, which CUPTI is told: else it would zero them itself, on the thread that
   launches. Here that is done where they come back, on CUPTI's thread or ours. */

#include "kernels.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_BUFFERS = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *free_buffers[MOST_BUFFERS];
static uint64_t n_free;
static size_t buffer_bytes;

bool create_buffers(uint64_t n_bytes, uint64_t n_buffers) {
  if (n_buffers > MOST_BUFFERS) n_buffers = MOST_BUFFERS;
  uint8_t *memory = mmap(NULL, n_bytes * n_buffers, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  buffer_bytes = n_bytes;
  for (n_free = 0; n_free < n_buffers; n_free++) free_buffers[n_free] = memory + (n_buffers - 1 - n_free) * n_bytes;
  return true;
}

static uint8_t *taken(void) {
  pthread_mutex_lock(&lock);
  uint8_t *buffer = n_free ? free_buffers[--n_free] : NULL;
  pthread_mutex_unlock(&lock);
  return buffer;
}

static void put_back(uint8_t *buffer) {
  pthread_mutex_lock(&lock);
  if (n_free < MOST_BUFFERS) free_buffers[n_free++] = buffer;
  pthread_mutex_unlock(&lock);
}

/* Without a buffer CUPTI drops records and counts them. */
void request_buffer(uint8_t **buffer, size_t *n_bytes, size_t *most_records) {
  Header *header = __atomic_load_n(&ring, __ATOMIC_ACQUIRE);
  *buffer = header ? taken() : NULL;
  *n_bytes = *buffer ? buffer_bytes : 0;
  *most_records = 0; /* as many as it holds */
  if (header) __atomic_fetch_add(*buffer ? &header->n_buffers_out : &header->n_buffers_refused, 1, __ATOMIC_RELAXED);
}

void complete_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t n_bytes, size_t n_valid) {
  if (!begin_writing()) return;
  if (n_valid) write_records(buffer, n_valid);
  size_t n_dropped = 0;
  if (cupti.dropped(context, stream, &n_dropped) == CUPTI_OK) count(&ring->n_dropped, n_dropped);
  __atomic_fetch_sub(&ring->n_buffers_out, 1, __ATOMIC_RELAXED);
  end_writing();
  memset(buffer, 0, n_bytes);
  put_back(buffer);
}
