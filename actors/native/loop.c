/* The loop: what is due is sent, what is ready is read, until Python is needed. */

#include "lane.h"

/* How many more calls than the mean of all are on it, times their number: calls that end on one connection go on there. */
static int64_t surplus(const Pool *pool, const Conn *conn) {
  return conn->n_streams * pool->n_ready - pool->n_streams;
}

/* The next in turn that has not more calls than the mean; where those are full, the next of the others. One that is about to
   be written anyhow is taken again until it has the mean, so that many calls share a write. */
static Conn *next_grpc(Lane *lane, Pool *pool, int64_t n_bytes) {
  int n_all = pool->n_ready + pool->n_others, turn = pool->turn, other = -1;
  for (int i = 0; i <= n_all; i++, turn = (turn + 1) % n_all) {
    if (turn >= pool->n_ready) {
      if (!i) continue;
      pool->turn = turn;
      return NULL; /* the turn of one that Python has */
    }
    Conn *conn = lane->conns[pool->ready[turn]];
    int64_t more = surplus(pool, conn);
    if ((!i && (!conn->is_dirty || more >= 0)) || !can_take(conn) || !can_carry(conn, n_bytes)) continue;
    if (more <= 0) {
      pool->turn = turn;
      return conn;
    }
    if (other < 0) other = turn;
  }
  if (other >= 0) pool->turn = other;
  return other < 0 ? NULL : lane->conns[pool->ready[other]];
}

static Conn *conn_for(Lane *lane, const Template *template) {
  Pool *pool = &lane->pools[template->target];
  if (!pool->n_ready) return NULL;
  if (pool->is_in_turn && lane->conns[pool->ready[0]]->kind == HTTP) { /* the first becomes the last, which is taken */
    int fd = pool->ready[0], n = pool->n_ready - 1;
    memmove(pool->ready, pool->ready + 1, n * sizeof *pool->ready);
    pool->ready[n] = fd;
  }
  Conn *conn = lane->conns[pool->ready[pool->n_ready - 1]];
  return conn->kind == GRPC ? next_grpc(lane, pool, template->n_bytes) : conn;
}

/* Sends what is due, in at most `WRITES_PER_EVENT` writes: over HTTP each has one, over gRPC `flush_dirty` makes one of all
   that go to one connection. */
static void send_due(Lane *lane) {
  int64_t at_ns = now_ns(), n_bytes = 0;
  int n_writes = 0;
  for (int i = 0; i < SENDS_TOGETHER && n_bytes < BYTES_TOGETHER; i++) {
    if (lane->is_stuck || lane->has_failed || next_due(lane) > at_ns) return;
    if (is_held_back(lane)) continue;
    int32_t number = next_template(lane);
    const Template *template = &lane->templates[number];
    Pool *pool = &lane->pools[template->target];
    int turn = pool->turn;
    Conn *conn = conn_for(lane, template);
    if (!conn) {
      lane->is_stuck = 1;
      return;
    }
    if (!conn->is_dirty && n_writes++ == WRITES_PER_EVENT) {
      pool->turn = turn; /* it is sent after the next event */
      return;
    }
    if (conn->kind == GRPC) {
      send_grpc(lane, conn, number);
      n_bytes += template->n_bytes;
    } else {
      pool->n_ready--;
      send_http(lane, conn, number);
      at_ns = now_ns();
    }
  }
}

/* How long epoll_wait may take until `until_ns`, in ms; where that is for ever, the timer ends it. */
static int patience(Lane *lane, int64_t until_ns, int64_t at_ns) {
  int64_t left_ns = until_ns - at_ns;
  if (left_ns <= lane->spin_ns) return 0;
  int64_t wake_ns = until_ns - lane->spin_ns;
  if (wake_ns != lane->armed_ns) {
    struct itimerspec alarm = {.it_value = {wake_ns / NS_PER_S, wake_ns % NS_PER_S}};
    if (timerfd_settime(lane->timer_fd, TFD_TIMER_ABSTIME, &alarm, NULL)) return 1;
    lane->armed_ns = wake_ns;
  }
  return -1;
}

static void on_conn(Lane *lane, Conn *conn, uint32_t events) {
  if (events & EPOLLOUT) push(lane, conn);
  if (conn->is_stray || events == EPOLLOUT) return;
  if (conn->kind == HTTP)
    on_http(lane, conn);
  else
    on_grpc(lane, conn);
}

int follow(Lane *lane, int64_t until_ns, struct epoll_event *foreign) {
  struct epoll_event events[MOST_EVENTS];
  int n_foreign = 0;
  for (int has_polled = 0;; has_polled = 1) { /* at least once: a backlog must not keep replies from being read */
    send_due(lane);
    flush_dirty(lane);
    int64_t at_ns = now_ns(), due_ns = next_due(lane);
    int is_over = lane->n_strays || lane->is_stuck || lane->has_failed || at_ns >= until_ns;
    if (n_foreign || (is_over && has_polled)) return n_foreign;
    int timeout_ms = is_over ? 0 : patience(lane, due_ns < until_ns ? due_ns : until_ns, at_ns);
    int n = epoll_wait(lane->epoll_fd, events, MOST_EVENTS, timeout_ms);
    if (!timeout_ms && n == 0 && !is_over && due_ns > at_ns) lane->spun_ns += now_ns() - at_ns;
    for (int i = 0; i < n && !lane->has_failed; i++) {
      int fd = events[i].data.fd;
      Conn *conn = fd >= 0 && fd < lane->n_conns ? lane->conns[fd] : NULL;
      if (fd == lane->timer_fd || (conn && conn->is_stray)) continue;
      if (!conn)
        foreign[n_foreign++] = events[i];
      else
        on_conn(lane, conn, events[i].events);
      send_due(lane);
      flush_dirty(lane);
    }
  }
}
