/* CUPTI itself: found at run time, prepared once, started and stopped as often as one likes. */

#include "kernels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

Cupti cupti;
int64_t cupti_offset_ns;

static bool is_open;
static void *subscriber;
static uint32_t recorded; /* kinds that are on */

/* By these names the loader knows it: SONAMEs of CUDA 13, 12 and 11, and what a toolkit's folder has. */
static const char *const NAMES[] = {
    "libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so.11.7", "libcupti.so.11.6", "libcupti.so.11.5",
    "libcupti.so.11.4", "libcupti.so.11.3", "libcupti.so.11.2", "libcupti.so.11.1", "libcupti.so",
};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

static const struct {
  const char *name;
  size_t place;
  bool is_needed;
} SYMBOLS[] = {
    {"cuptiGetVersion", offsetof(Cupti, version), true},
    {"cuptiActivityEnable", offsetof(Cupti, enable), true},
    {"cuptiActivityDisable", offsetof(Cupti, disable), true},
    {"cuptiActivityFlushAll", offsetof(Cupti, flush_all), true},
    {"cuptiActivityRegisterCallbacks", offsetof(Cupti, register_callbacks), true},
    {"cuptiActivityGetNextRecord", offsetof(Cupti, next_record), true},
    {"cuptiActivityGetNumDroppedRecords", offsetof(Cupti, dropped), true},
    {"cuptiActivityRegisterTimestampCallback", offsetof(Cupti, register_timestamp), false},
    {"cuptiGetTimestamp", offsetof(Cupti, timestamp), false},
    {"cuptiSetThreadIdType", offsetof(Cupti, thread_ids), false},
    {"cuptiActivitySetAttribute", offsetof(Cupti, set_attribute), false},
    {"cuptiGetResultString", offsetof(Cupti, result_string), false},
    {"cuptiGetCallbackName", offsetof(Cupti, callback_name), false},
    {"cuptiSubscribe", offsetof(Cupti, subscribe), false},
    {"cuptiUnsubscribe", offsetof(Cupti, unsubscribe), false},
};

