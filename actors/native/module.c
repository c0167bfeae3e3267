/* Python's side: `squall.actors._lane`. */

#include "lane.h"

PyDoc_STRVAR(turn_doc,
             "turn(until_ns) -> (ready, strays)\n\nSends and reads until `until_ns` or until Python must do something.");
static PyObject *Lane_turn(Lane *lane, PyObject *arg) {
  struct epoll_event foreign[MOST_EVENTS];
  int64_t until_ns = PyLong_AsLongLong(arg);
  if (until_ns == -1 && PyErr_Occurred()) return NULL;
  if (!may_enter(lane)) return NULL;
  lane->is_busy = 1;
  lane->thread = PyEval_SaveThread();
  int n = follow(lane, until_ns, foreign);
  PyThreadState *thread = lane->thread;
  lane->thread = NULL;
  PyEval_RestoreThread(thread);
  lane->is_busy = 0;
  if (lane->has_failed) return failed();
  PyObject *ready = PyList_New(0), *strays = take_strays(lane);
  for (int i = 0; ready && i < n; i++) {
    PyObject *item = Py_BuildValue("(iI)", foreign[i].data.fd, (unsigned)foreign[i].events);
    if (!item || PyList_Append(ready, item)) Py_CLEAR(ready);
    Py_XDECREF(item);
  }
  if (!ready || !strays) {
    Py_XDECREF(ready);
    Py_XDECREF(strays);
    return NULL;
  }
  return Py_BuildValue("(NN)", ready, strays);
}

