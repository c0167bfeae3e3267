/* A process that uses CUDA, without CUDA: it loads the kernel library as the driver would, and has the fake CUPTI make
   records, as lines on its standard input ask; each is answered by one line.

       kernel_host LIBRARY FAKE

   init | kernels N | named N BYTES | untimed N | copies N | peers N | memsets N | syncs N | runtime N | driver N |
   events N | threads T N | fork N | unload | exit CODE */

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void (*kernel)(uint32_t, const char *, int);
static void (*copy)(uint32_t, int);
static void (*set)(uint32_t);
static void (*sync_)(uint32_t);
static void (*call)(uint32_t, int);
static void (*event)(uint32_t, uint32_t, uint32_t);
static int (*flush)(uint32_t);
static uint32_t n_made; /* kernels are numbered over the whole process */
static int n_each;

static const char *const NAMES[] = {"_Z3addPfS_i", "_Z6matmulPKfS0_Pf", "gemm_kernel", "softmax", "_Z4copyPv"};

static void *symbol(void *library, const char *name) {
  void *found = library ? dlsym(library, name) : NULL;
  if (!found) {
    fprintf(stderr, "%s: %s\n", name, dlerror());
    exit(9);
  }
  return found;
}

static void kernels(int n) {
  for (int i = 0; i < n; i++) {
    uint32_t number = __atomic_fetch_add(&n_made, 1, __ATOMIC_RELAXED);
    kernel(number, NAMES[number % 5], 1);
  }
}

static void *launching(void *unused) {
  kernels(n_each);
  return unused;
}

static void in_threads(int n_threads, int n) {
  pthread_t threads[64];
  n_each = n;
  for (int i = 0; i < n_threads; i++) pthread_create(&threads[i], NULL, launching, NULL);
  for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
}

/* Names of their own at one address, as when a module is unloaded and another takes its place. */
static void named(int n, int n_bytes) {
  static char name[8192];
  for (int i = 0; i < n; i++) {
    memset(name, 'n', (size_t)n_bytes);
    name[n_bytes] = 0;
    int length = snprintf(NULL, 0, "%d", i);
    if (length < n_bytes) snprintf(name + n_bytes - length, (size_t)length + 1, "%d", i);
    kernel(__atomic_fetch_add(&n_made, 1, __ATOMIC_RELAXED), name, 1);
    flush(0); /* a name is read when its record is handed over */
  }
}

static int in_child(int n) {
  pid_t child = fork();
  if (!child) {
    kernels(n);
    exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  void *fake = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), *library = NULL;
  flush = (int (*)(uint32_t))symbol(fake, "cuptiActivityFlushAll");
  kernel = (void (*)(uint32_t, const char *, int))symbol(fake, "fake_kernel");
  copy = (void (*)(uint32_t, int))symbol(fake, "fake_copy");
  set = (void (*)(uint32_t))symbol(fake, "fake_memset");
  sync_ = (void (*)(uint32_t))symbol(fake, "fake_sync");
  call = (void (*)(uint32_t, int))symbol(fake, "fake_call");
  event = (void (*)(uint32_t, uint32_t, uint32_t))symbol(fake, "fake_event");
  char line[256], word[64];
  while (fgets(line, sizeof line, stdin)) {
    int a = 0, b = 0, answer = 0;
    if (sscanf(line, "%63s %d %d", word, &a, &b) < 1) continue;
    if (!strcmp(word, "init")) {
      library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
      answer = ((int (*)(void))symbol(library, "InitializeInjection"))();
    }
    if (!strcmp(word, "unload")) answer = dlclose(library);
    if (!strcmp(word, "kernels")) kernels(a);
    if (!strcmp(word, "named")) named(a, b);
    if (!strcmp(word, "untimed")) for (int i = 0; i < a; i++) kernel(0, NAMES[0], 0);
    if (!strcmp(word, "copies")) for (int i = 0; i < a; i++) copy((uint32_t)i, 0);
    if (!strcmp(word, "peers")) for (int i = 0; i < a; i++) copy((uint32_t)i, 1);
    if (!strcmp(word, "memsets")) for (int i = 0; i < a; i++) set((uint32_t)i);
    if (!strcmp(word, "syncs")) for (int i = 0; i < a; i++) sync_((uint32_t)i);
    if (!strcmp(word, "runtime")) for (int i = 0; i < a; i++) call((uint32_t)i, 0);
    if (!strcmp(word, "driver")) for (int i = 0; i < a; i++) call((uint32_t)i, 1);
    if (!strcmp(word, "events")) for (int i = 0; i < a; i++) event((uint32_t)i, (uint32_t)i % 5 + 7, (uint32_t)i + 9);
    if (!strcmp(word, "threads")) in_threads(a, b);
    if (!strcmp(word, "fork")) answer = in_child(a);
    if (!strcmp(word, "exit")) exit(a);
    printf("%s %d\n", word, answer);
    fflush(stdout);
  }
  return 0;
}