static const struct {
  uint32_t bit;
  int activity;
  const char *name;
} KINDS[] = {
    {KERNELS, CUPTI_KERNEL, "kernels"}, {COPIES, CUPTI_MEMCPY, "copies"}, {COPIES, CUPTI_MEMSET, "memsets"},
    {COPIES, CUPTI_PEER_COPY, "peer copies"}, {SYNC, CUPTI_SYNC, "sync"}, {RUNTIME, CUPTI_RUNTIME, "runtime"},
    {DRIVER, CUPTI_DRIVER, "driver"}, {EVENTS, CUPTI_EVENT, "events"},
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

static const char *told(int result) {
  const char *text = NULL;
  if (cupti.result_string && cupti.result_string(result, &text) == CUPTI_OK && text) return text;
  return "an error without a name";
}

/* What the process has loaded, which fits its CUDA; else what the user names; else what the loader finds. NULL with the
   loader's words in the ring. */
static void *library(void) {
  void *found = NULL;
  for (int i = 0; i < N_NAMES && !found; i++) found = dlopen(NAMES[i], RTLD_NOW | RTLD_NOLOAD);
  const char *named = getenv("SQUALL_CUPTI");
  if (found) return found;
  if (named && *named) {
    if (!(found = dlopen(named, RTLD_NOW | RTLD_LOCAL))) say(NO_CUPTI, "SQUALL_CUPTI: %s", dlerror());
    return found;
  }
  for (int i = 0; i < N_NAMES && !found; i++) found = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
  if (!found) say(NO_CUPTI, "no CUPTI is loaded, none is on the loader's path, and SQUALL_CUPTI names none");
  return found;
}

/* The name of a function that it must have and has not; NULL where all are there. */
static const char *missing(void *from) {
  for (size_t i = 0; i < sizeof SYMBOLS / sizeof *SYMBOLS; i++) {
    void *symbol = dlsym(from, SYMBOLS[i].name);
    if (!symbol && SYMBOLS[i].is_needed) return SYMBOLS[i].name;
    memcpy((char *)&cupti + SYMBOLS[i].place, &symbol, sizeof symbol);
  }
  return NULL;
}

static uint64_t monotonic(void) { return (uint64_t)now_ns(); }

/* Where CUPTI cannot be given our clock: what to add to its own, from the narrowest of some brackets. */
static void measure_offset(void) {
  int64_t narrowest = INT64_MAX;
  for (int i = 0; i < 16; i++) {
    uint64_t theirs = 0;
    int64_t before = now_ns();
    if (cupti.timestamp(&theirs) != CUPTI_OK) return;
    int64_t width = now_ns() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    __atomic_store_n(&cupti_offset_ns, before + width / 2 - (int64_t)theirs, __ATOMIC_RELAXED);
    ring->clock_bound_ns = width / 2 + 1;
  }
}

static bool has_clock(void) {
  if (cupti.register_timestamp && cupti.register_timestamp(monotonic) == CUPTI_OK) {
    cupti.timestamp = NULL; /* no offset is to be measured */
    return true;
  }
  return cupti.timestamp != NULL;
}

static void prefer(void) {
  uint8_t is_zeroed = 1;
  size_t n_bytes = sizeof is_zeroed;
  if (cupti.set_attribute) cupti.set_attribute(CUPTI_ZEROED_BUFFERS, &n_bytes, &is_zeroed);
  if (cupti.thread_ids) cupti.thread_ids(CUPTI_SYSTEM_THREAD_IDS); /* else pthread's, cut to 32 bits */
}

static bool is_known_version(void) {
  uint32_t version = 0;
  int result = cupti.version(&version);
  ring->cupti_version = version;
  if (result != CUPTI_OK) return say(REFUSED, "CUPTI tells no version: %s", told(result)), false;
  if (version < OLDEST_CUPTI) return say(TOO_OLD, "CUPTI %u is older than that of CUDA 11.1", version), false;
  if (version > NEWEST_CUPTI) return say(TOO_NEW, "CUPTI %u is newer than any whose records are known", version), false;
  return true;
}

bool open_cupti(void) {
  void *found = library();
  if (!found) return false;
  const char *absent = missing(found);
  if (absent) return say(NO_SYMBOL, "CUPTI has no %s", absent), false;
  if (!is_known_version()) return false;
  if (!has_clock()) return say(NO_SYMBOL, "CUPTI has neither a callback for instants nor a clock to ask"), false;
  prefer();
  int result = cupti.register_callbacks(request_buffer, complete_buffer);
  if (result != CUPTI_OK) return say(REFUSED, "CUPTI takes no buffers: %s", told(result)), false;
  say(READY, "CUPTI %u", ring->cupti_version);
  return is_open = true;
}

static void ignore(void *data, int domain, uint32_t id, const void *info) {
  (void)data, (void)domain, (void)id, (void)info;
}

/* CUPTI serves one profiler at a time, and this is how they tell one another; no callback is ever enabled. */
static bool is_ours(void) {
  if (!cupti.subscribe || subscriber) return true;
  int result = cupti.subscribe(&subscriber, ignore, NULL);
  if (result == CUPTI_OK) return true;
  subscriber = NULL;
  say(result == CUPTI_TAKEN ? TAKEN : REFUSED, "%s: %s",
      result == CUPTI_TAKEN ? "another profiler has CUPTI in this process" : "CUPTI refuses", told(result));
  return false;
}

static void give_back(void) {
  if (subscriber && cupti.unsubscribe) cupti.unsubscribe(subscriber);
  subscriber = NULL;
}

/* Kinds that CUPTI refuses are named and left out; recording fails only where none is left. CUPTI records events only
   beside waits (seen of 130001 on a GPU): for events it is asked for both, and waits that nobody wants are not kept. */
bool start_recording(uint32_t kinds) {
  if (!is_open || !is_ours()) return false;
  if (cupti.timestamp) measure_offset();
  char refused[TEXT_BYTES / 2] = "";
  uint32_t on = 0, asked = kinds & EVENTS ? kinds | SYNC : kinds;
  for (int i = 0; i < N_KINDS; i++) {
    if (!(asked & KINDS[i].bit)) continue;
    int result = cupti.enable(KINDS[i].activity);
    if (result == CUPTI_OK) {
      on |= 1u << i;
      continue;
    }
    size_t n = strlen(refused);
    snprintf(refused + n, sizeof refused - n, "%s%s: %s", n ? "; " : "", KINDS[i].name, told(result));
  }
  recorded = on;
  ring->kinds = 0;
  for (int i = 0; i < N_KINDS; i++) ring->kinds |= on & (1u << i) ? KINDS[i].bit & kinds : 0;
  if (!on) return give_back(), say(REFUSED, "CUPTI records nothing: %s", refused), false;
  say(RECORDING, "CUPTI %u%s%s", ring->cupti_version, *refused ? ", but it refuses " : "", refused);
  return true;
}

void stop_recording(void) {
  for (int i = 0; i < N_KINDS; i++)
    if (recorded & (1u << i)) cupti.disable(KINDS[i].activity);
  if (recorded) say(READY, "CUPTI %u", ring->cupti_version);
  recorded = 0;
}

void flush(uint32_t flags) {
  if (!is_open) return;
  if (cupti.timestamp) measure_offset();
  cupti.flush_all(flags);
  ring->flushed_ns = now_ns();
  if (!recorded) give_back(); /* only now: what it recorded has to reach us first */
}