PyDoc_STRVAR(flush_doc, "flush()\n\nHands the records so far to `swap`.");
static PyObject *Lane_flush(Lane *lane, PyObject *unused) {
  (void)unused;
  if (lane->is_busy) return may_enter(lane), NULL;
  lane->is_busy = 1;
  if (lane->n_records) hand_over(lane);
  lane->is_busy = 0;
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(counts_doc, "counts() -> (n_sent, n_done, lag_max_ns, spun_ns, n_write_pauses) since the last call");
static PyObject *Lane_counts(Lane *lane, PyObject *unused) {
  (void)unused;
  PyObject *out = Py_BuildValue("(LLLLL)", (long long)lane->n_sent, (long long)lane->n_done,
                                (long long)lane->lag_max_ns, (long long)lane->spun_ns, (long long)lane->n_write_pauses);
  lane->n_sent = lane->n_done = lane->lag_max_ns = lane->spun_ns = lane->n_write_pauses = 0;
  return out;
}

PyDoc_STRVAR(n_done_by_doc, "n_done_by(target) -> int\n\nRequests that the server has answered here, in all.");
static PyObject *Lane_n_done_by(Lane *lane, PyObject *arg) {
  long target = PyLong_AsLong(arg);
  if (target == -1 && PyErr_Occurred()) return NULL;
  if (!is_target(lane, target)) return NULL;
  return PyLong_FromLongLong(lane->pools[target].n_done);
}

PyDoc_STRVAR(recent_doc, "recent() -> bytes of int64\n\nResponse or service times since the last call, the first 4,096.");
static PyObject *Lane_recent(Lane *lane, PyObject *unused) {
  (void)unused;
  PyObject *out = PyBytes_FromStringAndSize((char *)lane->recent, lane->n_recent * 8);
  lane->n_recent = 0;
  return out;
}

PyDoc_STRVAR(close_doc, "close()\n\nLets go of every connection; what is in flight is forgotten.");
static PyObject *Lane_close(Lane *lane, PyObject *unused) {
  (void)unused;
  if (lane->is_busy) return may_enter(lane), NULL;
  lane->is_closed = 1;
  for (int i = 0; i < lane->n_conns; i++)
    if (lane->conns[i]) {
      Conn *conn = lane->conns[i];
      if (conn->request) end_flight(lane, conn->request);
      for (uint32_t j = 0; j < conn->n_slots; j++)
        for (Request *request = conn->slots[j]; request; request = request->beside) end_flight(lane, request);
      free_conn(lane, conn);
    }
  for (int i = 0; i < lane->n_pools; i++) lane->pools[i].n_ready = 0;
  lane->n_strays = lane->n_dirty = 0;
  lane->n_sequences = lane->n_waiting = 0;
  lane->n_heap = lane->n_planned = lane->next = lane->n_records = lane->n_record_room = 0;
  release_plan(lane);
  if (lane->records.obj) PyBuffer_Release(&lane->records);
  Py_CLEAR(lane->buffer);
  Py_CLEAR(lane->enter);
  Py_CLEAR(lane->refill);
  Py_CLEAR(lane->lengths);
  Py_CLEAR(lane->swap);
  if (lane->timer_fd >= 0) close(lane->timer_fd);
  lane->timer_fd = -1;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(wait_doc, "set_waiting(n, target)\n\nPython has `n` requests that wait for a connection to that server: the "
                       "next that is free is theirs.");
static PyObject *Lane_set_waiting(Lane *lane, PyObject *args) {
  long long n;
  int target;
  if (!PyArg_ParseTuple(args, "Li", &n, &target)) return NULL;
  if (!may_enter(lane) || !is_within("requests that wait", n, 0, INT64_MAX) || !is_target(lane, target)) return NULL;
  lane->pools[target].n_waiting = n;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(others_doc, "set_others(n, target)\n\nPython has `n` gRPC connections to that server that take calls: each `n` "
                         "+ parked-th is its.");
static PyObject *Lane_set_others(Lane *lane, PyObject *args) {
  long long n;
  int target;
  if (!PyArg_ParseTuple(args, "Li", &n, &target)) return NULL;
  if (!may_enter(lane) || !is_within("other connections", n, 0, MOST_OTHERS) || !is_target(lane, target)) return NULL;
  lane->pools[target].n_others = (int)n;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(in_turn_doc, "use_in_turn(target)\n\nOf idle HTTP connections to that server the one used first is next, so that "
                          "each has its share; else the one used last.");
static PyObject *Lane_use_in_turn(Lane *lane, PyObject *arg) {
  long target = PyLong_AsLong(arg);
  if (target == -1 && PyErr_Occurred()) return NULL;
  if (!may_enter(lane) || !is_target(lane, (int)target)) return NULL;
  lane->pools[target].is_in_turn = 1;
  Py_RETURN_NONE;
}

static PyObject *get_stuck_ns(Lane *lane, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(lane->is_stuck ? next_due(lane) : NEVER_NS);
}

static PyObject *get_next_ns(Lane *lane, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(next_due(lane));
}

static PyObject *get_begun(Lane *lane, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(lane->next);
}

static PyObject *get_waiting(Lane *lane, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(lane->n_waiting);
}

static PyObject *get_in_flight(Lane *lane, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(lane->n_in_flight);
}

static PyObject *Lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  int epoll_fd, ok_code, n_targets;
  long long spin_ns, record_bytes;
  PyObject *swap, *buffer, *fields;
  if (kwargs && PyDict_Size(kwargs)) {
    PyErr_SetString(PyExc_TypeError, "Lane takes no named arguments");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "iLOOLOii", &epoll_fd, &spin_ns, &swap, &buffer, &record_bytes, &fields, &ok_code,
                        &n_targets))
    return NULL;
  if (!is_within("spin_ns", spin_ns, 0, LATEST_NS) || !is_function("swap", swap) || !is_record(record_bytes, fields) ||
      !is_within("the code of an outcome", ok_code, 0, UINT8_MAX) ||
      !is_within("targets", n_targets, 1, MOST_TARGETS))
    return NULL;
  allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Lane *lane = (Lane *)alloc(type, 0);
  if (!lane) return NULL;
  lane->timer_fd = -1;
  lane->armed_ns = -1;
  lane->kind = -1;
  lane->epoll_fd = epoll_fd;
  lane->spin_ns = spin_ns;
  lane->ok_code = (uint8_t)ok_code;
  lane->pools = grown(NULL, n_targets * sizeof *lane->pools);
  memset(lane->pools, 0, n_targets * sizeof *lane->pools);
  lane->n_pools = n_targets;
  lane->last_target = n_targets - 1; /* the first turn is the first server's */
  Py_INCREF(swap);
  lane->swap = swap;
  if (lend_records(lane, buffer)) {
    Py_DECREF(lane);
    return NULL;
  }
  lane->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = lane->timer_fd};
  if (lane->timer_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, lane->timer_fd, &event)) {
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(lane);
    return NULL;
  }
  return (PyObject *)lane;
}

