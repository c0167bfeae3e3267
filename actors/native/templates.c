/* What Python teaches the lane: requests, and the replies that it has judged. */

#include "lane.h"

Layout *layout_of(const Lane *lane, const Request *request) {
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

static void add_layouts(Lane *lane, int n) {
  lane->layouts = grown(lane->layouts, (lane->n_layouts + (size_t)n) * sizeof *lane->layouts);
  for (int i = 0; i < n; i++) lane->layouts[lane->n_layouts++] = (Layout){.n_reply = -1};
}

void free_templates(Lane *lane) {
  for (int i = 0; i < lane->n_templates; i++)
    if (!lane->templates[i].is_lent) {
      free(lane->templates[i].head.data);
      free(lane->templates[i].tail.data);
    }
  free(lane->templates);
  for (int i = 0; i < lane->n_packed; i++) {
    Packed *packed = &lane->packed[i];
    for (Py_ssize_t j = 0; j < packed->n_heads; j++) free(packed->heads[j].data);
    free(packed->heads);
    PyBuffer_Release(&packed->tails);
  }
  free(lane->packed);
}

const char add_template_doc[] =
    "add_template(head, tail, rows, n_bytes, check_every, target, layout, kind=0) -> its number\n\nRequests whose "
    "replies have one layout share its number; the next that is not taken is a new one's. Its records name `kind`.";
PyObject *Lane_add_template(Lane *lane, PyObject *args) {
  const char *head, *tail;
  Py_ssize_t n_head, n_tail;
  int rows, n_bytes, target, layout, kind = 0;
  long long check_every;
  if (!PyArg_ParseTuple(args, "y#y#iiLii|i", &head, &n_head, &tail, &n_tail, &rows, &n_bytes, &check_every, &target,
                        &layout, &kind))
    return NULL;
  if (!may_enter(lane) || !is_within("rows of a request", rows, 0, INT32_MAX) ||
      !is_within("check_every", check_every, 0, INT64_MAX) || !is_target(lane, target) ||
      !is_within("a layout", layout, 0, lane->n_layouts) || !is_within("a kind", kind, 0, UINT8_MAX))
    return NULL;
  if (n_head + ID_DIGITS + lane->n_between + n_tail != n_bytes) {
    PyErr_Format(PyExc_ValueError, "a request of %zd bytes, an id with %d and %zd bytes is not of %d", n_head,
                 lane->n_between, n_tail, n_bytes);
    return NULL;
  }
  if (layout == lane->n_layouts) add_layouts(lane, 1);
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
  template->kind = kind;
  return PyLong_FromLong(lane->n_templates++);
}

enum { HEAD_AT, TAIL_AT, N_TAIL, ROWS_AT, LAYOUT_AT, N_PLACES }; /* columns of a table of templates */

/* Whether the heads are bytes; copies them. Sets an exception where they are not. */
static int take_heads(Packed *packed, PyObject *heads) {
  Py_ssize_t n = PyList_Size(heads);
  if (n < 0) return 0;
  packed->heads = grown(NULL, n * sizeof *packed->heads);
  for (; packed->n_heads < n; packed->n_heads++) {
    char *data;
    Py_ssize_t n_bytes;
    if (PyBytes_AsStringAndSize(PyList_GetItem(heads, packed->n_heads), &data, &n_bytes)) return 0;
    packed->heads[packed->n_heads] = copied(data, n_bytes);
  }
  return 1;
}

/* Whether each row of the table names a head, a layout, and bytes of the buffer, of a request that is none too long with
   its `n_own` bytes. */
static int is_table(const Packed *packed, const int64_t *row, Py_ssize_t n, int64_t n_layouts, int n_own) {
  int64_t n_all = packed->tails.len;
  for (; n; n--, row += N_PLACES) {
    if (row[HEAD_AT] < 0 || row[HEAD_AT] >= packed->n_heads || row[TAIL_AT] < 0 || row[TAIL_AT] > n_all ||
        row[N_TAIL] < 0 || row[N_TAIL] > n_all - row[TAIL_AT] || row[ROWS_AT] < 0 || row[ROWS_AT] > INT32_MAX ||
        row[LAYOUT_AT] < 0 || row[LAYOUT_AT] >= n_layouts ||
        packed->heads[row[HEAD_AT]].n + n_own + row[N_TAIL] > INT32_MAX)
      return 0;
  }
  return 1;
}

const char add_templates_doc[] =
    "add_templates(tails, heads, table, check_every, target, n_layouts, kind=0) -> number of the first\n\nMany requests "
    "whose tails stay where they are, in the buffer `tails`, which lives as long as the lane. A row of `table`, int64: "
    "number of its head in `heads`, begin and length of its tail, rows, layout, from 0 on, of so many new ones. Their "
    "records name `kind`.";
PyObject *Lane_add_templates(Lane *lane, PyObject *args) {
  Packed packed = {0};
  PyObject *heads;
  Py_buffer table;
  long long check_every;
  int target, n_layouts, kind = 0;
  if (!PyArg_ParseTuple(args, "y*O!y*Lii|i", &packed.tails, &PyList_Type, &heads, &table, &check_every, &target,
                        &n_layouts, &kind))
    return NULL;
  Py_ssize_t n = table.len / (Py_ssize_t)(N_PLACES * sizeof(int64_t));
  int n_own = ID_DIGITS + lane->n_between;
  int is_sound = may_enter(lane) && is_within("check_every", check_every, 0, INT64_MAX) && is_target(lane, target) &&
                 is_within("layouts", n_layouts, 0, INT32_MAX - lane->n_layouts) &&
                 is_within("a kind", kind, 0, UINT8_MAX) &&
                 is_within("templates", n, 0, INT32_MAX - lane->n_templates) && take_heads(&packed, heads);
  if (is_sound && ((size_t)table.len % (N_PLACES * sizeof(int64_t)) ||
                   !is_table(&packed, table.buf, n, n_layouts, n_own))) {
    PyErr_SetString(PyExc_ValueError, "the table names heads, tails, rows or layouts that there are not");
    is_sound = 0;
  }
  lane->packed = grown(lane->packed, (lane->n_packed + 1) * sizeof *lane->packed);
  lane->packed[lane->n_packed++] = packed; /* also where it is refused: it goes with the lane */
  int first = lane->n_templates;
  if (is_sound) {
    lane->templates = grown(lane->templates, (first + (size_t)n) * sizeof *lane->templates);
    const int64_t *row = table.buf;
    for (Py_ssize_t i = 0; i < n; i++, row += N_PLACES) {
      Bytes head = packed.heads[row[HEAD_AT]], tail = {(char *)packed.tails.buf + row[TAIL_AT], row[N_TAIL]};
      lane->templates[lane->n_templates++] = (Template){
          .head = head, .tail = tail, .rows = (int32_t)row[ROWS_AT], .n_bytes = (int32_t)(head.n + n_own + tail.n),
          .target = target, .layout = lane->n_layouts + (int32_t)row[LAYOUT_AT], .check_every = check_every,
          .kind = kind, .is_lent = 1};
    }
    add_layouts(lane, n_layouts);
  }
  PyBuffer_Release(&table);
  return is_sound ? PyLong_FromLong(first) : NULL;
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
  *layout = (Layout){copied(prefix, n_prefix), copied(suffix, n_suffix), n_reply, n_json, layout->head};
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
