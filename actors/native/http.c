/* HTTP/1.1: one request at a time on a connection. */

#include "lane.h"

void send_http(Lane *lane, Conn *conn, int32_t number) {
  Request *request = new_request(lane);
  take_due(lane, request, number);
  const Template *template = &lane->templates[number];
  begin_flight(lane, request, conn->fd);
  conn->request = request;
  conn->n_head = 0;
  conn->rx.n = 0;
  struct iovec parts[] = {{template->head.data, template->head.n},
                          {request->id, ID_DIGITS},
                          {lane->own, lane->n_between},
                          {template->tail.data, template->tail.n}};
  if (lane->n_between) put_between(lane, request);
  request->sent_ns = now_ns();
  note_lag(lane, request, request->sent_ns);
  write_parts(lane, conn, parts, 4);
}

int is_layout(const Layout *layout, const Request *request, const char *body) {
  const char *id = body + layout->prefix.n;
  return !memcmp(body, layout->prefix.data, layout->prefix.n) && !memcmp(id, request->id, ID_DIGITS) &&
         !memcmp(id + ID_DIGITS, layout->suffix.data, layout->suffix.n);
}

int is_to_be_checked(const Template *template, const Request *request) {
  return template->check_every && request->token % template->check_every == 0;
}

static const Head *head_of(const Pool *pool, Layout *layout, const char *data, Py_ssize_t n) {
  int n_heads = pool->n_heads < MOST_HEADS ? (int)pool->n_heads : MOST_HEADS;
  for (int i = 0, at = layout->head; i < n_heads; i++, at = at + 1 < n_heads ? at + 1 : 0) {
    const Head *head = &pool->heads[at];
    if (n < head->bytes.n || memcmp(data, head->bytes.data, head->bytes.n)) continue;
    layout->head = at;
    return head;
  }
  return NULL;
}

void on_http(Lane *lane, Conn *conn) {
  char *data = lane->scratch;
  if (conn->rx.n) {
    reserve(&conn->rx, &conn->rx_room, conn->rx.n + SCRATCH_BYTES);
    data = conn->rx.data + conn->rx.n;
  }
  ssize_t n = recv(conn->fd, data, SCRATCH_BYTES, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    lose(lane, conn, n ? errno : 0);
    return;
  }
  int64_t at_ns = now_ns();
  Request *request = conn->request;
  if (conn->rx.n) {
    data = conn->rx.data;
    n = conn->rx.n += n;
  }
  if (!request || conn->n_pieces) { /* nobody has asked, or not yet to the end */
    stray_with(lane, conn, data, n, at_ns);
    return;
  }
  if (request->first_ns < 0) request->first_ns = at_ns;
  Layout *layout = layout_of(lane, request);
  if (!conn->n_head) {
    const Head *head = head_of(&lane->pools[conn->target], layout, data, n);
    if (!head || head->n_body != layout->n_reply || head->n_json != layout->n_json ||
        is_to_be_checked(&lane->templates[request->template], request)) {
      stray_with(lane, conn, data, n, at_ns);
      return;
    }
    conn->n_head = head->bytes.n;
    conn->n_body = head->n_body;
    conn->n_json = head->n_json;
  }
  Py_ssize_t n_head = conn->n_head, n_whole = n_head + conn->n_body;
  if (n < n_whole) {
    if (data == lane->scratch) {
      reserve(&conn->rx, &conn->rx_room, n_whole);
      memcpy(conn->rx.data, data, n);
      conn->rx.n = n;
    }
  } else if (n > n_whole || conn->n_body != layout->n_reply || conn->n_json != layout->n_json ||
             !is_layout(layout, request, data + n_head)) {
    stray_with(lane, conn, data, n, at_ns);
  } else {
    record(lane, request, at_ns, conn->n_body);
    conn->request = NULL;
    conn->rx.n = 0;
    if (lane->sequences) pass_turn(lane, request->sequence);
    int32_t user = request->user;
    end_flight(lane, request);
    if (lane->users) user_ended(lane, user, at_ns);
    if (lane->pools[conn->target].n_waiting) {
      conn->now_ns = at_ns;
      stray(lane, conn);
    } else {
      make_ready(lane, conn);
    }
  }
}