static void Lane_dealloc(Lane *lane) {
  PyTypeObject *type = Py_TYPE((PyObject *)lane);
  Py_XDECREF(Lane_close(lane, NULL));
  free_templates(lane);
  free(lane->flips);
  free_sequences(lane);
  for (int i = 0; i < lane->n_pools; i++) {
    for (int j = 0; j < MOST_HEADS; j++) free(lane->pools[i].heads[j].bytes.data);
    free(lane->pools[i].ready);
  }
  for (Request *request = lane->free, *next; request; request = next) {
    next = request->next;
    free(request);
  }
  for (int i = 0; i < lane->n_layouts; i++) {
    free(lane->layouts[i].prefix.data);
    free(lane->layouts[i].suffix.data);
  }
  free(lane->layouts);
  free(lane->kinds);
  free(lane->users);
  free(lane->heap);
  free(lane->conns);
  free(lane->pools);
  free(lane->dirty);
  free(lane->strays);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(lane);
  Py_DECREF(type);
}

#define METHOD(name, flags, doc) {#name, (PyCFunction)(void (*)(void))Lane_##name, flags, doc}
static PyMethodDef lane_methods[] = {
    METHOD(turn, METH_O, turn_doc),
    METHOD(expire, METH_VARARGS, expire_doc),
    METHOD(reclaim, METH_O, reclaim_doc),
    METHOD(lend, METH_VARARGS, lend_doc),
    METHOD(park_http, METH_VARARGS, park_http_doc),
    METHOD(park_grpc, METH_VARARGS, park_grpc_doc),
    METHOD(add_template, METH_VARARGS, add_template_doc),
    METHOD(set_between, METH_VARARGS, set_between_doc),
    METHOD(set_sequences, METH_VARARGS, set_sequences_doc),
    METHOD(turn_of, METH_O, turn_of_doc),
    METHOD(passed, METH_VARARGS, passed_doc),
    METHOD(held_back, METH_NOARGS, held_back_doc),
    METHOD(left_out, METH_VARARGS, left_out_doc),
    METHOD(add_templates, METH_VARARGS, add_templates_doc),
    METHOD(know_layout, METH_VARARGS, know_layout_doc),
    METHOD(choose_by, METH_VARARGS, choose_by_doc),
    METHOD(landed, METH_O, landed_doc),
    METHOD(know_head, METH_VARARGS, know_head_doc),
    METHOD(begin_open, METH_VARARGS, begin_open_doc),
    METHOD(begin_closed, METH_VARARGS, begin_closed_doc),
    METHOD(take, METH_NOARGS, take_doc),
    METHOD(ended, METH_VARARGS, ended_doc),
    METHOD(n_due_by, METH_O, n_due_by_doc),
    METHOD(halt, METH_NOARGS, halt_doc),
    METHOD(flush, METH_NOARGS, flush_doc),
    METHOD(counts, METH_NOARGS, counts_doc),
    METHOD(n_done_by, METH_O, n_done_by_doc),
    METHOD(recent, METH_NOARGS, recent_doc),
    METHOD(set_waiting, METH_VARARGS, wait_doc),
    METHOD(set_others, METH_VARARGS, others_doc),
    METHOD(use_in_turn, METH_O, in_turn_doc),
    METHOD(close, METH_NOARGS, close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_attributes[] = {
    {"stuck_ns", (getter)get_stuck_ns, NULL, "When the arrival is due for which no connection is free.", NULL},
    {"next_ns", (getter)get_next_ns, NULL, "When the next arrival is due.", NULL},
    {"n_begun", (getter)get_begun, NULL, "Arrivals of the plan that were taken or held back.", NULL},
    {"n_waiting", (getter)get_waiting, NULL, "Arrivals that are held back for the one before in their sequence.", NULL},
    {"n_in_flight", (getter)get_in_flight, NULL, "Requests of the lane that have not ended.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_new, Lane_new},
    {Py_tp_dealloc, Lane_dealloc},
    {Py_tp_methods, lane_methods},
    {Py_tp_getset, lane_attributes},
    {Py_tp_doc, "Lane(epoll_fd, spin_ns, swap, buffer, record_bytes, record_fields, ok_code, n_targets)\n\n`swap(buffer, n_records)` takes a buffer "
                "of records and gives a fresh one."},
    {0, NULL},
};

static PyType_Spec lane_spec = {"squall.actors._lane.Lane", sizeof(Lane), 0, Py_TPFLAGS_DEFAULT, lane_slots};

static int fill_module(PyObject *module) {
  PyObject *type = PyType_FromSpec(&lane_spec);
  int rc = type ? PyModule_AddObjectRef(module, "Lane", type) : -1;
  Py_XDECREF(type);
  return rc;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_lane", NULL, 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lane(void) { return PyModuleDef_Init(&module); }
