/* The ring: a file that this process writes and one other reads. Nothing here waits for the reader. */

#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

Header *ring;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Record *slots;
static uint64_t n_slots, head; /* our own copies: what is in the file may be overwritten */

/* A new file that nobody could have put there first, readable by this user alone; -1 with errno else. */
static int new_file(const char *folder, uint64_t n_bytes) {
  uint64_t secret[2];
  char path[4096];
  if (getrandom(secret, sizeof secret, 0) != sizeof secret) return -1;
  int n = snprintf(path, sizeof path, "%s/kernels-%d-%016llx%016llx.ring", folder, (int)getpid(),
                   (unsigned long long)secret[0], (unsigned long long)secret[1]);
  if (n < 0 || (size_t)n >= sizeof path) return errno = ENAMETOOLONG, -1;
  int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return -1;
  int rc = posix_fallocate(file, 0, (off_t)n_bytes); /* else a full disk would be a SIGBUS in the server */
  if (rc) {
    unlink(path);
    close(file);
    return errno = rc, -1;
  }
  return file;
}

const char *create_ring(const char *folder, uint64_t n_bytes) {
  n_slots = n_bytes / RECORD_BYTES;
  uint64_t n_all = HEADER_BYTES + n_slots * RECORD_BYTES;
  int file = new_file(folder, n_all);
  if (file < 0) return "a file in it cannot be made";
  Header *mapped = mmap(NULL, n_all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return "a file in it cannot be mapped";
  slots = (Record *)((char *)mapped + HEADER_BYTES);
  mapped->header_bytes = HEADER_BYTES;
  mapped->record_bytes = RECORD_BYTES;
  mapped->n_slots = n_slots;
  mapped->pid = (uint32_t)getpid();
  mapped->started_ns = now_ns();
  uint64_t magic;
  memcpy(&magic, "sqkern1", sizeof magic);
  __atomic_store_n(&mapped->magic, magic, __ATOMIC_RELEASE);
  __atomic_store_n(&ring, mapped, __ATOMIC_RELEASE);
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
