/* Python's side: `actors._lane`. */

#include "lane.h"

/* The reply's message as far as it was compared; zeros stand for the tensors' data. */
static PyObject *body_of(const Lane *lane, const Request *request) {
  const Template *template = &lane->templates[request->template];
  if (request->body) return Py_NewRef(request->body);
  PyObject *body = PyBytes_FromStringAndSize(NULL, request->n_got);
  if (!body || !request->n_got) return body;
  char *at = PyBytes_AsString(body);
  memset(at, 0, request->n_got);
  memcpy(at, template->prefix.data, template->prefix.n);
  memcpy(at + template->prefix.n, request->id, ID_DIGITS);
  memcpy(at + template->prefix.n + ID_DIGITS, template->suffix.data, template->suffix.n);
  return body;
}

static PyObject *told(const Lane *lane, const Request *request) {
  return Py_BuildValue("(LLLiiLLLiN)", (long long)request->token, (long long)request->at_ns,
                       (long long)request->scheduled_ns, (int)request->phase, (int)request->template,
                       (long long)request->sent_ns, (long long)request->first_ns, (long long)request->stream,
                       (int)request->has_head, body_of(lane, request));
}

static int tell(PyObject *list, Lane *lane, Request *request) {
  PyObject *item = told(lane, request);
  int rc = item ? PyList_Append(list, item) : -1;
  Py_XDECREF(item);
  end_flight(lane, request);
  return rc;
}

static void free_conn(Lane *lane, Conn *conn) {
  lane->conns[conn->fd] = NULL;
  Py_XDECREF(conn->owner);
  for (int i = 0; i < conn->heads.n; i++) free(conn->heads.blocks[i].data);
  for (int i = 0; i < conn->trailers.n; i++) free(conn->trailers.blocks[i].data);
  free(conn->rx.data);
  free(conn->tx.data);
  free(conn->block.data);
  free(conn->slots);
  free(conn);
}

static PyObject *released(Lane *lane, Conn *conn) {
  PyObject *requests = PyList_New(0);
  int rc = requests ? 0 : -1;
  if (conn->request && !rc) rc = tell(requests, lane, conn->request);
  for (uint32_t i = 0; i < conn->n_slots; i++)
    for (Request *request = conn->slots[i], *next; request && !rc; request = next) {
      next = request->beside;
      rc = tell(requests, lane, request);
    }
  PyObject *out = NULL;
  if (!rc)
    out = Py_BuildValue("(Oiy#Ly#(LLL)O)", conn->owner, conn->lost, conn->rx.data ? conn->rx.data : "", conn->rx.n,
                        (long long)conn->now_ns, conn->tx.data ? conn->tx.data : "", conn->tx.n,
                        (long long)conn->next_stream, (long long)conn->window, (long long)conn->n_received, requests);
  Py_XDECREF(requests);
  free_conn(lane, conn);
  return out;
}

static PyObject *take_strays(Lane *lane) {
  flush_dirty(lane);
  PyObject *out = PyList_New(0);
  for (int i = 0; i < lane->n_strays; i++) {
    PyObject *item = released(lane, lane->strays[i]);
    if (!item || !out || PyList_Append(out, item)) Py_CLEAR(out);
    Py_XDECREF(item);
  }
  lane->n_strays = 0;
  return out;
}

/* What a callback raised, or that what it gave could not be used. */
static PyObject *failed(void) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "the lane was given steps that make no sense");
  return NULL;
}

PyDoc_STRVAR(turn_doc,
             "turn(until_ns) -> (ready, strays)\n\nSends and reads until `until_ns` or until Python must do something.");
