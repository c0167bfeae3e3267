/* A CUPTI of known behaviour, for tests of the kernel library: records that a host program asks for, in the layout of
   the version that FAKE_CUPTI_VERSION names (130001), and faults:

   FAKE_CUPTI_FAIL     "cuptiSubscribe=39,cuptiActivityEnable=35": what a function answers; "cuptiActivityEnable:38=21"
                       of one kind alone
   FAKE_CUPTI_TAKEN_BY a file: where it is there, somebody else has CUPTI
   FAKE_CUPTI_HOLD     how many full buffers it keeps until it is flushed
   -DWITHOUT_…         a build that lacks a function

   Every field of a record is made of its number (`fake_…` below), so that a reader can hold all of them to it. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void (*Request)(uint8_t **, size_t *, size_t *);
typedef void (*Complete)(void *, uint32_t, uint8_t *, size_t, size_t);

enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, KERNEL = 10, PEER = 22, EVENT = 36, SYNC = 38, N_KINDS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t flushing = PTHREAD_MUTEX_INITIALIZER; /* who flushes waits for what another hands over */
static Request request;
static Complete complete;
static uint64_t (*stamp)(void);
static int is_enabled[N_KINDS];
static uint8_t *buffer;
static size_t n_bytes, n_used;
static size_t n_dropped;
static uint8_t is_zeroed;

static unsigned version(void) {
  const char *text = getenv("FAKE_CUPTI_VERSION");
  return text ? (unsigned)atoi(text) : 130001;
}

/* What `function`, or `function:kind`, is told to answer; 0 else. */
static int fault(const char *function) {
  const char *text = getenv("FAKE_CUPTI_FAIL"), *at = text ? strstr(text, function) : NULL;
  size_t n = strlen(function);
  return at && at[n] == '=' ? atoi(at + n + 1) : 0;
}

/* How large a record is: CUDA 11.1 to 11.8, to 12.9, 13.0 and 13.5 by the headers of the wheels. */
static size_t size_of(uint32_t kind) {
  unsigned v = version();
  switch (kind) {
    case KERNEL: return v < 18 ? 160 : v < 130000 ? 208 : v < 130500 ? 216 : 248;
    case MEMCPY: return v < 18 ? 80 : v < 130000 ? 88 : v < 130500 ? 96 : 112;
    case PEER: return v < 18 ? 88 : 96;
    case MEMSET: return v < 18 ? 80 : v < 130500 ? 88 : 104;
    case EVENT: return v < 26 ? 24 : v < 130500 ? 56 : 80;
    case SYNC: return v < 26 ? 40 : 56;
    default: return 40;
  }
}

int cuptiGetVersion(uint32_t *found) { return *found = version(), fault("cuptiGetVersion"); }

int cuptiActivityEnable(int kind) {
  char named[64];
  snprintf(named, sizeof named, "cuptiActivityEnable:%d", kind);
  int result = fault("cuptiActivityEnable");
  if (!result) result = fault(named);
  if (result) return result;
  pthread_mutex_lock(&lock);
  is_enabled[kind] = 1;
  pthread_mutex_unlock(&lock);
  return 0;
}

int cuptiActivityDisable(int kind) {
  pthread_mutex_lock(&lock);
  is_enabled[kind] = 0;
  pthread_mutex_unlock(&lock);
  return 0;
}

static struct {
  uint8_t *buffer;
  size_t n_bytes, n_used;
} held[64];
static int n_held;

/* Under the lock. */
static void hand_over(void) {
  if (!buffer) return;
  uint8_t *full = buffer;
  size_t n_valid = n_used, n_all = n_bytes;
  buffer = NULL;
  const char *text = getenv("FAKE_CUPTI_HOLD");
  if (n_held < (text ? atoi(text) : 0)) {
    held[n_held].buffer = full;
    held[n_held].n_bytes = n_all;
    held[n_held++].n_used = n_valid;
    return;
  }
  pthread_mutex_unlock(&lock); /* as CUPTI: its callbacks may call it */
  complete(NULL, 0, full, n_all, n_valid);
  pthread_mutex_lock(&lock);
}

int cuptiActivityFlushAll(uint32_t flags) {
  (void)flags;
  pthread_mutex_lock(&flushing);
  pthread_mutex_lock(&lock);
  while (n_held) {
    uint8_t *full = held[--n_held].buffer;
    size_t n_all = held[n_held].n_bytes, n_valid = held[n_held].n_used;
    pthread_mutex_unlock(&lock);
    complete(NULL, 0, full, n_all, n_valid);
    pthread_mutex_lock(&lock);
  }
  hand_over();
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&flushing);
  return 0;
}

