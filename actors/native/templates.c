/* What Python teaches the lane: requests, and the replies that it has judged. */

#include "lane.h"

const Layout *layout_of(const Lane *lane, const Request *request) {
  return &lane->layouts[lane->templates[request->template].layout];
}

/* The reply's message as far as it was compared; zeros stand for the tensors' data. */
PyObject *body_of(const Lane *lane, const Request *request) {
  const Layout *layout = layout_of(lane, request);
  if (request->body) return Py_NewRef(request->body);
  PyObject *body = PyBytes_FromStringAndSize(NULL, request->n_got);
  if (!body || !request->n_got) return body;
  char *at = PyBytes_AsString(body);
  memset(at, 0, request->n_got);
  memcpy(at, layout->prefix.data, layout->prefix.n);
  memcpy(at + layout->prefix.n, request->id, ID_DIGITS);
  memcpy(at + layout->prefix.n + ID_DIGITS, layout->suffix.data, layout->suffix.n);
  return body;
}

const char add_template_doc[] =
    "add_template(head, tail, rows, n_bytes, check_every, target, layout) -> its number\n\nRequests whose replies have "
    "one layout share its number; the next that is not taken is a new one's.";
PyObject *Lane_add_template(Lane *lane, PyObject *args) {
  const char *head, *tail;
  Py_ssize_t n_head, n_tail;
  int rows, n_bytes, target, layout;
  long long check_every;
  if (!PyArg_ParseTuple(args, "y#y#iiLii", &head, &n_head, &tail, &n_tail, &rows, &n_bytes, &check_every, &target,
                        &layout))
    return NULL;
  if (!may_enter(lane) || !is_within("rows of a request", rows, 0, INT32_MAX) ||
      !is_within("check_every", check_every, 0, INT64_MAX) || !is_target(lane, target) ||
      !is_within("a layout", layout, 0, lane->n_layouts))
    return NULL;
  if (n_head + ID_DIGITS + n_tail != n_bytes) {
    PyErr_Format(PyExc_ValueError, "a request of %zd bytes, an id and %zd bytes is not of %d", n_head, n_tail, n_bytes);
    return NULL;
  }
  if (layout == lane->n_layouts) {
    lane->layouts = grown(lane->layouts, (lane->n_layouts + 1) * sizeof *lane->layouts);
    lane->layouts[lane->n_layouts++] = (Layout){.n_reply = -1};
  }
  lane->templates = grown(lane->templates, (lane->n_templates + 1) * sizeof *lane->templates);
  Template *template = &lane->templates[lane->n_templates];
  memset(template, 0, sizeof *template);
  template->head = copied(head, n_head);
  template->tail = copied(tail, n_tail);
  template->rows = rows;
  template->n_bytes = n_bytes;
  template->check_every = check_every;
  template->target = target;
  template->layout = layout;
  return PyLong_FromLong(lane->n_templates++);
}

const char know_layout_doc[] =
    "know_layout(layout, prefix, suffix, n_reply_bytes, n_json_bytes)\n\nA reply of these bytes around its id, and of "
    "this size, is right for all requests of that layout.";
PyObject *Lane_know_layout(Lane *lane, PyObject *args) {
  int number;
  const char *prefix, *suffix;
  Py_ssize_t n_prefix, n_suffix;
  long long n_reply, n_json;
  if (!PyArg_ParseTuple(args, "iy#y#LL", &number, &prefix, &n_prefix, &suffix, &n_suffix, &n_reply, &n_json))
    return NULL;
  if (!may_enter(lane) || !is_within("bytes of a reply", n_reply, 0, LARGEST_REPLY) ||
      !is_within("bytes of its JSON", n_json, 0, n_reply))
    return NULL;
  if (number < 0 || number >= lane->n_layouts || n_prefix + ID_DIGITS + n_suffix > n_reply) {
    PyErr_SetString(PyExc_ValueError, "no such layout, or one longer than its reply");
    return NULL;
  }
  for (Request *request = lane->oldest; request; request = request->newer)
    if (lane->templates[request->template].layout == number && request->n_got && !request->body &&
        !(request->body = body_of(lane, request)))
      return NULL;
  Layout *layout = &lane->layouts[number];
  free(layout->prefix.data);
  free(layout->suffix.data);
  *layout = (Layout){copied(prefix, n_prefix), copied(suffix, n_suffix), n_reply, n_json};
  Py_RETURN_NONE;
}

const char know_head_doc[] =
    "know_head(head, n_json_bytes, n_body_bytes, target)\n\nAn HTTP head of status 200 of that server.";
PyObject *Lane_know_head(Lane *lane, PyObject *args) {
  const char *data;
  Py_ssize_t n;
  long long n_json, n_body;
  int target;
  if (!PyArg_ParseTuple(args, "y#LLi", &data, &n, &n_json, &n_body, &target)) return NULL;
  if (!may_enter(lane) || !is_within("bytes of a head", n, 1, SCRATCH_BYTES) ||
      !is_within("bytes of a reply", n_body, 0, LARGEST_REPLY) || !is_within("bytes of its JSON", n_json, 0, n_body) ||
      !is_target(lane, target))
    return NULL;
  Pool *pool = &lane->pools[target];
  Head *head = &pool->heads[pool->n_heads++ % MOST_HEADS];
  free(head->bytes.data);
  *head = (Head){copied(data, n), n_json, n_body};
  Py_RETURN_NONE;
}
