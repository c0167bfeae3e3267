/* The ring: a file that this process writes and one other reads. Nothing here waits for the reader. */

#include "kernels.h"

#include "../ring_file.h"

#include <pthread.h>
#include <stdarg.h>
#include <string.h>

Header *ring;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Record *slots;
static uint64_t n_slots, head; /* our own copies: what is in the file may be overwritten */

static void fill_header(void *start, uint64_t n_bytes) {
  Header *header = start;
  memcpy(&header->magic, "sqkern1", sizeof header->magic);
  header->header_bytes = HEADER_BYTES;
  header->record_bytes = RECORD_BYTES;
  header->n_slots = (n_bytes - HEADER_BYTES) / RECORD_BYTES;
  header->pid = (uint32_t)getpid();
  header->started_ns = now_ns();
}

const char *create_ring(const char *folder, uint64_t n_bytes) {
  n_slots = n_bytes / RECORD_BYTES;
  Header *header = new_ring_file(folder, "kernels", HEADER_BYTES + n_slots * RECORD_BYTES, 0, fill_header);
  if (!header) return "a file in it cannot be made";
  slots = (Record *)((char *)header + HEADER_BYTES);
  __atomic_store_n(&ring, header, __ATOMIC_RELEASE);
  return NULL;
}

bool begin_writing(void) {
  if (!__atomic_load_n(&ring, __ATOMIC_ACQUIRE)) return false;
  pthread_mutex_lock(&lock);
  return true;
}

void end_writing(void) { pthread_mutex_unlock(&lock); }

/* A `tail` that no reader can have written makes the ring full: records are lost and counted, nothing else follows. */
bool has_room(uint64_t n_records) {
  uint64_t n_used = head - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
  return n_used <= n_slots && n_slots - n_used >= n_records;
}

Record *free_record(void) {
  if (!has_room(1)) return count(&ring->n_lost, 1), NULL;
  Record *record = &slots[head % n_slots];
  memset(record, 0, sizeof *record);
  return record;
}

void publish(void) { __atomic_store_n(&ring->head, ++head, __ATOMIC_RELEASE); }

void count(uint64_t *word, uint64_t n) { __atomic_fetch_add(word, n, __ATOMIC_RELAXED); }

void say(Status status, const char *format, ...) {
  char text[TEXT_BYTES] = "";
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  memcpy(ring->text, text, sizeof text);
  __atomic_store_n(&ring->status, (uint32_t)status, __ATOMIC_RELEASE);
}

void leave_ring(void) { __atomic_store_n(&ring, NULL, __ATOMIC_RELEASE); }
