/* The arrivals or users of a run as Python hands them over, and those that it takes back to send. */

#include "lane.h"

/* What a callback raised, or that what it gave could not be used. */
PyObject *failed(void) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "the lane has failed before, it was told why");
  return NULL;
}

const char begin_open_doc[] =
    "begin_open(start_ns, offsets, tokens, phases, templates, sequences=None)\n\nThe arrivals: contiguous arrays "
    "int64, int64, uint8, int32. `sequences`: ids of all, int64; sequence and marks of each arrival, int32 and uint8: 1 is the "
    "first, 2 the last.";
/* 0 with a ValueError where the arrivals of the lent columns cannot all be sent. */
static int are_arrivals(const Lane *lane, int64_t start_ns, const int32_t *kinds) {
  const int64_t *offsets = lane->offsets.buf, *tokens = lane->tokens.buf;
  Py_ssize_t n = lane->phases.len;
  for (Py_ssize_t i = 0; i < n; i++) {
    const char *why = NULL;
    if (offsets[i] < (i ? offsets[i - 1] : 0)) why = "it is before the one before it, or the start";
    else if (offsets[i] > LATEST_NS - start_ns) why = "it is later than a clock can say";
    else if (tokens[i] < 0 || tokens[i] > LARGEST_TOKEN) why = "its token has not 12 digits";
    else if (!can_be_due(lane, kinds[i])) why = "no such template";
    if (why) {
      PyErr_Format(PyExc_ValueError, "arrival %zd: %s", i, why);
      return 0;
    }
  }
  return 1;
}

static void release(Py_buffer *view) {
  if (view->obj) PyBuffer_Release(view);
}

/* The plan's columns, held until the lane ends. */
void release_plan(Lane *lane) {
  release(&lane->offsets);
  release(&lane->tokens);
  release(&lane->phases);
}

static int may_begin(const Lane *lane, long long start_ns) {
  if (!may_enter(lane) || !is_within("the start", start_ns, 0, LATEST_NS)) return 0;
  if (has_begun(lane)) PyErr_SetString(PyExc_ValueError, "a lane begins once");
  return !has_begun(lane);
}

PyObject *Lane_begin_open(Lane *lane, PyObject *args) {
  long long start_ns;
  PyObject *offsets, *tokens, *phases, *templates, *sequences = Py_None;
  if (!PyArg_ParseTuple(args, "LOOOO|O", &start_ns, &offsets, &tokens, &phases, &templates, &sequences)) return NULL;
  if (!may_begin(lane, start_ns)) return NULL;
  Py_buffer kinds = {0};
  int is_sound = lent_column("offsets", offsets, &lane->offsets, 8, "lq") &&
                 lent_column("tokens", tokens, &lane->tokens, 8, "lq") &&
                 lent_column("phases", phases, &lane->phases, 1, "B") &&
                 lent_column("templates", templates, &kinds, 4, "il");
  Py_ssize_t n = lane->phases.len;
  if (is_sound && (lane->offsets.len != 8 * n || lane->tokens.len != 8 * n || kinds.len != 4 * n)) {
    PyErr_SetString(PyExc_ValueError, "the columns of a plan differ in length");
    is_sound = 0;
  }
  if (is_sound && are_arrivals(lane, start_ns, kinds.buf) && begin_places(lane, sequences, n)) {
    lane->kinds = grown(NULL, kinds.len);
    memcpy(lane->kinds, kinds.buf, kinds.len);
    lane->start_ns = start_ns;
    lane->n_planned = n;
  }
  release(&kinds);
  if (lane->kinds) Py_RETURN_NONE;
  release_plan(lane);
  return NULL;
}

const char begin_closed_doc[] =
    "begin_closed(start_ns, numbers, n_all_users, enter, refill, sequences=None)\n\nThe users. enter(index, first_phase, free_ns) "
    "-> (send_ns, phase, end_ns) or None; refill(index) -> (int64 think times, int32 templates), at most 64. `sequences`: the "
    "id of the first of all, and lengths(index, first) -> int32 lengths of that user's sequences from number `first` on, at "
    "most 64.";
/* 0 with a ValueError where the numbers are not in order, or not those of users. */
static int are_users(const int64_t *numbers, Py_ssize_t n, int64_t n_all) {
  for (Py_ssize_t i = 0; i < n; i++)
    if (numbers[i] < 0 || numbers[i] >= n_all || (i && numbers[i] <= numbers[i - 1])) {
      PyErr_Format(PyExc_ValueError, "user %lld is not among %lld, or stands out of order", (long long)numbers[i],
                   (long long)n_all);
      return 0;
    }
  return 1;
}

