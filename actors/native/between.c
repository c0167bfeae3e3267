/* What each request has behind its id, in front of its template's tail: bytes that its digits say. */

#include "lane.h"

/* Into `lane->own`. */
void put_between(const Lane *lane, const Request *request) {
  if (lane->places) {
    put_place(lane, request);
    return;
  }
  uint64_t words[BETWEEN_WORDS];
  memcpy(words, lane->between, sizeof words);
  for (int i = 0; i < ID_DIGITS; i++) {
    const uint64_t *flips = lane->flips[i][request->id[i] - '0'];
    for (int j = 0; j < BETWEEN_WORDS; j++) words[j] ^= flips[j];
  }
  memcpy(lane->own, words, lane->n_between);
}

const char set_between_doc[] =
    "set_between(base, flips)\n\nEach request has `base` behind its id, flipped (xor) by what each digit of the id says: "
    "`flips` are 12 x 10 texts of that length, by place and digit. Before the first template.";
PyObject *Lane_set_between(Lane *lane, PyObject *args) {
  const char *base, *flips;
  Py_ssize_t n, n_flips;
  if (!PyArg_ParseTuple(args, "y#y#", &base, &n, &flips, &n_flips)) return NULL;
  if (!may_enter(lane) || !is_within("bytes behind an id", n, 1, MOST_BETWEEN)) return NULL;
  if (n_flips != n * ID_DIGITS * 10 || lane->n_templates || lane->own) {
    PyErr_SetString(PyExc_ValueError, "120 flips of that length are given once, before the first template");
    return NULL;
  }
  lane->flips = grown(NULL, ID_DIGITS * sizeof *lane->flips);
  memset(lane->flips, 0, ID_DIGITS * sizeof *lane->flips);
  for (int i = 0; i < ID_DIGITS; i++)
    for (int digit = 0; digit < 10; digit++, flips += n) memcpy(lane->flips[i][digit], flips, n);
  memcpy(lane->between, base, n);
  lane->n_between = (int)n;
  lane->own = grown(NULL, n);
  Py_RETURN_NONE;
}