static PyObject *Lane_turn(Lane *lane, PyObject *arg) {
  struct epoll_event foreign[MOST_EVENTS];
  int64_t until_ns = PyLong_AsLongLong(arg);
  if (until_ns == -1 && PyErr_Occurred()) return NULL;
  lane->thread = PyEval_SaveThread();
  int n = follow(lane, until_ns, foreign);
  PyThreadState *thread = lane->thread;
  lane->thread = NULL;
  PyEval_RestoreThread(thread);
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

PyDoc_STRVAR(expire_doc, "expire(sent_by_ns, by_phase) -> strays\n\nGives back the connections of requests sent by then, "
                         "those of phase i by int64 number i of `by_phase`, which is not later.");
static PyObject *Lane_expire(Lane *lane, PyObject *args) {
  long long sent_by_ns;
  const char *by_phase;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(args, "Ly#", &sent_by_ns, &by_phase, &n)) return NULL;
  flush_dirty(lane);
  for (Request *request = lane->oldest; request && request->sent_ns <= sent_by_ns; request = request->newer) {
    int64_t by_ns = sent_by_ns;
    if (request->phase < n / 8) memcpy(&by_ns, by_phase + 8 * request->phase, 8);
    if (request->sent_ns > by_ns) continue;
    lane->conns[request->fd]->now_ns = now_ns();
    stray(lane, lane->conns[request->fd]);
  }
  return take_strays(lane);
}

PyDoc_STRVAR(reclaim_doc, "reclaim(fd) -> strays\n\nGives one connection back, with all that is on it; nothing where it is "
                          "not here.");
static PyObject *Lane_reclaim(Lane *lane, PyObject *arg) {
  long fd = PyLong_AsLong(arg);
  if (fd == -1 && PyErr_Occurred()) return NULL;
  if (fd >= 0 && fd < lane->n_conns && lane->conns[fd]) {
    lane->conns[fd]->now_ns = now_ns();
    stray(lane, lane->conns[fd]);
  }
  return take_strays(lane);
}

PyDoc_STRVAR(lend_doc, "lend(fd, stream, token, at_ns, scheduled_ns, phase, template, user_index, sent_ns, first_ns, "
                       "has_head)\n\nA call that Python began on a parked connection; the oldest first.");
static PyObject *Lane_lend(Lane *lane, PyObject *args) {
  int fd, phase, template, user, has_head;
  long long stream, token, at_ns, scheduled_ns, sent_ns, first_ns;
  if (!PyArg_ParseTuple(args, "iLLLLiiiLLi", &fd, &stream, &token, &at_ns, &scheduled_ns, &phase, &template, &user,
                        &sent_ns, &first_ns, &has_head))
    return NULL;
  if (fd < 0 || fd >= lane->n_conns || !lane->conns[fd] || !is_template(lane, template)) {
    PyErr_SetString(PyExc_ValueError, "no such connection or template");
    return NULL;
  }
  Request *request = new_request(lane);
  request->token = token;
  begin_flight(lane, request, fd);
  lane->n_sent--; /* Python has counted it */
  request->stream = (uint32_t)stream;
  request->at_ns = at_ns;
  request->scheduled_ns = scheduled_ns;
  request->phase = (uint8_t)phase;
  request->template = template;
  request->user = user;
  order_by_send(lane, request, sent_ns);
  request->first_ns = first_ns;
  request->has_head = (uint8_t)has_head;
  keep_stream(lane->conns[fd], request);
  Py_RETURN_NONE;
}

static Conn *parked(Lane *lane, int fd, int kind, PyObject *owner) {
  if (fd < 0 || (fd < lane->n_conns && lane->conns[fd])) {
    PyErr_SetString(PyExc_ValueError, "no descriptor, or one that is parked already");
    return NULL;
  }
  if (fd >= lane->n_conns) {
    int n = 2 * fd + 64;
    lane->conns = grown(lane->conns, n * sizeof *lane->conns);
    memset(lane->conns + lane->n_conns, 0, (n - lane->n_conns) * sizeof *lane->conns);
    lane->n_conns = n;
  }
  Conn *conn = grown(NULL, sizeof *conn);
  memset(conn, 0, sizeof *conn);
  conn->fd = fd;
  conn->kind = kind;
  conn->lost = NOT_LOST;
  Py_INCREF(owner);
  conn->owner = owner;
  lane->conns[fd] = conn;
  make_ready(lane, fd);
  return conn;
}

