/* A backend of Triton in process, which answers with its input, and tells of batches as TensorRT's does.

   Execute notes the batch and returns; a thread of the instance completes it later. So the server gives the instance
   its next batch while this one runs, the intervals of the two overlap, and statistics come from another thread than
   the one that executed. A request whose id begins with `fail` is answered with an error; of a batch all of whose
   requests failed the server is told by member only. What it uses of the API is declared here. */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))
#ifndef AHEAD
#define AHEAD 3 /* batches that an instance has at once */
#endif
#define COMPUTE_NS 3000000
#define ALL 1   /* of release flags, and the flag of a last response */
#define INTERNAL 1

#ifdef TOLD
#include "gpu_work.h"
#endif

typedef struct Error Error;
typedef struct Instance Instance;
typedef struct Request Request;
typedef struct Response Response;
typedef struct Input Input;
typedef struct Output Output;

Error *TRITONSERVER_ErrorNew(int code, const char *text);
void TRITONSERVER_ErrorDelete(Error *error);
Error *TRITONBACKEND_ModelInstanceSetState(Instance *instance, void *state);
Error *TRITONBACKEND_ModelInstanceState(Instance *instance, void **state);
Error *TRITONBACKEND_RequestId(Request *request, const char **id);
Error *TRITONBACKEND_RequestInputByIndex(Request *request, uint32_t index, Input **input);
Error *TRITONBACKEND_InputProperties(Input *input, const char **name, int *datatype, const int64_t **shape,
                                     uint32_t *n_dims, uint64_t *n_bytes, uint32_t *n_buffers);
Error *TRITONBACKEND_InputBuffer(Input *input, uint32_t index, const void **buffer, uint64_t *n_bytes, int *memory,
                                 int64_t *memory_id);
Error *TRITONBACKEND_ResponseNew(Response **response, Request *request);
Error *TRITONBACKEND_ResponseOutput(Response *response, Output **output, const char *name, int datatype,
                                    const int64_t *shape, uint32_t n_dims);
Error *TRITONBACKEND_OutputBuffer(Output *output, void **buffer, uint64_t n_bytes, int *memory, int64_t *memory_id);
Error *TRITONBACKEND_ResponseSend(Response *response, uint32_t flags, Error *error);
Error *TRITONBACKEND_RequestRelease(Request *request, uint32_t flags);
Error *TRITONBACKEND_ModelInstanceReportStatistics(Instance *instance, Request *request, bool success, uint64_t start,
                                                   uint64_t compute_start, uint64_t compute_end, uint64_t end);
Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(Instance *instance, uint64_t rows, uint64_t start,
                                                        uint64_t compute_start, uint64_t compute_end, uint64_t end);

typedef struct Batch {
  struct Batch *next;
  uint64_t start_ns, compute_start_ns, compute_end_ns;
#ifdef TOLD
  GpuWork work;
#endif
  uint32_t n;
  Request *requests[];
} Batch;

typedef struct {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  Batch *first, *last;
  int n_waiting;
  bool is_ending;
#ifdef TOLD
  GpuInstance gpu;
#endif
} State;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool is_fine(Error *error) {
  if (error) TRITONSERVER_ErrorDelete(error);
  return !error;
}

static uint64_t rows_of(Request *request) {
  Input *input;
  const int64_t *shape;
  uint32_t n_dims;
  if (!is_fine(TRITONBACKEND_RequestInputByIndex(request, 0, &input))) return 0;
  if (!is_fine(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &n_dims, NULL, NULL))) return 0;
  return n_dims ? (uint64_t)shape[0] : 0;
}

static Error *copy(Input *input, uint32_t n_buffers, char *to) {
  for (uint32_t i = 0; i < n_buffers; i++) {
    const void *from;
    uint64_t n_bytes;
    int memory = 0;
    int64_t memory_id = 0;
    Error *error = TRITONBACKEND_InputBuffer(input, i, &from, &n_bytes, &memory, &memory_id);
    if (error) return error;
    memcpy(to, from, n_bytes);
    to += n_bytes;
  }
  return NULL;
}

static Error *answered(Request *request, Response *response) {
  Input *input;
  Output *output;
  const int64_t *shape;
  uint32_t n_dims, n_buffers;
  uint64_t n_bytes;
  int datatype, memory = 0;
  int64_t memory_id = 0;
  void *to;
  Error *error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  if (!error) error = TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &n_dims, &n_bytes, &n_buffers);
  if (!error) error = TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", datatype, shape, n_dims);
  if (!error) error = TRITONBACKEND_OutputBuffer(output, &to, n_bytes, &memory, &memory_id);
  return error ? error : copy(input, n_buffers, to);
}