int cuptiActivityRegisterCallbacks(Request requested, Complete completed) {
  request = requested;
  complete = completed;
  return fault("cuptiActivityRegisterCallbacks");
}

#ifndef WITHOUT_NEXT_RECORD
int cuptiActivityGetNextRecord(uint8_t *from, size_t n_valid, void **record) {
  uint32_t kind;
  uint8_t *next = from;
  if (*record) {
    memcpy(&kind, *record, sizeof kind);
    next = (uint8_t *)*record + size_of(kind);
  }
  if (next >= from + n_valid) return 12;
  *record = next;
  return 0;
}
#endif

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *n) {
  (void)context, (void)stream;
  pthread_mutex_lock(&lock);
  *n = n_dropped;
  n_dropped = 0;
  pthread_mutex_unlock(&lock);
  return 0;
}

#ifndef WITHOUT_TIMESTAMP_CALLBACK
int cuptiActivityRegisterTimestampCallback(uint64_t (*given)(void)) {
  stamp = given;
  return fault("cuptiActivityRegisterTimestampCallback");
}
#endif

#ifndef WITHOUT_CLOCK
int cuptiGetTimestamp(uint64_t *ns) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  return fault("cuptiGetTimestamp");
}
#endif

int cuptiSetThreadIdType(int type) { return type == 1 ? 0 : 1; }

int cuptiActivitySetAttribute(int attribute, size_t *size, void *value) {
  if (attribute == 5 && *size == 1) memcpy(&is_zeroed, value, 1);
  return fault("cuptiActivitySetAttribute");
}

int cuptiGetResultString(int result, const char **text) {
  *text = result == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : result == 35
          ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_OTHER";
  return 0;
}

int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
  static const char *const names[2][2] = {{"cuLaunchKernel", "cuMemcpyAsync"},
                                          {"cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"}};
  *name = names[domain == 2][id % 2];
  return 0;
}

#ifndef WITHOUT_SUBSCRIBE
int cuptiSubscribe(void **subscriber, void *callback, void *data) {
  (void)callback, (void)data;
  const char *taken = getenv("FAKE_CUPTI_TAKEN_BY");
  if (taken && !access(taken, F_OK)) return 39;
  *subscriber = &lock;
  return fault("cuptiSubscribe");
}

int cuptiUnsubscribe(void *subscriber) { return subscriber == &lock ? 0 : 1; }
#endif

/* What the host program asks for. */

static uint64_t fake_now(void) {
  uint64_t ns = 0;
  if (stamp) return stamp();
#ifndef WITHOUT_CLOCK
  cuptiGetTimestamp(&ns);
#endif
  return ns;
}

/* Under the lock: zeroed room for a record; NULL where the kind is off, or there is no buffer (a drop). */
static uint8_t *room(uint32_t kind) {
  size_t n = size_of(kind);
  if (!is_enabled[kind]) return NULL;
  while (buffer && n_bytes - n_used < n) hand_over();
  if (!buffer) {
    size_t most = 0;
    request(&buffer, &n_bytes, &most);
    n_used = 0;
    if (buffer && !is_zeroed) memset(buffer, 0, n_bytes);
  }
  if (!buffer || n_bytes - n_used < n) return n_dropped++, NULL;
  uint8_t *at = buffer + n_used;
  for (size_t i = 0; i < n; i++)
    if (at[i]) abort(); /* we were promised zeroes */
  n_used += n;
  memset(at, 0xEE, n); /* whatever a version appends must not be read as anything */
  memset(at, 0, n < 40 ? n : 40);
  memcpy(at, &kind, sizeof kind);
  return at;
}

static void put(uint8_t *record, size_t offset, uint64_t value, size_t n) { memcpy(record + offset, &value, n); }

void fake_kernel(uint32_t number, const char *name, int is_timed) {
  pthread_mutex_lock(&lock);
  uint8_t *record = room(KERNEL);
  uint64_t now = fake_now();
  if (record) {
    put(record, 6, number % 200, 2);
    put(record, 16, is_timed ? now : 0, 8);
    put(record, 24, is_timed ? now + 1000 + number : 0, 8);
    put(record, 40, number % 8, 4);
    put(record, 44, number % 3 + 1, 4);
    put(record, 48, number % 5 + 7, 4);
    for (size_t i = 0; i < 6; i++) put(record, 52 + 4 * i, number % 100 + i + 1, 4);
    put(record, 76, number % 1000, 4);
    put(record, 80, number % 2000, 4);
    put(record, 92, number, 4);
    put(record, 104, (uint64_t)(uintptr_t)name, 8);
    put(record, 144, (uint64_t)number << 20, 8);
    put(record, 156, number % 11, 4);
  }
  pthread_mutex_unlock(&lock);
}

