/* Preloaded into a Triton server (LD_PRELOAD): a record of every batch that any backend executes.

   Each backend tells the server of what it did by two calls, on one thread: TRITONBACKEND_ModelInstanceReportStatistics
   once for each member, then TRITONBACKEND_ModelInstanceReportBatchStatistics once for the batch. Both are exported by
   libtritonserver.so; a preloaded library is found before it. This one notes what it is told and passes the call on.

       thread    member  member  member  batch ──▶ one frame, whole ──▶ ring (a file, mapped)
       reader                                                          takes whole frames, frees their room

   The ring is made when a server starts, which is told by its symbols, so that no request waits for that; else at the
   first batch. A process without them (a stub of the Python backend, a shell) leaves nothing behind. No tensor is read.
   What is used of other libraries is declared here; of a symbol that is absent the fields stay empty. */

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ring.h"

#define EXPORTED __attribute__((visibility("default")))
#define MARKER 0x31425153u /* "SQB1": the layout of frames; the ring's own is LAYOUT */
#define ID_BYTES 128u
#define NAME_BYTES 256u
#define FIRST_ROOM 4096u
#define MOST_ROOM (128u << 10) /* of a frame: ids that find no room in it are counted only */
#define MOST_WAITING 16384u    /* members of which no batch is told: a backend that never tells of one */
#define ONLY_GPU 2             /* TRITONSERVER_INSTANCEGROUPKIND_GPU */
#define NO_DEVICE (-1)

typedef struct { /* as squall.actors.inject.batch_ring reads it; then model, instance, and each id behind its length */
  uint32_t marker, n_bytes; /* n_bytes: a multiple of 8, this head included */
  int32_t pid, thread;
  int64_t version;
  uint64_t at_ns[4]; /* exec start, compute start, compute end, exec end: CLOCK_MONOTONIC */
  uint64_t rows;     /* 0: no batch was told of, as where all its members failed */
  uint32_t n_requests, n_failed, n_ids;
  int32_t device;
  uint16_t n_model, n_instance;
  uint32_t writer; /* as in Header: 0 */
} Frame;
_Static_assert(sizeof(Frame) == 88, "the reader's layout");

typedef struct { /* the batch that a thread is being told of */
  void *instance;
  char *bytes; /* a Frame and what is behind it */
  uint32_t n_bytes, room;
  int32_t thread;
  bool is_open;
} Batch;

