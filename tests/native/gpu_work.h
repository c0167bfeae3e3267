/* What a batch puts on a GPU, for minimal_backend.c: issued by the thread that executes it, run later in the order of
   issue on the stream of its instance, as TensorRT's backend does. Each operation is as large as the batch's number.

       calls     kernel kernel kernel event copy event        numbered in their order over the whole process

   TOLD: a file with a line for each batch, its number and the ids of its requests.

   Without USE_CUDA there is no GPU: the process loads the kernel library as the driver would, and a CUPTI of known
   behaviour (fake_cupti.c) makes the records, of batches that were issued while it was on. */

#ifndef GPU_WORK_H
#define GPU_WORK_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_KERNELS = 3 };

typedef struct {
  uint32_t batch, call, turn;
  int is_recorded;
} GpuWork;

typedef struct {
  uint32_t stream, n_issued;
  void *cuda; /* of the real GPU */
} GpuInstance;

static pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t told_batch(const char *const *ids, uint32_t n) {
  static uint32_t n_batches;
  static FILE *told;
  pthread_mutex_lock(&gpu_lock);
  if (!told && !(told = fopen(TOLD, "w"))) abort();
  uint32_t batch = ++n_batches;
  fprintf(told, "%u", batch);
  for (uint32_t i = 0; i < n; i++) fprintf(told, " %s", ids[i]);
  fprintf(told, "\n");
  fflush(told);
  pthread_mutex_unlock(&gpu_lock);
  return batch;
}

#ifndef USE_CUDA

#include <dlfcn.h>
#include <time.h>

enum { KERNEL_NS = 700000, COPY_NS = 300000 };

static int (*fake_is_on)(void);
static void (*fake_event)(uint32_t, uint32_t, uint32_t);
static void (*fake_ran)(uint32_t, uint32_t, int, uint32_t, uint64_t, uint64_t);

static void gpu_begin(GpuInstance *instance) {
  static uint32_t n_instances;
  pthread_mutex_lock(&gpu_lock);
  instance->stream = 7 + n_instances++;
  if (!fake_ran) {
    void *fake = dlopen(getenv("SQUALL_CUPTI"), RTLD_NOW | RTLD_LOCAL);
    void *library = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW | RTLD_LOCAL);
    if (!fake || !library) abort();
    fake_is_on = (int (*)(void))dlsym(fake, "fake_is_on");
    fake_event = (void (*)(uint32_t, uint32_t, uint32_t))dlsym(fake, "fake_event");
    fake_ran = (void (*)(uint32_t, uint32_t, int, uint32_t, uint64_t, uint64_t))dlsym(fake, "fake_ran");
    ((int (*)(void))dlsym(library, "InitializeInjection"))();
  }
  pthread_mutex_unlock(&gpu_lock);
}

static void gpu_end(GpuInstance *instance) { (void)instance; }

static void gpu_issue(GpuInstance *instance, GpuWork *work) {
  static uint32_t n_calls;
  pthread_mutex_lock(&gpu_lock);
  work->call = n_calls;
  n_calls += N_KERNELS + 3;
  pthread_mutex_unlock(&gpu_lock);
  work->is_recorded = fake_is_on();
  uint32_t event = 100 * instance->stream + 2 * (instance->n_issued++ % 2);
  fake_event(work->call + N_KERNELS, instance->stream, event);
  fake_event(work->call + N_KERNELS + 2, instance->stream, event + 1);
}

static uint64_t gpu_slept(long ns) {
  struct timespec now;
  nanosleep(&(struct timespec){0, ns}, NULL);
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Returns when all is done. */
static void gpu_run(GpuInstance *instance, GpuWork *work) {
  uint64_t start = gpu_slept(1000);
  for (uint32_t i = 0; i <= N_KERNELS; i++) {
    int is_copy = i == N_KERNELS;
    uint64_t end = gpu_slept(is_copy ? COPY_NS : KERNEL_NS);
    if (work->is_recorded)
      fake_ran(work->call + i + (uint32_t)is_copy, instance->stream, is_copy, work->batch, start + 1, end);
    start = end;
  }
}

#endif
#endif
