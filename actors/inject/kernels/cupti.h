/* What of CUPTI is used, declared by hand: it is opened at run time, in whatever version the process has.

   Every struct is the common beginning of all versions of that record from CUDA 11.1 to 13.5: newer versions append
   fields, and cuptiActivityGetNextRecord steps over them. NVIDIA's headers would bind one version at build time, and
   need cuda.h. A test holds the offsets to the headers of a wheel, where one is there. */

#ifndef SQUALL_CUPTI_H
#define SQUALL_CUPTI_H

#include <stddef.h>
#include <stdint.h>

enum { OLDEST_CUPTI = 14, NEWEST_CUPTI = 139999 }; /* CUDA 11.1; any 13.x (12.9 is 28, then the scale changed) */

enum { CUPTI_OK = 0, CUPTI_TAKEN = 39, CUPTI_NO_MORE = 12 };

enum {
  CUPTI_MEMCPY = 1, CUPTI_MEMSET = 2, CUPTI_DRIVER = 4, CUPTI_RUNTIME = 5, CUPTI_KERNEL = 10, CUPTI_PEER_COPY = 22,
  CUPTI_EVENT = 36, CUPTI_SYNC = 38,
};
enum { CUPTI_DRIVER_DOMAIN = 1, CUPTI_RUNTIME_DOMAIN = 2 };
enum { CUPTI_ZEROED_BUFFERS = 5 };   /* attribute: the buffers that it asks for are zero already */
enum { CUPTI_FORCED = 1 };           /* flag of a flush: records that are not complete too */
enum { CUPTI_SYSTEM_THREAD_IDS = 1 };

typedef struct {
  uint32_t kind;
  uint16_t caches;
  uint16_t registers;
  uint32_t partitioned[2];
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3];
  int32_t static_shared, dynamic_shared;
  uint32_t local[2];
  uint32_t correlation;
  int64_t grid_id;
  const char *name;
  void *reserved;
  uint64_t queued, submitted;
  uint8_t launch[4];
  uint32_t shared_executed;
  uint64_t graph_node;
  uint32_t shared_limit;
  uint32_t graph;
} CuptiKernel;

typedef struct {
  uint32_t kind;
  uint8_t copy_kind, source, destination, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation, runtime_correlation, pad;
  void *reserved;
  uint64_t graph_node;
  uint32_t graph;
} CuptiMemcpy;

typedef struct { /* between two GPUs, or two contexts */
  uint32_t kind;
  uint8_t copy_kind, source, destination, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, from_device, from_context, to_device, to_context, correlation;
  void *reserved;
  uint64_t graph_node;
  uint32_t graph;
} CuptiPeerCopy;

typedef struct {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
  uint16_t flags, memory;
  uint32_t pad;
  void *reserved;
  uint64_t graph_node;
  uint32_t graph;
} CuptiMemset;

typedef struct {
  uint32_t kind, type;
  uint64_t start, end;
  uint32_t correlation, context, stream, event;
} CuptiSync;

typedef struct { /* an event that was recorded on a stream: the call, no instant of it */
  uint32_t kind, correlation, context, stream, event;
} CuptiEvent;

typedef struct {
  uint32_t kind, call;
  uint64_t start, end;
  uint32_t process, thread, correlation, result;
} CuptiApi;

_Static_assert(offsetof(CuptiKernel, start) == 16 && offsetof(CuptiKernel, name) == 104, "as in CUPTI");
_Static_assert(offsetof(CuptiKernel, graph_node) == 144 && offsetof(CuptiKernel, graph) == 156, "as in CUPTI");
_Static_assert(offsetof(CuptiMemcpy, graph) == 72 && offsetof(CuptiMemset, graph) == 72, "as in CUPTI");
_Static_assert(offsetof(CuptiPeerCopy, graph) == 80 && offsetof(CuptiSync, event) == 36, "as in CUPTI");
_Static_assert(offsetof(CuptiEvent, event) == 16 && offsetof(CuptiApi, result) == 36, "as in CUPTI");

typedef void (*RequestBuffer)(uint8_t **buffer, size_t *n_bytes, size_t *most_records);
typedef void (*CompleteBuffer)(void *context, uint32_t stream, uint8_t *buffer, size_t n_bytes, size_t n_valid);
typedef uint64_t (*Timestamp)(void);
typedef void (*Callback)(void *data, int domain, uint32_t id, const void *info);

typedef struct {
  int (*version)(uint32_t *version);
  int (*enable)(int kind);
  int (*disable)(int kind);
  int (*flush_all)(uint32_t flags);
  int (*register_callbacks)(RequestBuffer, CompleteBuffer);
  int (*next_record)(uint8_t *buffer, size_t n_valid, void **record);
  int (*dropped)(void *context, uint32_t stream, size_t *n_dropped);
  /* From here on NULL where this version has none. */
  int (*register_timestamp)(Timestamp);
  int (*timestamp)(uint64_t *ns);
  int (*thread_ids)(int type);
  int (*set_attribute)(int attribute, size_t *n_bytes, void *value);
  int (*result_string)(int result, const char **text);
  int (*callback_name)(int domain, uint32_t id, const char **name);
  int (*subscribe)(void **subscriber, Callback, void *data);
  int (*unsubscribe)(void *subscriber);
} Cupti;

#endif