typedef void *(*ReportMember)(void *, void *, bool, uint64_t, uint64_t, uint64_t, uint64_t);
typedef void *(*ReportBatch)(void *, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* All return an error that is the caller's, or NULL. */
static struct {
  ReportMember report_member;
  ReportBatch report_batch;
  void *(*request_id)(void *, const char **);
  void *(*instance_name)(void *, const char **);
  void *(*instance_kind)(void *, int *);
  void *(*instance_device)(void *, int32_t *);
  void *(*instance_model)(void *, void **);
  void *(*model_name)(void *, const char **);
  void *(*model_version)(void *, uint64_t *);
  void (*delete_error)(void *);
} real;

static __thread Batch batch __attribute__((tls_model("initial-exec"))); /* it is preloaded: there from the start */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_thread_end;

static void write_frame(char *bytes, uint32_t n) {
  pthread_mutex_lock(&ring.mutex);
  if (make_ready()) {
    ((Frame *)bytes)->pid = ring.pid;
    put(bytes, n);
  }
  pthread_mutex_unlock(&ring.mutex);
}

/* ---- the batch that a thread is being told of ---- */

static bool is_fine(void *error) {
  if (error && real.delete_error) real.delete_error(error);
  return !error;
}

/* Room for `n` bytes more; NULL where there is none. */
static char *room(Batch *b, uint32_t n) {
  uint32_t wanted = b->n_bytes + n + 8; /* 8: for the end of the frame */
  if (wanted > MOST_ROOM) return NULL;
  if (wanted > b->room) {
    uint32_t most = b->room ? b->room : FIRST_ROOM;
    while (most < wanted) most *= 2;
    char *bytes = realloc(b->bytes, most);
    if (!bytes) return NULL;
    b->bytes = bytes;
    b->room = most;
  }
  return b->bytes + b->n_bytes;
}

static uint16_t append_text(Batch *b, const char *text) {
  uint32_t n = (uint32_t)strnlen(text, NAME_BYTES);
  char *to = room(b, n);
  if (!to) return 0;
  memcpy(to, text, n);
  b->n_bytes += n;
  return (uint16_t)n;
}

static void append_id(Batch *b, void *request) {
  const char *id = NULL;
  if (!real.request_id || !is_fine(real.request_id(request, &id)) || !id) id = "";
  uint16_t n = (uint16_t)strnlen(id, ID_BYTES);
  char *to = room(b, (uint32_t)sizeof n + n);
  if (!to) return; /* it is counted all the same */
  memcpy(to, &n, sizeof n);
  memcpy(to + sizeof n, id, n);
  b->n_bytes += (uint32_t)sizeof n + n;
  ((Frame *)b->bytes)->n_ids++;
}

static int32_t device_of(void *instance) {
  int kind = ONLY_GPU;
  int32_t device = NO_DEVICE;
  if (real.instance_kind && (!is_fine(real.instance_kind(instance, &kind)) || kind != ONLY_GPU)) return NO_DEVICE;
  return real.instance_device && is_fine(real.instance_device(instance, &device)) ? device : NO_DEVICE;
}

static void append_names(Batch *b, void *instance) {
  const char *model_name = "", *name = "";
  uint64_t version = 0;
  void *model = NULL;
  if (real.instance_model && is_fine(real.instance_model(instance, &model)) && model) {
    if (!real.model_name || !is_fine(real.model_name(model, &model_name)) || !model_name) model_name = "";
    if (!real.model_version || !is_fine(real.model_version(model, &version))) version = 0;
  }
  if (!real.instance_name || !is_fine(real.instance_name(instance, &name)) || !name) name = "";
  uint16_t n_model = append_text(b, model_name), n_instance = append_text(b, name);
  Frame *frame = (Frame *)b->bytes; /* not before: the bytes may have moved */
  frame->n_model = n_model;
  frame->n_instance = n_instance;
  frame->version = (int64_t)version;
}

/* Names are read now: when a batch is found to have ended without a word, its instance may be gone. */
static bool begin(Batch *b, void *instance, const uint64_t at_ns[4]) {
  b->n_bytes = 0;
  Frame *frame = (Frame *)room(b, sizeof *frame);
  if (!frame) return false;
  if (!b->thread) {
    b->thread = (int32_t)syscall(SYS_gettid);
    pthread_setspecific(at_thread_end, b);
  }
  memset(frame, 0, sizeof *frame);
  frame->marker = MARKER;
  frame->thread = b->thread;
  frame->device = device_of(instance);
  memcpy(frame->at_ns, at_ns, sizeof frame->at_ns);
  b->n_bytes = sizeof *frame;
  append_names(b, instance);
  b->instance = instance;
  b->is_open = true;
  return true;
}

static void end(Batch *b) {
  uint32_t n = (b->n_bytes + 7) / 8 * 8;
  memset(b->bytes + b->n_bytes, 0, n - b->n_bytes);
  ((Frame *)b->bytes)->n_bytes = n;
  write_frame(b->bytes, n);
  b->is_open = false;
}

/* May a member that starts at `start_ns` be of the batch that is open? One whose members have all failed so far may
   have ended: most backends tell of no batch then. Members that went well wait for their batch, whatever their start:
   some backends execute members one after another. */
static bool is_of(const Batch *b, const void *instance, uint64_t start_ns) {
  const Frame *frame = (const Frame *)b->bytes;
  if (b->instance != instance || frame->n_requests >= MOST_WAITING) return false;
  return frame->n_failed < frame->n_requests || frame->at_ns[0] == start_ns;
}

static void add_member(void *instance, void *request, bool success, const uint64_t at_ns[4]) {
  Batch *b = &batch;
  if (b->is_open && !is_of(b, instance, at_ns[0])) end(b);
  if (!b->is_open && !begin(b, instance, at_ns)) return;
  append_id(b, request);
  Frame *frame = (Frame *)b->bytes;
  frame->n_requests++;
  frame->n_failed += !success;
}

static void end_batch(void *instance, uint64_t rows, const uint64_t at_ns[4]) {
  Batch *b = &batch;
  if (b->is_open && b->instance != instance) end(b);
  if (!b->is_open && !begin(b, instance, at_ns)) return;
  Frame *frame = (Frame *)b->bytes;
  memcpy(frame->at_ns, at_ns, sizeof frame->at_ns);
  frame->rows = rows;
  end(b);
}

static void end_thread(void *kept) {
  Batch *b = kept;
  if (b->is_open) end(b);
  free(b->bytes);
  memset(b, 0, sizeof *b);
}

/* ---- what is found once, and after a fork ---- */

static void before_fork(void) { pthread_mutex_lock(&ring.mutex); }
static void after_fork(void) { pthread_mutex_unlock(&ring.mutex); }

/* The child's batches go into a ring of its own, made at its first. */
static void after_fork_in_child(void) {
  int was_on = ON;
  unmap();
  atomic_compare_exchange_strong(&ring.state, &was_on, UNTRIED);
  batch.is_open = false;
  batch.thread = 0;
  pthread_mutex_unlock(&ring.mutex);
}

/* RTLD_NEXT finds what was loaded for all; a program that opened the server for itself alone has it loaded. */
static void *found(void *server, const char *name) {
  void *symbol = dlsym(RTLD_NEXT, name);
  return symbol || !server ? symbol : dlsym(server, name);
}

static void find_all(void) {
  void *server = dlopen("libtritonserver.so", RTLD_LAZY | RTLD_NOLOAD);
  *(void **)&real.report_member = found(server, "TRITONBACKEND_ModelInstanceReportStatistics");
  *(void **)&real.report_batch = found(server, "TRITONBACKEND_ModelInstanceReportBatchStatistics");
  *(void **)&real.request_id = found(server, "TRITONBACKEND_RequestId");
  *(void **)&real.instance_name = found(server, "TRITONBACKEND_ModelInstanceName");
  *(void **)&real.instance_kind = found(server, "TRITONBACKEND_ModelInstanceKind");
  *(void **)&real.instance_device = found(server, "TRITONBACKEND_ModelInstanceDeviceId");
  *(void **)&real.instance_model = found(server, "TRITONBACKEND_ModelInstanceModel");
  *(void **)&real.model_name = found(server, "TRITONBACKEND_ModelName");
  *(void **)&real.model_version = found(server, "TRITONBACKEND_ModelVersion");
  *(void **)&real.delete_error = found(server, "TRITONSERVER_ErrorDelete");
  const char *folder = secure_getenv("SQUALL_BATCHES");
  bool is_wanted = folder && *folder && !pthread_key_create(&at_thread_end, end_thread) &&
                   !pthread_atfork(before_fork, after_fork, after_fork_in_child);
  atomic_store_explicit(&ring.state, is_wanted ? UNTRIED : OFF, memory_order_release);
}

static bool is_recording(void) {
  int state = atomic_load_explicit(&ring.state, memory_order_acquire);
  if (state == UNKNOWN) {
    pthread_once(&once, find_all);
    state = atomic_load_explicit(&ring.state, memory_order_acquire);
  }
  return state != OFF;
}

__attribute__((constructor)) static void start(void) {
  if (!dlsym(RTLD_NEXT, "TRITONBACKEND_ModelInstanceReportBatchStatistics") || !is_recording()) return;
  pthread_mutex_lock(&ring.mutex);
  make_ready();
  pthread_mutex_unlock(&ring.mutex);
}

EXPORTED void *TRITONBACKEND_ModelInstanceReportStatistics(void *instance, void *request, bool success,
                                                           uint64_t start_ns, uint64_t compute_start_ns,
                                                           uint64_t compute_end_ns, uint64_t end_ns) {
  if (is_recording())
    add_member(instance, request, success, (uint64_t[]){start_ns, compute_start_ns, compute_end_ns, end_ns});
  if (!real.report_member) return NULL;
  return real.report_member(instance, request, success, start_ns, compute_start_ns, compute_end_ns, end_ns);
}

EXPORTED void *TRITONBACKEND_ModelInstanceReportBatchStatistics(void *instance, uint64_t rows, uint64_t start_ns,
                                                                uint64_t compute_start_ns, uint64_t compute_end_ns,
                                                                uint64_t end_ns) {
  if (is_recording())
    end_batch(instance, rows, (uint64_t[]){start_ns, compute_start_ns, compute_end_ns, end_ns});
  if (!real.report_batch) return NULL;
  return real.report_batch(instance, rows, start_ns, compute_start_ns, compute_end_ns, end_ns);
}
