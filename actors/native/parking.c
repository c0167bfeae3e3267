/* Connections that Python parks here, and those that it gets back. */

#include "lane.h"

static PyObject *told(const Lane *lane, const Request *request) {
  return Py_BuildValue("(LLLiiLLLiN)", (long long)request->token, (long long)request->at_ns,
                       (long long)request->scheduled_ns, (int)request->phase, (int)request->template,
                       (long long)request->sent_ns, (long long)request->first_ns, (long long)request->stream,
                       (int)request->has_head, body_of(lane, request));
}

static int tell(PyObject *list, Lane *lane, Request *request) {
  PyObject *item = list ? told(lane, request) : NULL;
  int rc = item ? PyList_Append(list, item) : -1;
  Py_XDECREF(item);
  if (lane->users) lane->users[request->user].place = WITH_PYTHON;
  end_flight(lane, request);
  return rc;
}

void free_conn(Lane *lane, Conn *conn) {
  lane->conns[conn->fd] = NULL;
  Py_XDECREF(conn->owner);
  for (int i = 0; i < conn->heads.n; i++) free(conn->heads.blocks[i].data);
  for (int i = 0; i < conn->trailers.n; i++) free(conn->trailers.blocks[i].data);
  free(conn->rx.data);
  free(conn->tx.data);
  free(conn->pieces);
  free(conn->block.data);
  free(conn->slots);
  free(conn);
}

static PyObject *released(Lane *lane, Conn *conn) {
  PyObject *requests = PyList_New(0);
  int rc = requests ? 0 : -1;
  if (conn->request) rc |= tell(requests, lane, conn->request);
  for (uint32_t i = 0; i < conn->n_slots; i++)
    for (Request *request = conn->slots[i], *next; request; request = next) {
      next = request->beside;
      rc |= tell(requests, lane, request);
    }
  unwatch(lane, conn);
  PyObject *out = NULL;
  if (!rc)
    out = Py_BuildValue("(Oiy#LN(LLLL)O)", conn->owner, conn->lost, conn->rx.data ? conn->rx.data : "", conn->rx.n,
                        (long long)conn->now_ns, unsent(conn),
                        (long long)conn->next_stream, (long long)conn->window, (long long)conn->n_received,
                        (long long)conn->n_idle, requests);
  Py_XDECREF(requests);
  free_conn(lane, conn);
  return out;
}

PyObject *take_strays(Lane *lane) {
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

const char expire_doc[] =
    "expire(sent_by_ns, by_phase) -> strays\n\nGives back the connections of requests sent by then, "
    "those of phase i by int64 number i of `by_phase`, which is not later.";
PyObject *Lane_expire(Lane *lane, PyObject *args) {
  long long sent_by_ns;
  const char *by_phase;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(args, "Ly#", &sent_by_ns, &by_phase, &n)) return NULL;
  if (!may_enter(lane)) return NULL;
  if (n % 8) {
    PyErr_Format(PyExc_ValueError, "instants by phase: %zd bytes are no int64 numbers", n);
    return NULL;
  }
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

const char reclaim_doc[] =
    "reclaim(fd) -> strays\n\nGives one connection back, with all that is on it; nothing where it is "
    "not here.";
PyObject *Lane_reclaim(Lane *lane, PyObject *arg) {
  long fd = PyLong_AsLong(arg);
  if (fd == -1 && PyErr_Occurred()) return NULL;
  if (!may_enter(lane)) return NULL;
  if (fd >= 0 && fd < lane->n_conns && lane->conns[fd]) {
    lane->conns[fd]->now_ns = now_ns();
    stray(lane, lane->conns[fd]);
  }
  return take_strays(lane);
}

static int is_stream_socket(int fd) {
  int type = 0;
  socklen_t n = sizeof type;
  return fd >= 0 && !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) && type == SOCK_STREAM;
}

