/* The kernel library: CUDA loads it into each process that uses it (CUDA_INJECTION64_PATH), and it writes what CUPTI
   tells of the process's kernels and copies into a ring in a file. docs/kernels.md has the whole picture.

   control.c   begin, end, fork; the thread that switches recording on and off
   cupti.c     finds CUPTI, starts and stops it
   buffers.c   the buffers that CUPTI fills
   records.c   CUPTI's records as ours
   names.c     names of kernels and calls, once each
   ring.c      the ring that another process reads */

#ifndef SQUALL_KERNELS_H
#define SQUALL_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cupti.h"

enum { HEADER_BYTES = 4096, RECORD_BYTES = 80, TEXT_BYTES = 512, NAME_BYTES = 64 };

/* Kinds that a user asks for, as bits. A server may run on with an earlier library, to which 32, and 9 of the records
   below, mean something: neither is given to anything else. */
enum { KERNELS = 1, COPIES = 2, SYNC = 4, RUNTIME = 8, DRIVER = 16, EVENTS = 64 };

typedef enum { READY, RECORDING, NO_CUPTI, TOO_OLD, TOO_NEW, NO_SYMBOL, TAKEN, REFUSED } Status;

/* The header of a ring. kernel_ring.py reads and writes it at these offsets; all words are of the machine's order.
   The reader writes `tail` and `wanted`, the library all else: neither trusts what the other wrote. */
typedef struct {
  uint64_t magic; /* "sqkern1" and 0 */
  uint32_t header_bytes, record_bytes;
  uint64_t n_slots;
  uint32_t pid, status;
  int64_t started_ns;
  uint32_t cupti_version, kinds; /* kinds: those recorded when it was last switched on */
  int64_t clock_bound_ns;        /* how far a host's stamp may be from CLOCK_MONOTONIC; 0 where it is that clock */
  uint32_t is_ended, buffer_bytes;
  _Alignas(64) uint64_t head; /* records written since the beginning */
  uint64_t n_lost;            /* for want of room in the ring */
  uint64_t n_dropped;         /* by CUPTI */
  uint64_t n_untimed;         /* CUPTI had no instants of them */
  uint64_t n_unknown;         /* of a kind that nobody asked for */
  uint32_t n_buffers_out;     /* which CUPTI holds: what a process that is killed takes along */
  uint32_t n_buffers_refused; /* asked for when all were out */
  int64_t flushed_ns;         /* when CUPTI was last asked for complete buffers */
  _Alignas(64) uint64_t tail; /* records read */
  _Alignas(64) uint32_t wanted; /* odd: on; it changes with every wish */
  uint32_t done;              /* the wish that was met last */
  int64_t begun_ns, done_ns;  /* when that was begun; from when on it holds */
  _Alignas(64) char text[TEXT_BYTES]; /* what the status means here, ends with 0 */
} Header;

enum { NAME = 1, SWITCH, KERNEL, MEMCPY, MEMSET, SYNCHRONIZATION, RUNTIME_CALL, DRIVER_CALL, EVENT = 10 };
enum { FLAG_ON = 1, FLAG_FAILED = 2, FLAG_PEER = 4 };

typedef struct {
  uint16_t kind, flags;
  uint32_t correlation; /* of NAME: its id */
  union {
    struct { /* a part of a name; parts follow one another */
      uint32_t offset, n_bytes; /* n_bytes: of the whole name */
      char text[NAME_BYTES];
    } name;
    struct {
      int64_t start_ns, end_ns; /* of SWITCH: begun, done; of EVENT 0: CUPTI has none */
      uint32_t device, context, stream, graph;
      uint64_t graph_node;
      union {
        struct {
          uint32_t name, grid[3];
          uint16_t block[3], registers;
          int32_t static_shared, dynamic_shared;
        } kernel;
        struct {
          uint64_t bytes;
          uint32_t value; /* of a memset; of a copy to a peer: its device */
          uint8_t copy_kind, source, destination, flags; /* of a memset: source is the kind of memory */
        } memory;
        struct {
          uint32_t type, event;
        } sync;
        struct {
          uint32_t name, call, thread, result;
        } api;
        uint8_t room[32];
      };
    };
  };
} Record;

_Static_assert(sizeof(Record) == RECORD_BYTES, "kernel_ring.py has this size");
_Static_assert(offsetof(Record, start_ns) == 8 && offsetof(Record, graph_node) == 40, "kernel_ring.py has these");
_Static_assert(offsetof(Header, head) == 64 && offsetof(Header, tail) == 128, "kernel_ring.py has these");
_Static_assert(offsetof(Header, wanted) == 192 && offsetof(Header, text) == 256, "kernel_ring.py has these");

/* ring.c */
extern Header *ring; /* NULL before there is one, and in a child of fork */
const char *create_ring(const char *folder, uint64_t n_bytes); /* NULL, or what failed: errno says why */
bool begin_writing(void);   /* takes the lock of the ring; false where there is none */
Record *free_record(void);  /* zeroed, not to be seen before `publish`; NULL where the ring is full (counted) */
void publish(void);
bool has_room(uint64_t n_records);
void end_writing(void);
void say(Status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
void count(uint64_t *word, uint64_t n);
void leave_ring(void);      /* in a child of fork */

/* names.c: under the lock of the ring */
uint32_t name_id(const char *name); /* 0: NULL, or more names than are kept; the ring has been told of any other */
void tell_names_again(void);

/* records.c: under the lock of the ring */
void write_records(uint8_t *buffer, size_t n_valid);
void write_switch(bool is_on, bool has_failed, int64_t begun_ns, int64_t done_ns);

/* buffers.c */
bool create_buffers(uint64_t n_bytes, uint64_t n_buffers);
void request_buffer(uint8_t **buffer, size_t *n_bytes, size_t *most_records);
void complete_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t n_bytes, size_t n_valid);

/* cupti.c */
extern Cupti cupti;
extern int64_t cupti_offset_ns; /* to be added to CUPTI's instants; 0 where they are of CLOCK_MONOTONIC */
bool open_cupti(void); /* and prepare it; else the ring says why not */
bool start_recording(uint32_t kinds);
void stop_recording(void);
void flush(uint32_t flags);

/* control.c */
int64_t now_ns(void);

#endif