void fake_copy(uint32_t number, int is_peer) {
  pthread_mutex_lock(&lock);
  uint8_t *record = room(is_peer ? PEER : MEMCPY);
  uint64_t now = fake_now();
  if (record) {
    put(record, 4, number % 10 + 1, 1);
    put(record, 5, 3, 1);
    put(record, 6, 4, 1);
    put(record, 7, 1, 1);
    put(record, 8, (uint64_t)number * 4096, 8);
    put(record, 16, now, 8);
    put(record, 24, now + 500, 8);
    for (size_t i = 0; i < 3; i++) put(record, 32 + 4 * i, number % 8 + i, 4);
    if (is_peer) put(record, 52, number % 6, 4);
    put(record, is_peer ? 60 : 44, number, 4);
    put(record, is_peer ? 72 : 64, 77, 8);
    put(record, is_peer ? 80 : 72, 78, 4);
  }
  pthread_mutex_unlock(&lock);
}

void fake_memset(uint32_t number) {
  pthread_mutex_lock(&lock);
  uint8_t *record = room(MEMSET);
  uint64_t now = fake_now();
  if (record) {
    put(record, 4, 0xAB, 4);
    put(record, 8, (uint64_t)number * 64, 8);
    put(record, 16, now, 8);
    put(record, 24, now + 300, 8);
    for (size_t i = 0; i < 3; i++) put(record, 32 + 4 * i, number % 8 + i, 4);
    put(record, 44, number, 4);
    put(record, 48, 1, 2);
    put(record, 50, 4, 2);
    put(record, 64, 79, 8);
    put(record, 72, 80, 4);
  }
  pthread_mutex_unlock(&lock);
}

void fake_sync(uint32_t number) {
  pthread_mutex_lock(&lock);
  uint8_t *record = room(SYNC);
  uint64_t now = fake_now();
  if (record) {
    put(record, 4, number % 5, 4);
    put(record, 8, now, 8);
    put(record, 16, now + 200, 8);
    put(record, 24, number, 4);
    put(record, 28, 5, 4);
    put(record, 32, 6, 4);
    put(record, 36, number + 9, 4);
  }
  pthread_mutex_unlock(&lock);
}

void fake_call(uint32_t number, int is_driver) {
  pthread_mutex_lock(&lock);
  uint8_t *record = room(is_driver ? DRIVER : RUNTIME);
  uint64_t now = fake_now();
  if (record) {
    put(record, 4, number, 4);
    put(record, 8, now, 8);
    put(record, 16, now + 100, 8);
    put(record, 24, (uint64_t)getpid(), 4);
    put(record, 28, number + 1000, 4);
    put(record, 32, number, 4);
    put(record, 36, number % 3, 4);
  }
  pthread_mutex_unlock(&lock);
}

void fake_event(uint32_t number, uint32_t stream, uint32_t event) {
  pthread_mutex_lock(&lock);
  uint8_t *record = is_enabled[SYNC] ? room(EVENT) : NULL; /* as 130001 */
  if (record) {
    put(record, 4, number, 4);
    put(record, 8, 1, 4);
    put(record, 12, stream, 4);
    put(record, 16, event, 4);
  }
  pthread_mutex_unlock(&lock);
}

int fake_is_on(void) {
  pthread_mutex_lock(&lock);
  int is_on = is_enabled[KERNEL];
  pthread_mutex_unlock(&lock);
  return is_on;
}

/* A kernel, or a copy to the host, of GPU 0 that is `size` large and ran when the caller says. */
void fake_ran(uint32_t number, uint32_t stream, int is_copy, uint32_t size, uint64_t start, uint64_t end) {
  pthread_mutex_lock(&lock);
  uint8_t *record = room(is_copy ? MEMCPY : KERNEL);
  if (record) {
    put(record, 16, start, 8);
    put(record, 24, end, 8);
    put(record, is_copy ? 36 : 44, 1, 4);
    put(record, is_copy ? 40 : 48, stream, 4);
    put(record, is_copy ? 44 : 92, number, 4);
    if (is_copy) {
      put(record, 4, 2, 1);
      put(record, 8, size, 8);
      put(record, 64, 0, 8);
      put(record, 72, 0, 4);
    } else {
      for (size_t i = 0; i < 6; i++) put(record, 52 + 4 * i, i ? 1 : size, 4);
      put(record, 40, 0, 4);
      put(record, 76, 0, 8);
      put(record, 104, (uint64_t)(uintptr_t)"their_kernel", 8);
      put(record, 144, 0, 8);
      put(record, 156, 0, 4);
    }
  }
  pthread_mutex_unlock(&lock);
}