/* 0 with an exception where `fd` cannot be parked as `kind`. */
static int may_park(const Lane *lane, int fd, int kind, int target) {
  if (!may_enter(lane) || !is_target(lane, target)) return 0;
  const char *why = NULL;
  if (!is_stream_socket(fd)) why = "it is no stream socket";
  else if (fd < lane->n_conns && lane->conns[fd]) why = "it is parked already";
  else if (lane->kind >= 0 && lane->kind != kind) why = "the lane has connections of the other protocol";
  if (why) PyErr_Format(PyExc_ValueError, "descriptor %d: %s", fd, why);
  return !why;
}

static Conn *parked(Lane *lane, int fd, int kind, int target, PyObject *owner) {
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
  conn->target = target;
  conn->lost = NOT_LOST;
  Py_INCREF(owner);
  conn->owner = owner;
  lane->conns[fd] = conn;
  lane->kind = kind;
  make_ready(lane, conn);
  return conn;
}

const char park_http_doc[] =
    "park_http(fd, owner, target)\n\nTakes an idle connection to that server.";
PyObject *Lane_park_http(Lane *lane, PyObject *args) {
  int fd, target;
  PyObject *owner;
  if (!PyArg_ParseTuple(args, "iOi", &fd, &owner, &target)) return NULL;
  if (!may_park(lane, fd, HTTP, target)) return NULL;
  parked(lane, fd, HTTP, target, owner);
  Py_RETURN_NONE;
}

/* 0 with an exception where `list` is no list of bytes. */
static int are_blocks(const char *what, PyObject *list) {
  int is_list = PyList_Check(list);
  for (Py_ssize_t i = 0; is_list && i < PyList_Size(list); i++) is_list = PyBytes_Check(PyList_GetItem(list, i));
  if (!is_list) PyErr_Format(PyExc_TypeError, "%s: not a list of bytes", what);
  return is_list;
}

static void read_blocks(Blocks *blocks, PyObject *list) {
  for (blocks->n = 0; blocks->n < 4 && blocks->n < PyList_Size(list); blocks->n++) {
    PyObject *block = PyList_GetItem(list, blocks->n);
    blocks->blocks[blocks->n] = copied(PyBytes_AsString(block), PyBytes_Size(block));
  }
}

const char park_grpc_doc[] =
    "park_grpc(fd, owner, block, heads, trailers, (next_stream, window, n_received, n_idle), stream_window, frame_bytes, "
    "n_most_streams, target, unsent=b'')\n\nTakes a connection to that server without calls; `block` is every request's header block, `heads` and "
    "`trailers` are blocks that say HTTP 200 and gRPC status 0, `unsent` is what its full socket did not take.";
PyObject *Lane_park_grpc(Lane *lane, PyObject *args) {
  int fd, target;
  PyObject *owner, *heads, *trailers;
  const char *block, *unsent = NULL;
  Py_ssize_t n_block, n_unsent = 0;
  long long next_stream, window, n_received, n_idle, stream_window, frame_bytes, n_most;
  if (!PyArg_ParseTuple(args, "iOy#OO(LLLL)LLLi|y#", &fd, &owner, &block, &n_block, &heads, &trailers, &next_stream,
                        &window, &n_received, &n_idle, &stream_window, &frame_bytes, &n_most, &target, &unsent,
                        &n_unsent))
    return NULL;
  if (!may_park(lane, fd, GRPC, target) || !are_blocks("heads", heads) || !are_blocks("trailers", trailers) ||
      !is_within("bytes of a header block", n_block, 1, LARGEST_BLOCK) ||
      !is_within("the next stream", next_stream, 1, LARGEST_STREAM) ||
      !is_within("the connection's window", window, 0, LARGEST_WINDOW) ||
      !is_within("bytes received", n_received, 0, LARGEST_WINDOW) ||
      !is_within("frames without use", n_idle, -LATEST_NS, MOST_IDLE_FRAMES) ||
      !is_within("a stream's window", stream_window, 0, LARGEST_WINDOW) ||
      !is_within("bytes of a frame", frame_bytes, LARGEST_BLOCK, (1 << 24) - 1) ||
      !is_within("the most streams", n_most, 0, MOST_STREAMS))
    return NULL;
  if (next_stream % 2 == 0) {
    PyErr_Format(PyExc_ValueError, "the next stream: %lld is even", next_stream);
    return NULL;
  }
  Conn *conn = parked(lane, fd, GRPC, target, owner);
  conn->block = copied(block, n_block);
  conn->next_stream = next_stream;
  conn->window = window;
  conn->n_received = n_received;
  conn->n_idle = n_idle;
  conn->stream_window = stream_window;
  conn->frame_bytes = frame_bytes;
  conn->n_most_streams = n_most;
  conn->n_slots = 64;
  conn->slots = grown(NULL, conn->n_slots * sizeof *conn->slots);
  memset(conn->slots, 0, conn->n_slots * sizeof *conn->slots);
  read_blocks(&conn->heads, heads);
  read_blocks(&conn->trailers, trailers);
  put(conn, unsent, n_unsent);
  watch(lane, conn);
  Py_RETURN_NONE;
}