/* Whether it went well. */
static bool answer(Request *request) {
  const char *id = "";
  Response *response;
  if (!is_fine(TRITONBACKEND_RequestId(request, &id)) || !is_fine(TRITONBACKEND_ResponseNew(&response, request)))
    return false;
  Error *error = strncmp(id, "fail", 4) ? answered(request, response) : TRITONSERVER_ErrorNew(INTERNAL, "asked to");
  bool is_good = !error;
  is_fine(TRITONBACKEND_ResponseSend(response, ALL, error));
  if (error) TRITONSERVER_ErrorDelete(error);
  return is_good;
}

static void complete(Instance *instance, Batch *batch) {
  uint64_t rows = 0;
  bool is_good[batch->n], is_any_good = false;
  for (uint32_t i = 0; i < batch->n; i++) {
    rows += rows_of(batch->requests[i]);
    is_good[i] = answer(batch->requests[i]);
    is_any_good |= is_good[i];
  }
  uint64_t end_ns = now_ns();
  for (uint32_t i = 0; i < batch->n; i++) {
    is_fine(TRITONBACKEND_ModelInstanceReportStatistics(instance, batch->requests[i], is_good[i], batch->start_ns,
                                                        batch->compute_start_ns, batch->compute_end_ns, end_ns));
    is_fine(TRITONBACKEND_RequestRelease(batch->requests[i], ALL));
  }
  if (is_any_good)
    is_fine(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, batch->start_ns, batch->compute_start_ns,
                                                             batch->compute_end_ns, end_ns));
}

static Batch *taken(State *state) {
  pthread_mutex_lock(&state->mutex);
  while (!state->first && !state->is_ending) pthread_cond_wait(&state->changed, &state->mutex);
  Batch *batch = state->first;
  pthread_mutex_unlock(&state->mutex);
  return batch;
}

static void drop(State *state, Batch *batch) {
  pthread_mutex_lock(&state->mutex);
  state->first = batch->next;
  state->n_waiting--;
  pthread_cond_broadcast(&state->changed);
  pthread_mutex_unlock(&state->mutex);
  free(batch);
}

#ifdef TOLD

static void begin(State *state) { gpu_begin(&state->gpu); }

static void end(State *state) { gpu_end(&state->gpu); }

static void issue(State *state, Batch *batch) {
  const char *ids[batch->n];
  for (uint32_t i = 0; i < batch->n; i++)
    if (!is_fine(TRITONBACKEND_RequestId(batch->requests[i], &ids[i]))) ids[i] = "?";
  batch->work.batch = told_batch(ids, batch->n);
  gpu_issue(&state->gpu, &batch->work);
}

static void compute(State *state, Batch *batch) { gpu_run(&state->gpu, &batch->work); }

#else

static void begin(State *state) { (void)state; }

static void end(State *state) { (void)state; }

static void issue(State *state, Batch *batch) { (void)state, (void)batch; }

static void compute(State *state, Batch *batch) {
  (void)state, (void)batch;
  nanosleep(&(struct timespec){0, COMPUTE_NS}, NULL);
}

#endif

static void *complete_all(void *given) {
  Instance *instance = given;
  State *state;
  if (!is_fine(TRITONBACKEND_ModelInstanceState(instance, (void **)&state))) abort();
  for (Batch *batch; (batch = taken(state));) {
    compute(state, batch);
    batch->compute_end_ns = now_ns();
    complete(instance, batch);
    drop(state, batch);
  }
  return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance) {
  State *state = calloc(1, sizeof *state);
  pthread_mutex_init(&state->mutex, NULL);
  pthread_cond_init(&state->changed, NULL);
  begin(state);
  Error *error = TRITONBACKEND_ModelInstanceSetState(instance, state);
  if (!error && pthread_create(&state->thread, NULL, complete_all, instance)) abort();
  return error;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceFinalize(Instance *instance) {
  State *state;
  Error *error = TRITONBACKEND_ModelInstanceState(instance, (void **)&state);
  if (error) return error;
  pthread_mutex_lock(&state->mutex);
  state->is_ending = true;
  pthread_cond_broadcast(&state->changed);
  pthread_mutex_unlock(&state->mutex);
  pthread_join(state->thread, NULL);
  end(state);
  free(state);
  return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, const uint32_t n) {
  State *state;
  Error *error = TRITONBACKEND_ModelInstanceState(instance, (void **)&state);
  if (error) return error;
  Batch *batch = calloc(1, sizeof *batch + n * sizeof *requests);
  batch->start_ns = now_ns();
  batch->n = n;
  memcpy(batch->requests, requests, n * sizeof *requests);
  batch->compute_start_ns = now_ns();
  issue(state, batch);
  pthread_mutex_lock(&state->mutex);
  if (state->first) state->last->next = batch;
  else state->first = batch;
  state->last = batch;
  state->n_waiting++;
  pthread_cond_broadcast(&state->changed);
  while (state->n_waiting >= AHEAD) pthread_cond_wait(&state->changed, &state->mutex);
  pthread_mutex_unlock(&state->mutex);
  return NULL;
}
