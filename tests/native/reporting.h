/* What reporting_symbols.c and reporting_server.c share. */

#include <stdbool.h>
#include <stdint.h>

enum { AUTO, CPU, GPU, BY_MODEL };
#define ROWS_OF_AN_ERROR 404 /* the call that reports a batch of so many rows fails */

struct Model {
  const char *name;
  uint64_t version;
  bool is_refused;
};
struct Instance {
  const char *name;
  int kind;
  int32_t device;
  struct Model *model;
};
struct Request {
  const char *id;
  bool is_refused;
};
struct Counts {
  unsigned long n_members, n_failed, n_batches, n_rows, n_errors, n_deleted;
};

struct Instance *server_instance(int number);
struct Counts server_counts(void);
void *TRITONBACKEND_ModelInstanceReportStatistics(struct Instance *, struct Request *, bool, uint64_t, uint64_t,
                                                  uint64_t, uint64_t);
void *TRITONBACKEND_ModelInstanceReportBatchStatistics(struct Instance *, uint64_t, uint64_t, uint64_t, uint64_t,
                                                       uint64_t);
