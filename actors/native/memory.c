/* What cannot be had ends the process, as a Python worker without memory would; and the clock. */

#include "lane.h"

int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * NS_PER_S + t.tv_nsec;
}

void end_without_memory(void) {
  static const char words[] = "squall: no memory\n";
  (void)!write(2, words, sizeof words - 1);
  abort();
}

void *grown(void *old, size_t n_bytes) {
  void *data = realloc(old, n_bytes ? n_bytes : 1);
  if (!data) end_without_memory();
  return data;
}

void reserve(Bytes *bytes, Py_ssize_t *room, Py_ssize_t n) {
  if (n > *room) {
    *room = n > 2 * *room ? n : 2 * *room;
    bytes->data = grown(bytes->data, *room);
  }
}

Bytes copied(const char *data, Py_ssize_t n) {
  Bytes out = {grown(NULL, n), n};
  memcpy(out.data, data, n);
  return out;
}

Request *new_request(Lane *lane) {
  Request *request = lane->free;
  if (request)
    lane->free = request->next;
  else
    request = grown(NULL, sizeof *request);
  memset(request, 0, sizeof *request);
  return request;
}
