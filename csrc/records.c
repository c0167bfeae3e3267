/* Rows of `requests`, packed as actors.collector reads them. */

#include "lane.h"

/* the interpreter, from within `turn` */

void enter_python(Lane *lane) {
  if (lane->thread) PyEval_RestoreThread(lane->thread);
}

void leave_python(Lane *lane) {
  if (lane->thread) lane->thread = PyEval_SaveThread();
}

void hand_over(Lane *lane) { /* needs the interpreter */
  PyBuffer_Release(&lane->records);
  PyObject *fresh = PyObject_CallFunction(lane->swap, "OL", lane->buffer, (long long)lane->n_records);
  if (fresh) {
    Py_DECREF(lane->buffer);
    lane->buffer = fresh;
  } else {
    lane->has_failed = 1;
  }
  lane->n_records = 0;
  if (PyObject_GetBuffer(lane->buffer, &lane->records, PyBUF_WRITABLE)) lane->has_failed = 1;
}

void record(Lane *lane, const Request *request, int64_t done_ns, int64_t n_bytes) {
  const Template *template = &lane->templates[request->template];
  Record *row = (Record *)lane->records.buf + lane->n_records++;
  *row = (Record){request->token, request->scheduled_ns, request->sent_ns,   request->first_ns, done_ns, n_bytes,
                  template->rows, template->n_bytes,     request->phase,     lane->ok_code,     0};
  int64_t begun_ns = request->scheduled_ns >= 0 ? request->scheduled_ns : request->sent_ns;
  if (lane->n_recent < MOST_RECENT) lane->recent[lane->n_recent++] = done_ns - begun_ns;
  lane->n_done++;
  if (lane->n_records == lane->n_record_room) {
    enter_python(lane);
    hand_over(lane);
    leave_python(lane);
  }
}
