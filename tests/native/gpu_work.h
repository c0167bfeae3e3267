/* What a batch puts on a GPU, for minimal_backend.c: issued by the thread that executes it, run later in the order of
   issue on the stream of its instance, as TensorRT's backend does. Each operation is as large as the batch's number.

       calls     kernel kernel kernel event copy event        numbered in their order over the whole process

   TOLD: a file with a line for each batch, its number and the ids of its requests.

   Without USE_CUDA there is no GPU: the process loads the kernel library as the driver would, and a CUPTI of known
   behaviour (fake_cupti.c) makes the records, of batches that were issued while it was on. With it the kernels spin for
   SPIN_US each on the first GPU: inputs are copied on a stream of their own, and an event more is recorded when the
   first kernel has read them. */

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
  struct Cuda *cuda; /* of the real GPU */
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

#else

#include <cuda.h>

enum { N_TURNS = 8, LARGEST = 40000 }; /* an operation is at most so large: bytes of shared memory, or of a copy */

typedef struct Cuda {
  CUcontext context;
  CUfunction spin;
  CUstream compute, input, signal;
  CUevent input_ready[N_TURNS], consumed[N_TURNS], computed[N_TURNS], done[N_TURNS], signals[N_TURNS][3];
  CUdeviceptr device;
  void *host;
} Cuda;

static const char SPIN[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns) {\n"
    " .reg .u64 %r<5>; .reg .pred %p<2>;\n"
    " ld.param.u64 %r1, [ns];\n"
    " mov.u64 %r2, %globaltimer;\n"
    "again: mov.u64 %r3, %globaltimer;\n"
    " sub.u64 %r4, %r3, %r2;\n"
    " setp.lt.u64 %p1, %r4, %r1;\n"
    " @%p1 bra again;\n"
    " ret;\n}\n";

static void gpu_must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
  abort();
}
#define MUST(call) gpu_must(call, #call)

static void gpu_begin(GpuInstance *instance) {
  CUdevice device;
  CUmodule module;
  Cuda *cuda = instance->cuda = calloc(1, sizeof *cuda);
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&cuda->context, device));
  MUST(cuCtxSetCurrent(cuda->context));
  MUST(cuModuleLoadData(&module, SPIN));
  MUST(cuModuleGetFunction(&cuda->spin, module, "spin"));
  MUST(cuStreamCreate(&cuda->compute, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&cuda->input, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&cuda->signal, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < N_TURNS; i++) {
    CUevent *events[] = {&cuda->input_ready[i], &cuda->consumed[i],   &cuda->computed[i],  &cuda->done[i],
                         &cuda->signals[i][0],  &cuda->signals[i][1], &cuda->signals[i][2]};
    for (size_t j = 0; j < sizeof events / sizeof *events; j++)
      MUST(cuEventCreate(events[j], CU_EVENT_BLOCKING_SYNC));
  }
  MUST(cuMemAlloc(&cuda->device, LARGEST + 1));
  MUST(cuMemHostAlloc(&cuda->host, LARGEST + 1, 0));
}

static void gpu_end(GpuInstance *instance) {
  MUST(cuCtxSetCurrent(instance->cuda->context));
  MUST(cuStreamSynchronize(instance->cuda->compute));
}

static void gpu_issue(GpuInstance *instance, GpuWork *work) {
  Cuda *cuda = instance->cuda;
  uint32_t turn = work->turn = instance->n_issued++ % N_TURNS, size = work->batch % LARGEST + 1;
  uint64_t ns = SPIN_US * 1000ull;
  void *arguments[] = {&ns};
  MUST(cuCtxSetCurrent(cuda->context));
  MUST(cuEventRecord(cuda->signals[turn][0], cuda->signal));
  MUST(cuMemcpyHtoDAsync(cuda->device, cuda->host, size, cuda->input));
  MUST(cuEventRecord(cuda->input_ready[turn], cuda->input));
  MUST(cuStreamWaitEvent(cuda->compute, cuda->input_ready[turn], 0));
  MUST(cuEventRecord(cuda->signals[turn][1], cuda->signal));
  for (uint32_t i = 0; i < N_KERNELS; i++) {
    MUST(cuLaunchKernel(cuda->spin, 1, 1, 1, 32, 1, 1, size, cuda->compute, arguments, NULL));
    if (!i) MUST(cuEventRecord(cuda->consumed[turn], cuda->compute));
  }
  MUST(cuEventRecord(cuda->computed[turn], cuda->compute));
  MUST(cuEventRecord(cuda->signals[turn][2], cuda->signal));
  MUST(cuMemcpyDtoHAsync(cuda->host, cuda->device, size, cuda->compute));
  MUST(cuEventRecord(cuda->done[turn], cuda->compute));
}

/* Returns when all is done. */
static void gpu_run(GpuInstance *instance, GpuWork *work) {
  MUST(cuCtxSetCurrent(instance->cuda->context));
  MUST(cuEventSynchronize(instance->cuda->consumed[work->turn]));
  MUST(cuEventSynchronize(instance->cuda->done[work->turn]));
}

#endif
#endif