PyObject *Lane_begin_closed(Lane *lane, PyObject *args) {
  long long start_ns, n_all;
  Py_buffer numbers;
  PyObject *column, *enter, *refill, *sequences = Py_None;
  if (!PyArg_ParseTuple(args, "LOLOO|O", &start_ns, &column, &n_all, &enter, &refill, &sequences)) return NULL;
  if (!may_begin(lane, start_ns) || !is_within("users of all workers", n_all, 0, INT32_MAX) ||
      !is_function("enter", enter) || !is_function("refill", refill) || !lent_column("users", column, &numbers, 8, "lq"))
    return NULL;
  if (!are_users(numbers.buf, numbers.len / 8, n_all) || !begin_courses(lane, sequences, numbers.len / 8)) {
    PyBuffer_Release(&numbers);
    return NULL;
  }
  lane->enter = Py_NewRef(enter);
  lane->refill = Py_NewRef(refill);
  lane->n_users = numbers.len / 8;
  lane->n_all_users = n_all;
  lane->users = grown(NULL, lane->n_users * sizeof *lane->users);
  lane->heap = grown(NULL, lane->n_users * sizeof *lane->heap);
  memset(lane->users, 0, lane->n_users * sizeof *lane->users);
  for (int64_t i = 0; i < lane->n_users; i++) lane->users[i].number = ((int64_t *)numbers.buf)[i];
  PyBuffer_Release(&numbers);
  lane->is_busy = 1;
  for (int64_t i = 0; i < lane->n_users && !lane->has_failed; i++) enter_phase(lane, (int32_t)i, 0, start_ns);
  lane->is_busy = 0;
  if (lane->has_failed) return failed();
  Py_RETURN_NONE;
}

const char take_doc[] =
    "take() -> (at_ns, scheduled_ns, token, phase, template)\n\nThe next arrival, for Python to send.";
PyObject *Lane_take(Lane *lane, PyObject *unused) {
  (void)unused;
  if (!may_enter(lane)) return NULL;
  if (next_due(lane) == NEVER_NS) {
    PyErr_SetString(PyExc_IndexError, "no arrival is left");
    return NULL;
  }
  Request request = {0};
  take_due(lane, &request, next_template(lane));
  return Py_BuildValue("(LLLii)", (long long)request.at_ns, (long long)request.scheduled_ns, (long long)request.token,
                       (int)request.phase, (int)request.template);
}

const char ended_doc[] =
    "ended(user_index, at_ns)\n\nA request that Python sent or took back has ended.";
PyObject *Lane_ended(Lane *lane, PyObject *args) {
  int index;
  long long at_ns;
  if (!PyArg_ParseTuple(args, "iL", &index, &at_ns)) return NULL;
  if (!may_enter(lane) || !is_within("the instant of an end", at_ns, 0, LATEST_NS)) return NULL;
  if (index < 0 || index >= lane->n_users || lane->users[index].place != WITH_PYTHON) {
    PyErr_Format(PyExc_ValueError, "user %d: no such user, or its request is not Python's", index);
    return NULL;
  }
  if (lane->has_failed) Py_RETURN_NONE; /* it was told; the rest must still be recorded */
  lane->is_busy = 1;
  user_ended(lane, index, at_ns);
  lane->is_busy = 0;
  if (lane->has_failed) return failed();
  Py_RETURN_NONE;
}

const char n_due_by_doc[] =
    "n_due_by(at_ns) -> int\n\nClosed loop: those taken, and users who have thought by then.";
PyObject *Lane_n_due_by(Lane *lane, PyObject *arg) {
  int64_t at_ns = PyLong_AsLongLong(arg), n = lane->n_taken;
  if (at_ns == -1 && PyErr_Occurred()) return NULL;
  if (!may_enter(lane)) return NULL;
  for (int64_t i = 0; i < lane->n_heap; i++) n += lane->heap[i].at_ns <= at_ns;
  return PyLong_FromLongLong(n);
}

const char halt_doc[] =
    "halt()\n\nNobody sends any more.";
PyObject *Lane_halt(Lane *lane, PyObject *unused) {
  (void)unused;
  if (!may_enter(lane)) return NULL;
  lane->n_heap = 0;
  lane->next = lane->n_planned;
  lane->is_stuck = 0;
  Py_RETURN_NONE;
}
