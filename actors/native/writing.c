/* What a connection has yet to write, in pieces: bytes of its own, and tails of templates where they lie. A socket that is full is
   watched until it takes more; what comes from its other end is read meanwhile. */

#include "lane.h"

#define LEAST_LENT 4096 /* of a tail; less is copied */
#define MOST_PARTS 256

static void add_piece(Conn *conn, const char *lent, Py_ssize_t n) {
  if (conn->n_pieces == conn->pieces_room) {
    conn->pieces_room = conn->pieces_room ? 2 * conn->pieces_room : 4;
    conn->pieces = grown(conn->pieces, conn->pieces_room * sizeof *conn->pieces);
  }
  conn->pieces[conn->n_pieces++] = (Piece){lent, n};
}

void put(Conn *conn, const void *data, Py_ssize_t n) {
  if (!n) return;
  reserve(&conn->tx, &conn->tx_room, conn->tx.n + n);
  memcpy(conn->tx.data + conn->tx.n, data, n);
  conn->tx.n += n;
  Piece *last = conn->n_pieces ? &conn->pieces[conn->n_pieces - 1] : NULL;
  if (last && !last->lent)
    last->n += n;
  else
    add_piece(conn, NULL, n);
}

/* Of a template's tail, which outlives every connection. */
void put_tail(Conn *conn, const char *data, Py_ssize_t n) {
  if (n < LEAST_LENT)
    put(conn, data, n);
  else
    add_piece(conn, data, n);
}

/* The first `n` bytes are out. What is left moves to the front only when it is the smaller part. */
static void drop(Conn *conn, Py_ssize_t n) {
  while (conn->piece < conn->n_pieces) {
    Piece *piece = &conn->pieces[conn->piece];
    Py_ssize_t done = n < piece->n ? n : piece->n;
    if (piece->lent)
      piece->lent += done;
    else
      conn->tx_at += done;
    n -= done;
    piece->n -= done;
    if (piece->n) break;
    conn->piece++;
  }
  if (conn->piece > conn->n_pieces / 2) {
    conn->n_pieces -= conn->piece;
    memmove(conn->pieces, conn->pieces + conn->piece, conn->n_pieces * sizeof *conn->pieces);
    conn->piece = 0;
  }
  if (conn->tx_at > conn->tx.n / 2) {
    conn->tx.n -= conn->tx_at;
    memmove(conn->tx.data, conn->tx.data + conn->tx_at, conn->tx.n);
    conn->tx_at = 0;
  }
}

static int is_watched(Lane *lane, Conn *conn, int is_full) {
  if (conn->is_full == is_full) return 1;
  struct epoll_event event = {.events = is_full ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = conn->fd};
  if (epoll_ctl(lane->epoll_fd, EPOLL_CTL_MOD, conn->fd, &event)) return 0;
  conn->is_full = is_full;
  return 1;
}

/* For room, as long as something waits; where that cannot be, Python has the connection. */
void watch(Lane *lane, Conn *conn) {
  if (!is_watched(lane, conn, conn->n_pieces > 0)) stray(lane, conn);
}

/* As Python left it. */
void unwatch(Lane *lane, Conn *conn) { is_watched(lane, conn, 0); }

static ssize_t sent(Lane *lane, Conn *conn, struct iovec *parts, int n_parts) {
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = n_parts};
  ssize_t n = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n < 0) lose(lane, conn, errno);
  return n;
}

/* Writes what the socket takes of what waits. */
void push(Lane *lane, Conn *conn) {
  ssize_t n = 0, n_offered = 0;
  while (conn->n_pieces && n == n_offered) {
    struct iovec parts[MOST_PARTS];
    char *own = conn->tx.data + conn->tx_at;
    int n_parts = 0;
    n_offered = 0;
    for (int i = conn->piece; i < conn->n_pieces && n_parts < MOST_PARTS; i++) {
      const Piece *piece = &conn->pieces[i];
      parts[n_parts++] = (struct iovec){piece->lent ? (char *)piece->lent : own, piece->n};
      n_offered += piece->n;
      if (!piece->lent) own += piece->n;
    }
    n = sent(lane, conn, parts, n_parts);
    if (n < 0) return;
    drop(conn, n);
  }
  watch(lane, conn);
}

/* Writes what the socket takes of `parts`, the last of which is a tail; the rest waits. */
void write_parts(Lane *lane, Conn *conn, struct iovec *parts, int n_parts) {
  ssize_t n = sent(lane, conn, parts, n_parts);
  if (n < 0) return;
  for (int i = 0; i < n_parts; i++) {
    Py_ssize_t n_part = parts[i].iov_len, done = n < n_part ? n : n_part;
    const char *rest = (char *)parts[i].iov_base + done;
    n -= done;
    if (i == n_parts - 1)
      put_tail(conn, rest, n_part - done);
    else
      put(conn, rest, n_part - done);
  }
  if (conn->n_pieces) lane->n_write_pauses++;
  watch(lane, conn);
}

/* All that waits, for Python. */
PyObject *unsent(const Conn *conn) {
  Py_ssize_t n = 0;
  for (int i = conn->piece; i < conn->n_pieces; i++) n += conn->pieces[i].n;
  PyObject *out = PyBytes_FromStringAndSize(NULL, n);
  char *to = out ? PyBytes_AsString(out) : NULL;
  const char *own = conn->tx.data + conn->tx_at;
  for (int i = conn->piece; to && i < conn->n_pieces; i++) {
    const Piece *piece = &conn->pieces[i];
    memcpy(to, piece->lent ? piece->lent : own, piece->n);
    to += piece->n;
    if (!piece->lent) own += piece->n;
  }
  return out;
}
