/* Names as numbers. The ring is told of each once, and again whenever recording is switched on: so what was recorded
   between two switches can be read by itself. CUPTI's pointers may be used again for another name once a module is
   unloaded, so every name is compared, never its address alone. */

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 16384, LONGEST = 4096, N_BUCKETS = 32768, N_RECENT = 1024 };

typedef struct {
  char *text;
  uint32_t n_bytes, told; /* told: in which telling */
} Known;

static Known known[MOST_NAMES + 1]; /* 0 is no name */
static uint32_t n_known, telling = 1;
static uint32_t buckets[N_BUCKETS]; /* by the text's hash */
static struct {
  const char *pointer;
  uint32_t id;
} recent[N_RECENT]; /* by the pointer: nearly every kernel has been seen before */

void tell_names_again(void) { telling++; }

static uint32_t hash_of(const char *text, size_t n) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  for (size_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)text[i]) * 16777619u;
  return hash;
}

static bool is_name(uint32_t id, const char *text, size_t n) {
  return known[id].n_bytes == n && !memcmp(known[id].text, text, n);
}

static uint32_t added(const char *text, size_t n) {
  char *copy = n_known < MOST_NAMES ? malloc(n + 1) : NULL;
  if (!copy) return 0;
  memcpy(copy, text, n);
  copy[n] = 0;
  known[++n_known] = (Known){copy, (uint32_t)n, 0};
  return n_known;
}

static uint32_t found(const char *text, size_t n) {
  uint32_t at = hash_of(text, n) % N_BUCKETS;
  while (buckets[at] && !is_name(buckets[at], text, n)) at = (at + 1) % N_BUCKETS;
  if (!buckets[at]) buckets[at] = added(text, n);
  return buckets[at];
}

/* All parts of a name or none: where the ring has no room now, the next kernel of that name tells of it. */
static void tell(uint32_t id) {
  uint32_t n = known[id].n_bytes, n_parts = n ? (n + NAME_BYTES - 1) / NAME_BYTES : 1;
  if (!has_room(n_parts)) return;
  for (uint32_t offset = 0; n_parts--; offset += NAME_BYTES) {
    Record *record = free_record();
    if (!record) return; /* only where somebody wrote over `tail` meanwhile */
    uint32_t part = n - offset < NAME_BYTES ? n - offset : NAME_BYTES;
    record->kind = NAME;
    record->correlation = id;
    record->name.offset = offset;
    record->name.n_bytes = n;
    memcpy(record->name.text, known[id].text + offset, part);
    publish();
  }
  known[id].told = telling;
}

uint32_t name_id(const char *name) {
  if (!name) return 0;
  size_t n = strnlen(name, LONGEST), at = ((uintptr_t)name >> 3) % N_RECENT;
  uint32_t id = recent[at].pointer == name ? recent[at].id : 0;
  if (!id || !is_name(id, name, n)) {
    id = found(name, n);
    recent[at].pointer = name;
    recent[at].id = id;
  }
  if (id && known[id].told != telling) tell(id);
  return id;
}
