/* Rows of `requests`, packed as squall.actors.load.recorder reads them. */

#include "lane.h"

/* the interpreter, from within `turn` */

void enter_python(Lane *lane) {
  if (lane->thread) PyEval_RestoreThread(lane->thread);
}

void leave_python(Lane *lane) {
  if (lane->thread) lane->thread = PyEval_SaveThread();
}

/* The next records go into `buffer`. -1 with an exception where that takes none; the lane then has no buffer. */
int lend_records(Lane *lane, PyObject *buffer) {
  Py_CLEAR(lane->buffer);
  if (PyObject_GetBuffer(buffer, &lane->records, PyBUF_WRITABLE)) return -1;
  if (!lane->records.len || lane->records.len % (Py_ssize_t)sizeof(Record)) {
    PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes does not hold whole records of %zd", lane->records.len,
                 sizeof(Record));
    PyBuffer_Release(&lane->records);
    return -1;
  }
  lane->n_record_room = lane->records.len / (Py_ssize_t)sizeof(Record);
  lane->buffer = Py_NewRef(buffer);
  return 0;
}

/* After `swap` gave nothing that could be used: what raised is told, and what still ends is recorded here. */
static void lend_own(Lane *lane) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject *own = PyByteArray_FromStringAndSize(NULL, lane->n_record_room * (Py_ssize_t)sizeof(Record));
  if (!own || lend_records(lane, own)) end_without_memory();
  Py_DECREF(own);
  PyErr_Restore(type, value, traceback);
  lane->has_failed = 1;
}

void hand_over(Lane *lane) { /* needs the interpreter */
  PyBuffer_Release(&lane->records);
  PyObject *filled = lane->buffer;
  lane->buffer = NULL;
  PyObject *fresh = PyObject_CallFunction(lane->swap, "OL", filled, (long long)lane->n_records);
  Py_DECREF(filled);
  lane->n_records = 0;
  if (!fresh || lend_records(lane, fresh)) lend_own(lane);
  Py_XDECREF(fresh);
}

void record(Lane *lane, const Request *request, int64_t done_ns, int64_t n_bytes) {
  const Template *template = &lane->templates[request->template];
  Record *row = (Record *)lane->records.buf + lane->n_records++;
  *row = (Record){request->token, request->scheduled_ns, request->sent_ns,   request->first_ns, done_ns, n_bytes,
                  template->rows, template->n_bytes,     request->phase,     lane->ok_code,     request->detail,
                  (uint8_t)template->target, (uint8_t)template->kind};
  int64_t begun_ns = request->scheduled_ns >= 0 ? request->scheduled_ns : request->sent_ns;
  if (lane->n_recent < MOST_RECENT) lane->recent[lane->n_recent++] = done_ns - begun_ns;
  lane->n_done++;
  lane->pools[template->target].n_done++;
  lane->in_flight[template->target]--;
  if (lane->n_records == lane->n_record_room) {
    enter_python(lane);
    hand_over(lane);
    leave_python(lane);
  }
}
