/* Stands for libtritonserver.so: what the batch library asks of it, with a count of what it was told. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reporting.h"

#define LONG_NAME                                                                                                      \
  "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"               \
  "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"               \
  "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"

static struct Model models[] = {{"echo", 3, false}, {NULL, 0, true}, {LONG_NAME, UINT64_MAX, false}};
static struct Instance instances[] = {
    {"echo_0_0", CPU, 0, &models[0]}, {"echo_0_1", GPU, 1, &models[0]}, {"echo_0_2", BY_MODEL, 0, &models[0]},
    {"silent", GPU, -7, &models[1]},  {NULL, GPU, 2, &models[0]},       {LONG_NAME, GPU, 0, &models[2]},
};
static atomic_ulong n_members, n_failed, n_batches, n_rows, n_errors, n_deleted;

static void *failed(void) {
  n_errors++;
  return &n_errors;
}

struct Instance *server_instance(int number) { return &instances[number]; }

struct Counts server_counts(void) {
  return (struct Counts){n_members, n_failed, n_batches, n_rows, n_errors, n_deleted};
}

void *TRITONBACKEND_ModelInstanceReportStatistics(struct Instance *instance, struct Request *request, bool success,
                                                  uint64_t start, uint64_t compute_start, uint64_t compute_end,
                                                  uint64_t end) {
  (void)instance, (void)request, (void)start, (void)compute_start, (void)compute_end, (void)end;
  n_members++;
  n_failed += !success;
  return NULL;
}

void *TRITONBACKEND_ModelInstanceReportBatchStatistics(struct Instance *instance, uint64_t rows, uint64_t start,
                                                       uint64_t compute_start, uint64_t compute_end, uint64_t end) {
  (void)instance, (void)start, (void)compute_start, (void)compute_end, (void)end;
  n_batches++;
  n_rows += rows;
  return rows == ROWS_OF_AN_ERROR ? failed() : NULL;
}

#ifndef ONLY_REPORTS /* a server that tells nothing of what was reported */
void *TRITONBACKEND_RequestId(struct Request *request, const char **id) {
  if (request->is_refused) return failed();
  *id = request->id;
  return NULL;
}

void *TRITONBACKEND_ModelInstanceName(struct Instance *instance, const char **name) {
  *name = instance->name;
  return NULL;
}

void *TRITONBACKEND_ModelInstanceKind(struct Instance *instance, int *kind) {
  *kind = instance->kind;
  return NULL;
}

void *TRITONBACKEND_ModelInstanceDeviceId(struct Instance *instance, int32_t *device) {
  if (instance->device < 0) return failed();
  *device = instance->device;
  return NULL;
}

void *TRITONBACKEND_ModelInstanceModel(struct Instance *instance, struct Model **model) {
  *model = instance->model;
  return NULL;
}

void *TRITONBACKEND_ModelName(struct Model *model, const char **name) {
  if (model->is_refused) return failed();
  *name = model->name;
  return NULL;
}

void *TRITONBACKEND_ModelVersion(struct Model *model, uint64_t *version) {
  if (model->is_refused) return failed();
  *version = model->version;
  return NULL;
}

void TRITONSERVER_ErrorDelete(void *error) {
  (void)error;
  n_deleted++;
}
#endif
