/* Requests in flight by their sends, connections that can take one, and those that go back to Python. */

#include "lane.h"

void begin_flight(Lane *lane, Request *request, int fd) {
  request->fd = fd;
  request->sent_ns = request->first_ns = -1;
  request->older = lane->newest;
  request->newer = NULL;
  if (lane->newest)
    lane->newest->newer = request;
  else
    lane->oldest = request;
  lane->newest = request;
  lane->n_in_flight++;
  lane->n_sent++;
  if (lane->users) lane->users[request->user].place = IN_LANE;
  int64_t token = request->token;
  for (int i = ID_DIGITS - 1; i >= 0; i--, token /= 10) request->id[i] = (char)('0' + token % 10);
}

/* Puts the newest of all where a request belongs that was sent at `sent_ns`, before it came here. */
void order_by_send(Lane *lane, Request *request, int64_t sent_ns) {
  Request *older = request->older;
  while (older && (older->sent_ns < 0 || older->sent_ns > sent_ns)) older = older->older;
  request->sent_ns = sent_ns;
  if (older == request->older) return;
  lane->newest = request->older;
  lane->newest->newer = NULL;
  request->older = older;
  request->newer = older ? older->newer : lane->oldest;
  request->newer->older = request;
  if (older)
    older->newer = request;
  else
    lane->oldest = request;
}

void end_flight(Lane *lane, Request *request) {
  if (request->older)
    request->older->newer = request->newer;
  else
    lane->oldest = request->newer;
  if (request->newer)
    request->newer->older = request->older;
  else
    lane->newest = request->older;
  lane->n_in_flight--;
  Py_CLEAR(request->body); /* one with a body ends with the interpreter at hand */
  request->next = lane->free;
  lane->free = request;
}

void make_ready(Lane *lane, const Conn *conn) {
  Pool *pool = &lane->pools[conn->target];
  if (pool->n_ready == pool->ready_room) {
    pool->ready_room = pool->ready_room ? 2 * pool->ready_room : 64;
    pool->ready = grown(pool->ready, pool->ready_room * sizeof *pool->ready);
  }
  pool->ready[pool->n_ready++] = conn->fd;
  lane->is_stuck = 0;
}

void stray(Lane *lane, Conn *conn) {
  if (conn->is_stray) return;
  conn->is_stray = 1;
  if (lane->n_strays == lane->strays_room) {
    lane->strays_room = lane->strays_room ? 2 * lane->strays_room : 16;
    lane->strays = grown(lane->strays, lane->strays_room * sizeof *lane->strays);
  }
  lane->strays[lane->n_strays++] = conn;
  Pool *pool = &lane->pools[conn->target];
  for (int i = pool->n_ready - 1; i >= 0; i--) /* the last used stands last */
    if (pool->ready[i] == conn->fd) {
      memmove(pool->ready + i, pool->ready + i + 1, (pool->n_ready - i - 1) * sizeof *pool->ready);
      pool->n_ready--;
      pool->n_streams -= conn->n_streams;
      break;
    }
}

void stray_with(Lane *lane, Conn *conn, const char *data, Py_ssize_t n, int64_t at_ns) {
  reserve(&conn->rx, &conn->rx_room, n);
  if (data != conn->rx.data) memmove(conn->rx.data, data, n);
  conn->rx.n = n;
  conn->now_ns = at_ns;
  stray(lane, conn);
}

void lose(Lane *lane, Conn *conn, int number) {
  conn->lost = number;
  conn->now_ns = now_ns();
  stray(lane, conn);
}

void note_lag(Lane *lane, const Request *request, int64_t at_ns) {
  if (at_ns - request->at_ns > lane->lag_max_ns) lane->lag_max_ns = at_ns - request->at_ns;
}
