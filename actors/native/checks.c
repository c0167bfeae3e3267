/* What Python gives is looked at before it is used: nothing here may read or write where it has no business. */

#include "lane.h"

/* 0 with an exception where `lane` cannot be used: after its end, by a second thread or from its own callbacks. */
int may_enter(const Lane *lane) {
  if (lane->is_busy) PyErr_SetString(PyExc_RuntimeError, "the lane is at work: only its one thread may call it");
  if (lane->is_closed) PyErr_SetString(PyExc_ValueError, "the lane is closed");
  return !lane->is_busy && !lane->is_closed;
}

/* 0 with a ValueError where `value` is not from `least` to `most`. */
int is_within(const char *what, long long value, long long least, long long most) {
  if (value >= least && value <= most) return 1;
  PyErr_Format(PyExc_ValueError, "%s: %lld is not from %lld to %lld", what, value, least, most);
  return 0;
}

/* 0 with a ValueError where the lane has no such server. */
int is_target(const Lane *lane, long number) { return is_within("a target", number, 0, lane->n_pools - 1); }

int is_function(const char *what, PyObject *object) {
  if (PyCallable_Check(object)) return 1;
  PyErr_Format(PyExc_TypeError, "%s cannot be called", what);
  return 0;
}

/* 0 with an exception where `object` is no contiguous column of native integers of `n_bytes` each, whose format is one
   of `letters`. */
int lent_column(const char *what, PyObject *object, Py_buffer *view, Py_ssize_t n_bytes, const char *letters) {
  if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT)) return 0;
  const char *format = view->format ? view->format : "B";
  if (*format == '@' || *format == '=' || *format == '<') format++;
  int is_kind = *format && !format[1] && strchr(letters, *format) && view->itemsize == n_bytes;
  if (!is_kind || view->ndim != 1)
    PyErr_Format(PyExc_TypeError, "%s: not one column of integers of %zd bytes", what, n_bytes);
  else if ((uintptr_t)view->buf % (size_t)n_bytes)
    PyErr_Format(PyExc_ValueError, "%s: not aligned to %zd bytes", what, n_bytes);
  else
    return 1;
  PyBuffer_Release(view);
  return 0;
}

typedef struct {
  const char *name, *type;
  Py_ssize_t offset;
} Field;

#define FIELD(name, type) {#name, type, offsetof(Record, name)}
static const Field FIELDS[] = {
    FIELD(request_id, "<i8"),    FIELD(scheduled_ns, "<i8"),   FIELD(sent_ns, "<i8"), FIELD(first_byte_ns, "<i8"),
    FIELD(done_ns, "<i8"),       FIELD(response_bytes, "<i8"), FIELD(rows, "<i4"),    FIELD(request_bytes, "<i4"),
    FIELD(phase, "|u1"),         FIELD(outcome, "|u1"),        FIELD(detail, "<u2"),
    FIELD(target, "|u1"),        FIELD(kind, "|u1"),
};
enum { N_FIELDS = sizeof FIELDS / sizeof *FIELDS };

/* 0 with an exception where `fields`, a tuple of (name, numpy's type, offset), are not those of `Record`. */
int is_record(long long n_bytes, PyObject *fields) {
  if (!PyTuple_Check(fields)) {
    PyErr_SetString(PyExc_TypeError, "the fields of a record: not a tuple of (name, type, offset)");
    return 0;
  }
  if (n_bytes != sizeof(Record) || PyTuple_Size(fields) != N_FIELDS) {
    PyErr_Format(PyExc_ValueError, "a record of Python's has %zd fields in %lld bytes, the lane's has %d in %zd",
                 PyTuple_Size(fields), n_bytes, (int)N_FIELDS, sizeof(Record));
    return 0;
  }
  for (int i = 0; i < N_FIELDS; i++) {
    const Field *ours = &FIELDS[i];
    Field theirs;
    PyObject *field = PyTuple_GetItem(fields, i);
    if (!PyTuple_Check(field)) {
      PyErr_SetString(PyExc_TypeError, "a field of a record: not (name, type, offset)");
      return 0;
    }
    if (!PyArg_ParseTuple(field, "ssn", &theirs.name, &theirs.type, &theirs.offset)) return 0;
    if (strcmp(theirs.name, ours->name) || strcmp(theirs.type, ours->type) || theirs.offset != ours->offset) {
      PyErr_Format(PyExc_ValueError, "a record of Python's has %s %s at byte %zd where the lane's has %s %s at %zd",
                   theirs.name, theirs.type, theirs.offset, ours->name, ours->type, ours->offset);
      return 0;
    }
  }
  return 1;
}
