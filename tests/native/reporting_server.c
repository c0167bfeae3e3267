/* A server's backend as far as its reports go, led by its arguments, one after another:

     member INSTANCE OK T0 T1 T2 T3 ID   a member; OK: 1 or 0 (failed), with an x behind it where no id is to be had
     batch INSTANCE ROWS T0 T1 T2 T3     its batch
     load THREADS BATCHES MEMBERS        each thread reports so many batches, with overlapping intervals
     forever THREADS MEMBERS             begins threads that report batches until the process ends
     late                                one more batch, when the process exits
     time BATCHES MEMBERS                as one thread, and prints the nanoseconds of CPU for each batch
     thread                              what follows, up to `join`, in a thread of its own
     fork                                what follows, up to `end`, in a child, until that has ended
     wait                                until a byte comes on stdin
     say TEXT                            prints it

   It ends with what the server was told: members, failed, batches, rows, errors, errors deleted. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "reporting.h"

#define MOST_MEMBERS 100000
#define NS_OF_A_BATCH 1000

static uint64_t number(const char *text) { return strtoull(text, NULL, 10); }

static void member(char **at) {
  struct Request request = {at[7], strchr(at[2], 'x') != NULL};
  TRITONBACKEND_ModelInstanceReportStatistics(server_instance(atoi(at[1])), &request, *at[2] == '1', number(at[3]),
                                              number(at[4]), number(at[5]), number(at[6]));
}

static void batch(char **at) {
  TRITONBACKEND_ModelInstanceReportBatchStatistics(server_instance(atoi(at[1])), number(at[2]), number(at[3]),
                                                   number(at[4]), number(at[5]), number(at[6]));
}

struct Load {
  int thread, n_members;
  unsigned long n_batches;
};

/* Batch i of thread t: start NS_OF_A_BATCH * i, three times as long, ids `t:i:member`. */
static void one_batch(const struct Load *load, unsigned long i) {
  struct Instance *instance = server_instance(load->thread % 3);
  uint64_t start = NS_OF_A_BATCH * (i + 1), end = start + 3 * NS_OF_A_BATCH;
  for (int k = 0; k < load->n_members; k++) {
    char id[48];
    snprintf(id, sizeof id, "%d:%lu:%d", load->thread, i, k);
    struct Request request = {id, false};
    TRITONBACKEND_ModelInstanceReportStatistics(instance, &request, true, start, start + 1, end - 1, end);
  }
  TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, load->n_members, start, start + 1, end - 1, end);
}

static void *loaded(void *given) {
  const struct Load *load = given;
  for (unsigned long i = 0; i < load->n_batches; i++) one_batch(load, i);
  return NULL;
}

static void forever(int n_threads, int n_members) {
  static struct Load loads[64];
  for (int t = 0; t < n_threads; t++) {
    pthread_t thread;
    loads[t] = (struct Load){t, n_members, ~0ul};
    pthread_create(&thread, NULL, loaded, &loads[t]);
    pthread_detach(thread);
  }
}

static void report_late(void) { one_batch(&(struct Load){0, 1, 1}, 0); }

static void load(int n_threads, unsigned long n_batches, int n_members) {
  pthread_t threads[64];
  struct Load loads[64];
  for (int t = 0; t < n_threads; t++) {
    loads[t] = (struct Load){t, n_members, n_batches};
    pthread_create(&threads[t], NULL, loaded, &loads[t]);
  }
  for (int t = 0; t < n_threads; t++) pthread_join(threads[t], NULL);
}

static int64_t cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void timed(unsigned long n_batches, int n_members) {
  static struct Request requests[MOST_MEMBERS];
  static char ids[MOST_MEMBERS][16];
  for (int k = 0; k < n_members; k++) {
    snprintf(ids[k], sizeof ids[k], "%012d", k);
    requests[k].id = ids[k];
  }
  struct Instance *instance = server_instance(1);
  int64_t began = cpu_ns();
  for (unsigned long i = 1; i <= n_batches; i++) {
    for (int k = 0; k < n_members; k++)
      TRITONBACKEND_ModelInstanceReportStatistics(instance, &requests[k], true, i, i, i, i);
    TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, n_members, i, i, i, i);
  }
  printf("%.1f ns\n", (double)(cpu_ns() - began) / (double)n_batches);
}

static char **run(char **at);

static void *threaded(void *at) { return run(at); }

static char **in_thread(char **at) {
  pthread_t thread;
  void *rest = NULL;
  pthread_create(&thread, NULL, threaded, at);
  pthread_join(thread, &rest);
  return rest;
}

static void in_child(char **at) {
  pid_t child = fork();
  int status = 0;
  if (!child) {
    run(at);
    exit(0);
  }
  waitpid(child, &status, 0);
  printf("child %d ended %d\n", (int)child, status);
}

static int is(char **at, const char *name) { return !strcmp(*at, name); }

static char **after(char **at, const char *name) {
  while (*at && !is(at, name)) at++;
  return *at ? at + 1 : at;
}

/* Up to the end, a `join` or a `end`; the rest behind it. */
static char **run(char **at) {
  while (*at) {
    if (is(at, "member")) member(at), at += 8;
    else if (is(at, "batch")) batch(at), at += 7;
    else if (is(at, "load")) load(atoi(at[1]), number(at[2]), atoi(at[3])), at += 4;
    else if (is(at, "forever")) forever(atoi(at[1]), atoi(at[2])), at += 3;
    else if (is(at, "late")) atexit(report_late), at++;
    else if (is(at, "time")) timed(number(at[1]), atoi(at[2])), at += 3;
    else if (is(at, "thread")) at = in_thread(at + 1);
    else if (is(at, "fork")) in_child(at + 1), at = after(at, "end");
    else if (is(at, "wait")) getchar(), at++;
    else if (is(at, "say")) puts(at[1]), at += 2;
    else return at + 1;
    fflush(stdout);
  }
  return at;
}

int main(int n, char **arguments) {
  (void)n;
  run(arguments + 1);
  struct Counts told = server_counts();
  printf("told %lu %lu %lu %lu %lu %lu\n", told.n_members, told.n_failed, told.n_batches, told.n_rows, told.n_errors,
         told.n_deleted);
  return 0;
}