/* 0 with an exception where the lane cannot carry on such a call. */
static int is_lendable(Lane *lane, int fd, long long stream, int template, int user) {
  Conn *conn = fd >= 0 && fd < lane->n_conns ? lane->conns[fd] : NULL;
  const char *why = NULL;
  if (!has_begun(lane)) why = "nothing has begun";
  else if (!conn) why = "no such connection";
  else if (conn->kind != GRPC) why = "an HTTP connection carries no calls of Python's";
  else if (!is_template(lane, template)) why = "no such template";
  else if (lane->templates[template].target != conn->target) why = "the template is for another server";
  else if (stream < 1 || stream % 2 == 0 || stream >= conn->next_stream) why = "no stream that was begun";
  else if (request_of(conn, (uint32_t)stream)) why = "the stream has a call";
  else if (lane->users ? user < 0 || user >= lane->n_users : user != 0) why = "no such user";
  else if (lane->users && lane->users[user].place != WITH_PYTHON) why = "the user's request is not Python's";
  if (why) PyErr_Format(PyExc_ValueError, "descriptor %d, stream %lld, template %d, user %d: %s", fd, stream, template,
                        user, why);
  return !why;
}

const char lend_doc[] =
    "lend(fd, stream, token, at_ns, scheduled_ns, phase, template, user_index, sent_ns, first_ns, "
    "has_head)\n\nA call that Python began on a parked connection; the oldest first.";
PyObject *Lane_lend(Lane *lane, PyObject *args) {
  int fd, phase, template, user, has_head;
  long long stream, token, at_ns, scheduled_ns, sent_ns, first_ns;
  if (!PyArg_ParseTuple(args, "iLLLLiiiLLi", &fd, &stream, &token, &at_ns, &scheduled_ns, &phase, &template, &user,
                        &sent_ns, &first_ns, &has_head))
    return NULL;
  if (!may_enter(lane) || !is_lendable(lane, fd, stream, template, user) ||
      !is_within("a token", token, 0, LARGEST_TOKEN) || !is_within("the instant it is due", at_ns, 0, LATEST_NS) ||
      !is_within("its scheduled instant", scheduled_ns, -1, LATEST_NS) ||
      !is_within("a phase", phase, 0, UINT8_MAX) || !is_within("the instant of its send", sent_ns, 0, LATEST_NS) ||
      !is_within("has_head", has_head, 0, 1) ||
      !is_within("the instant of its head", first_ns, has_head ? 0 : -1, LATEST_NS))
    return NULL;
  if (!is_placed(lane, token)) {
    PyErr_Format(PyExc_ValueError, "request %lld is of no sequence here", token);
    return NULL;
  }
  Request *request = new_request(lane);
  request->token = token;
  request->user = user;
  find_place(lane, request);
  begin_flight(lane, request, fd);
  lane->n_sent--; /* Python has counted it */
  request->stream = (uint32_t)stream;
  request->at_ns = at_ns;
  request->scheduled_ns = scheduled_ns;
  request->phase = (uint8_t)phase;
  request->template = template;
  order_by_send(lane, request, sent_ns);
  request->first_ns = first_ns;
  request->has_head = (uint8_t)has_head;
  keep_stream(lane, lane->conns[fd], request);
  Py_RETURN_NONE;
}
