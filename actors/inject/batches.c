/* Preloaded into a Triton server (LD_PRELOAD): a record of every batch that any backend executes.

   Each backend tells the server of what it did by two calls, on one thread: TRITONBACKEND_ModelInstanceReportStatistics
   once for each member, then TRITONBACKEND_ModelInstanceReportBatchStatistics once for the batch. Both are exported by
   libtritonserver.so; a preloaded library is found before it. This one notes what it is told and passes the call on.

       thread    member  member  member  batch ──▶ one frame, whole ──▶ ring (a file, mapped)
       reader                                                          takes whole frames, frees their room

   The ring has many writers, the threads of one process, and one reader in another (squall.actors.inject.batch_ring).
   A frame is made in memory of its thread; a mutex of this process is held only to copy it and to move the written
   position behind it. So the position never shows a piece of a frame, and a process that is killed at any instant
   leaves whole ones without a mark of commitment in each. A copy takes less than a microsecond and batches come by the
   thousand a second: threads hardly meet, and none waits for the reader. A frame that finds no room is counted as lost.

   Nothing is made before the first batch: a process that executes none (a stub of the Python backend, a shell) leaves
   nothing behind. No tensor is read. What is read of other libraries is declared here; of a symbol that is absent
   the fields stay empty. What is read of the mapping is never trusted: positions are kept outside of it. */

#include <dlfcn.h>
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
#include <sys/syscall.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are little-endian"
#endif

#define EXPORTED __attribute__((visibility("default")))
#define MARKER 0x31425153u /* "SQB1": the layout of frames; the ring's own is LAYOUT */
#define LAYOUT 1u
#define HEADER_BYTES 4096u
#define DEFAULT_RING_BYTES (8ull << 20)
#define LEAST_RING_BYTES (64ull << 10)
#define MOST_RING_BYTES (1ull << 30)
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
  uint32_t unused;
} Frame;
_Static_assert(sizeof(Frame) == 88, "the reader's layout");

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

enum { UNKNOWN, UNTRIED, ON, OFF };
static struct {
  pthread_mutex_t mutex;
  _Atomic int state;
  Header *header;
  char *data;
  uint64_t size, written, lost;
  int32_t pid;
} ring = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static __thread Batch batch __attribute__((tls_model("initial-exec"))); /* it is preloaded: there from the start */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_thread_end;

/* ---- the ring: all under its mutex ---- */

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

static void put(char *bytes, uint32_t n) {
  ((Frame *)bytes)->pid = ring.pid;
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

static void write_frame(char *bytes, uint32_t n) {
  pthread_mutex_lock(&ring.mutex);
  if (atomic_load_explicit(&ring.state, memory_order_relaxed) == UNTRIED) open_ring();
  if (atomic_load_explicit(&ring.state, memory_order_relaxed) == ON) put(bytes, n);
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
