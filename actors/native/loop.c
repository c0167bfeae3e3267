/* The loop: what is due is sent, what is ready is read, until Python is needed. */

#include "lane.h"

static Conn *next_grpc(Lane *lane, Pool *pool, int64_t n_bytes) {
  int n_all = pool->n_ready + pool->n_others;
  for (int i = 0; i < n_all; i++) {
    pool->turn = (pool->turn + 1) % n_all;
    if (pool->turn >= pool->n_ready) return NULL; /* the turn of one that Python has */
    Conn *conn = lane->conns[pool->ready[pool->turn]];
    if (can_take(conn) && can_carry(conn, n_bytes)) return conn;
  }
  return NULL;
}

static void send_due(Lane *lane) {
  for (int i = 0; i < SENDS_PER_EVENT && !lane->is_stuck && !lane->has_failed && is_due(lane); i++) {
    int32_t number = next_template(lane);
    const Template *template = &lane->templates[number];
    Pool *pool = &lane->pools[template->target];
    Conn *conn = NULL;
    if (pool->n_ready) {
      conn = lane->conns[pool->ready[pool->n_ready - 1]];
      if (conn->kind == GRPC) conn = next_grpc(lane, pool, template->n_bytes);
    }
    if (!conn) {
      lane->is_stuck = 1;
    } else if (conn->kind == GRPC) {
      send_grpc(lane, conn, number);
    } else {
      pool->n_ready--;
      send_http(lane, conn, number);
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

int follow(Lane *lane, int64_t until_ns, struct epoll_event *foreign) {
  struct epoll_event events[MOST_EVENTS];
  int n_foreign = 0;
  for (int has_polled = 0;; has_polled = 1) { /* at least once: a backlog must not keep replies from being read */
    send_due(lane);
    flush_dirty(lane);
    int64_t at_ns = now_ns(), due_ns = next_due(lane);
    int is_over = lane->n_strays || lane->is_stuck || lane->has_failed || at_ns >= until_ns || !is_leased(lane, at_ns);
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
      else if (conn->kind == HTTP)
        on_http(lane, conn);
      else
        on_grpc(lane, conn);
      if (is_due(lane)) {
        send_due(lane);
        flush_dirty(lane);
      }
    }
  }
}