PyDoc_STRVAR(park_http_doc, "park_http(fd, owner)\n\nTakes an idle connection.");
static PyObject *Lane_park_http(Lane *lane, PyObject *args) {
  int fd;
  PyObject *owner;
  if (!PyArg_ParseTuple(args, "iO", &fd, &owner)) return NULL;
  if (!parked(lane, fd, HTTP, owner)) return NULL;
  Py_RETURN_NONE;
}

static int read_blocks(Blocks *blocks, PyObject *list) {
  blocks->n = 0;
  for (Py_ssize_t i = 0; i < PyList_Size(list) && blocks->n < 4; i++) {
    char *data;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(PyList_GetItem(list, i), &data, &n)) return -1;
    blocks->blocks[blocks->n++] = copied(data, n);
  }
  return 0;
}

PyDoc_STRVAR(park_grpc_doc,
             "park_grpc(fd, owner, block, heads, trailers, (next_stream, window, n_received), stream_window, frame_bytes, "
             "n_most_streams)\n\nTakes a connection without calls; `block` is every request's header block, `heads` and "
             "`trailers` are blocks that say HTTP 200 and gRPC status 0.");
static PyObject *Lane_park_grpc(Lane *lane, PyObject *args) {
  int fd;
  PyObject *owner, *heads, *trailers;
  const char *block;
  Py_ssize_t n_block;
  long long next_stream, window, n_received, stream_window, frame_bytes, n_most;
  if (!PyArg_ParseTuple(args, "iOy#OO(LLL)LLL", &fd, &owner, &block, &n_block, &heads, &trailers, &next_stream,
                        &window, &n_received, &stream_window, &frame_bytes, &n_most))
    return NULL;
  Conn *conn = parked(lane, fd, GRPC, owner);
  if (!conn) return NULL;
  conn->block = copied(block, n_block);
  conn->next_stream = next_stream;
  conn->window = window;
  conn->n_received = n_received;
  conn->stream_window = stream_window;
  conn->frame_bytes = frame_bytes;
  conn->n_most_streams = n_most;
  conn->n_slots = 64;
  conn->slots = grown(NULL, conn->n_slots * sizeof *conn->slots);
  memset(conn->slots, 0, conn->n_slots * sizeof *conn->slots);
  if (read_blocks(&conn->heads, heads) || read_blocks(&conn->trailers, trailers)) return NULL;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(add_template_doc, "add_template(head, tail, rows, n_bytes, check_every) -> its number");
static PyObject *Lane_add_template(Lane *lane, PyObject *args) {
  const char *head, *tail;
  Py_ssize_t n_head, n_tail;
  int rows, n_bytes;
  long long check_every;
  if (!PyArg_ParseTuple(args, "y#y#iiL", &head, &n_head, &tail, &n_tail, &rows, &n_bytes, &check_every)) return NULL;
  lane->templates = grown(lane->templates, (lane->n_templates + 1) * sizeof *lane->templates);
  Template *template = &lane->templates[lane->n_templates];
  memset(template, 0, sizeof *template);
  template->head = copied(head, n_head);
  template->tail = copied(tail, n_tail);
  template->rows = rows;
  template->n_bytes = n_bytes;
  template->check_every = check_every;
  template->n_reply = -1;
  return PyLong_FromLong(lane->n_templates++);
}

PyDoc_STRVAR(know_layout_doc, "know_layout(template, prefix, suffix, n_reply_bytes, n_json_bytes)\n\nA reply of these "
                              "bytes around its id, and of this size, is right.");
static PyObject *Lane_know_layout(Lane *lane, PyObject *args) {
  int number;
  const char *prefix, *suffix;
  Py_ssize_t n_prefix, n_suffix;
  long long n_reply, n_json;
  if (!PyArg_ParseTuple(args, "iy#y#LL", &number, &prefix, &n_prefix, &suffix, &n_suffix, &n_reply, &n_json))
    return NULL;
  if (!is_template(lane, number) || n_prefix + ID_DIGITS + n_suffix > n_reply) {
    PyErr_SetString(PyExc_ValueError, "no such template, or a layout longer than its reply");
    return NULL;
  }
  for (Request *request = lane->oldest; request; request = request->newer)
    if (request->template == number && request->n_got && !request->body && !(request->body = body_of(lane, request)))
      return NULL;
  Template *template = &lane->templates[number];
  free(template->prefix.data);
  free(template->suffix.data);
  template->prefix = copied(prefix, n_prefix);
  template->suffix = copied(suffix, n_suffix);
  template->n_reply = n_reply;
  template->n_json = n_json;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(know_head_doc, "know_head(head, n_json_bytes, n_body_bytes)\n\nAn HTTP head of status 200.");
static PyObject *Lane_know_head(Lane *lane, PyObject *args) {
  const char *data;
  Py_ssize_t n;
  long long n_json, n_body;
  if (!PyArg_ParseTuple(args, "y#LL", &data, &n, &n_json, &n_body)) return NULL;
  Head *head = &lane->heads[lane->n_heads++ % MOST_HEADS];
  free(head->bytes.data);
  *head = (Head){copied(data, n), n_json, n_body};
  Py_RETURN_NONE;
}

PyDoc_STRVAR(begin_open_doc, "begin_open(start_ns, offsets, tokens, phases, templates)\n\nThe arrivals: contiguous arrays "
                             "int64, int64, uint8, int32.");
static PyObject *Lane_begin_open(Lane *lane, PyObject *args) {
  long long start_ns;
  if (!PyArg_ParseTuple(args, "Ly*y*y*y*", &start_ns, &lane->offsets, &lane->tokens, &lane->phases, &lane->kinds))
    return NULL;
  lane->start_ns = start_ns;
  lane->n_planned = lane->phases.len;
  int is_sound = lane->offsets.len == 8 * lane->n_planned && lane->tokens.len == 8 * lane->n_planned &&
                 lane->kinds.len == 4 * lane->n_planned;
  for (int64_t i = 0; is_sound && i < lane->n_planned; i++) is_sound = is_template(lane, ((int32_t *)lane->kinds.buf)[i]);
  if (!is_sound) {
    lane->n_planned = 0;
    PyErr_SetString(PyExc_ValueError, "the arrays of a plan differ in length or type, or name no template");
    return NULL;
  }
  Py_RETURN_NONE;
}

PyDoc_STRVAR(begin_closed_doc,
             "begin_closed(start_ns, numbers, n_all_users, enter, refill)\n\nThe users. enter(index, first_phase, free_ns) "
             "-> (send_ns, phase, end_ns) or None; refill(index) -> (int64 think times, int32 templates), at most 64.");
static PyObject *Lane_begin_closed(Lane *lane, PyObject *args) {
  long long start_ns, n_all;
  Py_buffer numbers;
  if (!PyArg_ParseTuple(args, "Ly*LOO", &start_ns, &numbers, &n_all, &lane->enter, &lane->refill)) return NULL;
  Py_INCREF(lane->enter);
  Py_INCREF(lane->refill);
  lane->n_users = numbers.len / 8;
  lane->n_all_users = n_all;
  lane->users = grown(NULL, lane->n_users * sizeof *lane->users);
  lane->heap = grown(NULL, lane->n_users * sizeof *lane->heap);
  memset(lane->users, 0, lane->n_users * sizeof *lane->users);
  for (int64_t i = 0; i < lane->n_users; i++) lane->users[i].number = ((int64_t *)numbers.buf)[i];
  PyBuffer_Release(&numbers);
  for (int64_t i = 0; i < lane->n_users && !lane->has_failed; i++) enter_phase(lane, (int32_t)i, 0, start_ns);
  if (lane->has_failed) return failed();
  Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc, "take() -> (at_ns, scheduled_ns, token, phase, template)\n\nThe next arrival, for Python to send.");
static PyObject *Lane_take(Lane *lane, PyObject *unused) {
  (void)unused;
  if (next_due(lane) == NEVER_NS) {
    PyErr_SetString(PyExc_IndexError, "no arrival is left");
    return NULL;
  }
  Request request = {0};
  take_due(lane, &request);
  return Py_BuildValue("(LLLii)", (long long)request.at_ns, (long long)request.scheduled_ns, (long long)request.token,
                       (int)request.phase, (int)request.template);
}

PyDoc_STRVAR(ended_doc, "ended(user_index, at_ns)\n\nA request that Python sent or took back has ended.");
static PyObject *Lane_ended(Lane *lane, PyObject *args) {
  int index;
  long long at_ns;
  if (!PyArg_ParseTuple(args, "iL", &index, &at_ns)) return NULL;
  if (index < 0 || index >= lane->n_users) {
    PyErr_SetString(PyExc_IndexError, "no such user");
    return NULL;
  }
  if (lane->has_failed) Py_RETURN_NONE; /* it was told; the rest must still be recorded */
  user_ended(lane, index, at_ns);
  if (lane->has_failed) return failed();
  Py_RETURN_NONE;
}

PyDoc_STRVAR(n_due_by_doc, "n_due_by(at_ns) -> int\n\nClosed loop: those taken, and users who have thought by then.");
static PyObject *Lane_n_due_by(Lane *lane, PyObject *arg) {
  int64_t at_ns = PyLong_AsLongLong(arg), n = lane->n_taken;
  if (at_ns == -1 && PyErr_Occurred()) return NULL;
  for (int64_t i = 0; i < lane->n_heap; i++) n += lane->heap[i].at_ns <= at_ns;
  return PyLong_FromLongLong(n);
}

PyDoc_STRVAR(halt_doc, "halt()\n\nNobody sends any more.");
static PyObject *Lane_halt(Lane *lane, PyObject *unused) {
  (void)unused;
  lane->n_heap = 0;
  lane->next = lane->n_planned;
  lane->is_stuck = 0;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(flush_doc, "flush()\n\nHands the records so far to `swap`.");
static PyObject *Lane_flush(Lane *lane, PyObject *unused) {
  (void)unused;
  if (lane->n_records) hand_over(lane);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(counts_doc, "counts() -> (n_sent, n_done, lag_max_ns, spun_ns) since the last call");
static PyObject *Lane_counts(Lane *lane, PyObject *unused) {
  (void)unused;
  PyObject *out = Py_BuildValue("(LLLL)", (long long)lane->n_sent, (long long)lane->n_done,
                                (long long)lane->lag_max_ns, (long long)lane->spun_ns);
  lane->n_sent = lane->n_done = lane->lag_max_ns = lane->spun_ns = 0;
  return out;
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
  for (int i = 0; i < lane->n_conns; i++)
    if (lane->conns[i]) {
      Conn *conn = lane->conns[i];
      if (conn->request) end_flight(lane, conn->request);
      for (uint32_t j = 0; j < conn->n_slots; j++)
        for (Request *request = conn->slots[j]; request; request = request->beside) end_flight(lane, request);
      free_conn(lane, conn);
    }
  lane->n_ready = lane->n_strays = lane->n_dirty = 0;
  Py_CLEAR(lane->enter);
  Py_CLEAR(lane->refill);
  Py_CLEAR(lane->swap);
  if (lane->timer_fd >= 0) close(lane->timer_fd);
  lane->timer_fd = -1;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(wait_doc, "set_waiting(n)\n\nPython has `n` requests that wait for a connection: the next that is free is theirs.");
static PyObject *Lane_set_waiting(Lane *lane, PyObject *arg) {
  lane->n_waiting = PyLong_AsLongLong(arg);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

PyDoc_STRVAR(others_doc, "set_others(n)\n\nPython has `n` gRPC connections that take calls: each `n` + parked-th is its.");
static PyObject *Lane_set_others(Lane *lane, PyObject *arg) {
  lane->n_others = (int)PyLong_AsLong(arg);
  if (PyErr_Occurred()) return NULL;
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

static PyObject *get_in_flight(Lane *lane, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(lane->n_in_flight);
}

static PyObject *Lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  (void)kwargs;
  int epoll_fd, ok_code;
  long long spin_ns, record_bytes;
  PyObject *swap, *buffer;
  if (!PyArg_ParseTuple(args, "iLOOLi", &epoll_fd, &spin_ns, &swap, &buffer, &record_bytes, &ok_code)) return NULL;
  if (record_bytes != sizeof(Record)) {
    PyErr_SetString(PyExc_ValueError, "the lane's records are not the collector's");
    return NULL;
  }
  allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Lane *lane = (Lane *)alloc(type, 0);
  if (!lane) return NULL;
  lane->timer_fd = -1;
  lane->armed_ns = -1;
  lane->epoll_fd = epoll_fd;
  lane->spin_ns = spin_ns;
  lane->ok_code = (uint8_t)ok_code;
  Py_INCREF(swap);
  lane->swap = swap;
  Py_INCREF(buffer);
  lane->buffer = buffer;
  if (PyObject_GetBuffer(buffer, &lane->records, PyBUF_WRITABLE)) {
    Py_DECREF(lane);
    return NULL;
  }
  lane->n_record_room = lane->records.len / (Py_ssize_t)sizeof(Record);
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
  for (int i = 0; i < lane->n_templates; i++) {
    free(lane->templates[i].head.data);
    free(lane->templates[i].tail.data);
    free(lane->templates[i].prefix.data);
    free(lane->templates[i].suffix.data);
  }
  for (int i = 0; i < MOST_HEADS; i++) free(lane->heads[i].bytes.data);
  for (Request *request = lane->free, *next; request; request = next) {
    next = request->next;
    free(request);
  }
  Py_buffer *views[] = {&lane->records, &lane->offsets, &lane->tokens, &lane->phases, &lane->kinds};
  for (int i = 0; i < 5; i++)
    if (views[i]->obj) PyBuffer_Release(views[i]);
  free(lane->templates);
  free(lane->users);
  free(lane->heap);
  free(lane->conns);
  free(lane->ready);
  free(lane->dirty);
  free(lane->strays);
  Py_XDECREF(lane->enter);
  Py_XDECREF(lane->refill);
  Py_XDECREF(lane->swap);
  Py_XDECREF(lane->buffer);
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
    METHOD(know_layout, METH_VARARGS, know_layout_doc),
    METHOD(know_head, METH_VARARGS, know_head_doc),
    METHOD(begin_open, METH_VARARGS, begin_open_doc),
    METHOD(begin_closed, METH_VARARGS, begin_closed_doc),
    METHOD(take, METH_NOARGS, take_doc),
    METHOD(ended, METH_VARARGS, ended_doc),
    METHOD(n_due_by, METH_O, n_due_by_doc),
    METHOD(halt, METH_NOARGS, halt_doc),
    METHOD(flush, METH_NOARGS, flush_doc),
    METHOD(counts, METH_NOARGS, counts_doc),
    METHOD(recent, METH_NOARGS, recent_doc),
    METHOD(set_waiting, METH_O, wait_doc),
    METHOD(set_others, METH_O, others_doc),
    METHOD(close, METH_NOARGS, close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_attributes[] = {
    {"stuck_ns", (getter)get_stuck_ns, NULL, "When the arrival is due for which no connection is free.", NULL},
    {"next_ns", (getter)get_next_ns, NULL, "When the next arrival is due.", NULL},
    {"n_in_flight", (getter)get_in_flight, NULL, "Requests of the lane that have not ended.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_new, Lane_new},
    {Py_tp_dealloc, Lane_dealloc},
    {Py_tp_methods, lane_methods},
    {Py_tp_getset, lane_attributes},
    {Py_tp_doc, "Lane(epoll_fd, spin_ns, swap, buffer, record_bytes, ok_code)\n\n`swap(buffer, n_records)` takes a buffer "
                "of records and gives a fresh one."},
    {0, NULL},
};

static PyType_Spec lane_spec = {"actors._lane.Lane", sizeof(Lane), 0, Py_TPFLAGS_DEFAULT, lane_slots};

static int fill_module(PyObject *module) {
  PyObject *type = PyType_FromSpec(&lane_spec);
  int rc = type ? PyModule_AddObjectRef(module, "Lane", type) : -1;
  Py_XDECREF(type);
  return rc;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_lane", NULL, 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lane(void) { return PyModuleDef_Init(&module); }
