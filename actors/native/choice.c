/* Which server a request goes to where the plan does not say: as squall.actors.load.choice does. */

#include "lane.h"

#define GAMMA 0x9E3779B97F4A7C15ULL
#define SALT 3

/* squall.scenarios.exact.hashing.mix64 */
static uint64_t mix64(uint64_t number) {
  uint64_t mixed = number + (SALT + 1) * GAMMA;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9ULL;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBULL;
  return mixed ^ mixed >> 31;
}

static int least_in_flight(const Lane *lane) { /* of equals the next in turn after the last */
  int n = lane->n_pools, best = (lane->last_target + 1) % n;
  for (int i = 2, target = best; i <= n; i++) {
    target = target + 1 < n ? target + 1 : 0;
    if (lane->in_flight[target] < lane->in_flight[best]) best = target;
  }
  return best;
}

static int of_two(const Lane *lane, int64_t token) {
  uint64_t mixed = mix64((uint64_t)token), n = lane->n_pools;
  uint64_t first = (mixed & 0xFFFFFFFF) % n, second = (mixed >> 32) % (n - 1);
  second += second >= first;
  return (int)(lane->in_flight[first] <= lane->in_flight[second] ? first : second);
}

/* The template of the request that `number` is for the first server, for the one that is chosen now. */
int32_t chosen(const Lane *lane, int32_t number, int64_t token) {
  int target = lane->rule == TWO_CHOICES && lane->n_pools > 1 ? of_two(lane, token) : least_in_flight(lane);
  return number + target * lane->n_kinds;
}

const char choose_by_doc[] =
    "choose_by(rule, n_kinds)\n\nThe lane chooses the server of each arrival by that rule, 1 least-in-flight or 2 "
    "two-choices, from now on. The templates are `n_kinds` for each server in the same order; arrivals name those of "
    "the first.";
PyObject *Lane_choose_by(Lane *lane, PyObject *args) {
  int rule, n_kinds;
  if (!PyArg_ParseTuple(args, "ii", &rule, &n_kinds)) return NULL;
  if (!may_enter(lane) || !is_within("a rule", rule, LEAST_IN_FLIGHT, TWO_CHOICES) ||
      !is_within("kinds of requests", n_kinds, 0, lane->n_templates))
    return NULL;
  int is_sound = !has_begun(lane) && (int64_t)n_kinds * lane->n_pools == lane->n_templates;
  for (int i = 0; is_sound && i < lane->n_templates; i++) is_sound = lane->templates[i].target == i / n_kinds;
  if (!is_sound) {
    PyErr_SetString(PyExc_ValueError, "the templates are not the same kinds for each server, or it has begun");
    return NULL;
  }
  lane->rule = rule;
  lane->n_kinds = n_kinds;
  Py_RETURN_NONE;
}

const char landed_doc[] = "landed(target)\n\nA request to that server that Python sent or took back has ended.";
PyObject *Lane_landed(Lane *lane, PyObject *arg) {
  long target = PyLong_AsLong(arg);
  if (target == -1 && PyErr_Occurred()) return NULL;
  if (!may_enter(lane) || !is_target(lane, target)) return NULL;
  lane->in_flight[target]--;
  Py_RETURN_NONE;
}
