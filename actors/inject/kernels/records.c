/* CUPTI's records as those of the ring. */

#include "kernels.h"

#include <string.h>

static Record *begun(int kind, uint32_t correlation, uint64_t start, uint64_t end) {
  if (!start || !end) return count(&ring->n_untimed, 1), NULL;
  Record *record = free_record();
  if (!record) return NULL;
  record->kind = (uint16_t)kind;
  record->correlation = correlation;
  int64_t offset_ns = __atomic_load_n(&cupti_offset_ns, __ATOMIC_RELAXED);
  record->start_ns = (int64_t)start + offset_ns;
  record->end_ns = (int64_t)end + offset_ns;
  return record;
}

static void place(Record *record, uint32_t device, uint32_t context, uint32_t stream) {
  record->device = device;
  record->context = context;
  record->stream = stream;
}

static void write_kernel(const CuptiKernel *from) {
  uint32_t name = name_id(from->name); /* first: it may write records of its own */
  Record *record = begun(KERNEL, from->correlation, from->start, from->end);
  if (!record) return;
  place(record, from->device, from->context, from->stream);
  record->graph = from->graph;
  record->graph_node = from->graph_node;
  record->kernel.name = name;
  for (int i = 0; i < 3; i++) {
    record->kernel.grid[i] = (uint32_t)from->grid[i];
    record->kernel.block[i] = (uint16_t)from->block[i]; /* at most 1024 */
  }
  record->kernel.registers = from->registers;
  record->kernel.static_shared = from->static_shared;
  record->kernel.dynamic_shared = from->dynamic_shared;
  publish();
}

static void write_memcpy(const CuptiMemcpy *from) {
  Record *record = begun(MEMCPY, from->correlation, from->start, from->end);
  if (!record) return;
  place(record, from->device, from->context, from->stream);
  record->graph = from->graph;
  record->graph_node = from->graph_node;
  record->memory.bytes = from->bytes;
  record->memory.copy_kind = from->copy_kind;
  record->memory.source = from->source;
  record->memory.destination = from->destination;
  record->memory.flags = from->flags;
  publish();
}

static void write_peer_copy(const CuptiPeerCopy *from) {
  Record *record = begun(MEMCPY, from->correlation, from->start, from->end);
  if (!record) return;
  place(record, from->device, from->context, from->stream);
  record->flags = FLAG_PEER;
  record->graph = from->graph;
  record->graph_node = from->graph_node;
  record->memory.bytes = from->bytes;
  record->memory.value = from->to_device;
  record->memory.copy_kind = from->copy_kind;
  record->memory.source = from->source;
  record->memory.destination = from->destination;
  record->memory.flags = from->flags;
  publish();
}

static void write_memset(const CuptiMemset *from) {
  Record *record = begun(MEMSET, from->correlation, from->start, from->end);
  if (!record) return;
  place(record, from->device, from->context, from->stream);
  record->graph = from->graph;
  record->graph_node = from->graph_node;
  record->memory.bytes = from->bytes;
  record->memory.value = from->value;
  record->memory.source = (uint8_t)from->memory;
  record->memory.flags = (uint8_t)from->flags;
  publish();
}

static void write_sync(const CuptiSync *from) {
  if (!(ring->kinds & SYNC)) return; /* it was on for the events' sake */
  Record *record = begun(SYNCHRONIZATION, from->correlation, from->start, from->end);
  if (!record) return;
  place(record, 0, from->context, from->stream);
  record->sync.type = from->type;
  record->sync.event = from->event;
  publish();
}

/* Without instants in most versions: where it lies in its stream, its correlation id says. */
static void write_event(const CuptiEvent *from) {
  Record *record = free_record();
  if (!record) return;
  record->kind = EVENT;
  record->correlation = from->correlation;
  place(record, 0, from->context, from->stream);
  record->sync.event = from->event;
  publish();
}

static void write_call(const CuptiApi *from) {
  bool is_driver = from->kind == CUPTI_DRIVER;
  const char *text = NULL;
  int domain = is_driver ? CUPTI_DRIVER_DOMAIN : CUPTI_RUNTIME_DOMAIN;
  if (!cupti.callback_name || cupti.callback_name(domain, from->call, &text) != CUPTI_OK) text = NULL;
  uint32_t name = name_id(text);
  Record *record = begun(is_driver ? DRIVER_CALL : RUNTIME_CALL, from->correlation, from->start, from->end);
  if (!record) return;
  record->api.name = name;
  record->api.call = from->call;
  record->api.thread = from->thread;
  record->api.result = from->result;
  publish();
}

static void write_record(const void *record) {
  uint32_t kind;
  memcpy(&kind, record, sizeof kind);
  switch (kind) {
    case CUPTI_KERNEL: write_kernel(record); break;
    case CUPTI_MEMCPY: write_memcpy(record); break;
    case CUPTI_PEER_COPY: write_peer_copy(record); break;
    case CUPTI_MEMSET: write_memset(record); break;
    case CUPTI_SYNC: write_sync(record); break;
    case CUPTI_DRIVER:
    case CUPTI_RUNTIME: write_call(record); break;
    case CUPTI_EVENT: write_event(record); break;
    default: count(&ring->n_unknown, 1);
  }
}

void write_records(uint8_t *buffer, size_t n_valid) {
  void *record = NULL;
  while (cupti.next_record(buffer, n_valid, &record) == CUPTI_OK) write_record(record);
}

void write_switch(bool is_on, bool has_failed, int64_t begun_ns, int64_t done_ns) {
  Record *record = free_record();
  if (!record) return;
  record->kind = SWITCH;
  record->flags = (uint16_t)((is_on ? FLAG_ON : 0) | (has_failed ? FLAG_FAILED : 0));
  record->start_ns = begun_ns;
  record->end_ns = done_ns;
  publish();
}
