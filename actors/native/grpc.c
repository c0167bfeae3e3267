/* gRPC: streams of HTTP/2 connections that Python has opened (RFC 9113). */

#include "lane.h"

static uint32_t u32(const char *data) {
  const uint8_t *b = (const uint8_t *)data;
  return (uint32_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

static void frame_head(char *out, int64_t n, int kind, int flags, uint32_t stream) {
  const char head[FRAME_HEAD] = {(char)(n >> 16), (char)(n >> 8), (char)n, (char)kind, (char)flags,
                                 (char)(stream >> 24), (char)(stream >> 16), (char)(stream >> 8), (char)stream};
  memcpy(out, head, FRAME_HEAD);
}

static void mark_dirty(Lane *lane, Conn *conn) {
  if (conn->is_dirty) return;
  conn->is_dirty = 1;
  if (lane->n_dirty == lane->dirty_room) {
    lane->dirty_room = lane->dirty_room ? 2 * lane->dirty_room : 16;
    lane->dirty = grown(lane->dirty, lane->dirty_room * sizeof *lane->dirty);
  }
  lane->dirty[lane->n_dirty++] = conn;
}

static Request **slot_of(Conn *conn, uint32_t stream) { return &conn->slots[(stream >> 1) & (conn->n_slots - 1)]; }

Request *request_of(Conn *conn, uint32_t stream) {
  Request *request = *slot_of(conn, stream);
  while (request && request->stream != stream) request = request->beside;
  return request;
}

static void put_in_slot(Conn *conn, Request *request) {
  Request **slot = slot_of(conn, request->stream);
  request->beside = *slot;
  *slot = request;
}

void keep_stream(Lane *lane, Conn *conn, Request *request) {
  if (conn->n_streams >= conn->n_slots) {
    Request **old = conn->slots;
    uint32_t n_old = conn->n_slots;
    conn->n_slots = 2 * n_old;
    conn->slots = grown(NULL, conn->n_slots * sizeof *old);
    memset(conn->slots, 0, conn->n_slots * sizeof *old);
    for (uint32_t i = 0; i < n_old; i++)
      for (Request *one = old[i], *next; one; one = next) {
        next = one->beside;
        put_in_slot(conn, one);
      }
    free(old);
  }
  put_in_slot(conn, request);
  conn->n_streams++;
  if (!conn->is_stray) lane->pools[conn->target].n_streams++;
}

void drop_stream(Lane *lane, Conn *conn, Request *request) {
  Request **at = slot_of(conn, request->stream);
  while (*at != request) at = &(*at)->beside;
  *at = request->beside;
  conn->n_streams--;
  if (!conn->is_stray) lane->pools[conn->target].n_streams--;
}

int can_take(const Conn *conn) {
  return conn->n_streams < conn->n_most_streams && conn->next_stream < LARGEST_STREAM;
}

int can_carry(const Conn *conn, int64_t n_bytes) {
  return n_bytes <= conn->window && n_bytes <= conn->stream_window;
}

/* The message in DATA frames; the last of its parts is the template's tail. */
static void put_message(Conn *conn, const struct iovec *parts, int n_parts, int64_t n_bytes, uint32_t stream) {
  int part = 0;
  int64_t at = 0;
  while (n_bytes) {
    int64_t n_frame = n_bytes < conn->frame_bytes ? n_bytes : conn->frame_bytes;
    n_bytes -= n_frame;
    char head[FRAME_HEAD];
    frame_head(head, n_frame, DATA, n_bytes ? 0 : END_STREAM, stream);
    put(conn, head, FRAME_HEAD);
    while (n_frame) {
      const char *data = (const char *)parts[part].iov_base + at;
      int64_t n_left = (int64_t)parts[part].iov_len - at, n = n_left < n_frame ? n_left : n_frame;
      if (part == n_parts - 1)
        put_tail(conn, data, n);
      else
        put(conn, data, n);
      n_frame -= n;
      at += n;
      if (n == n_left) part++, at = 0;
    }
  }
}

/* A frame was of use to a call, or we have sent one. */
static void goes_on(Conn *conn) {
  if (conn->n_idle > 0) conn->n_idle = 0;
}

void send_grpc(Lane *lane, Conn *conn, int32_t number) {
  Request *request = new_request(lane);
  take_due(lane, request, number);
  const Template *template = &lane->templates[number];
  begin_flight(lane, request, conn->fd);
  request->stream = (uint32_t)conn->next_stream;
  conn->next_stream += 2;
  keep_stream(lane, conn, request);
  int64_t n_bytes = template->n_bytes;
  conn->window -= n_bytes;
  goes_on(conn);
  conn->n_idle -= FRAMES_PER_CALL + n_bytes / BYTES_PER_FRAME;
  char head[FRAME_HEAD];
  frame_head(head, conn->block.n, HEADERS, END_HEADERS, request->stream);
  put(conn, head, FRAME_HEAD);
  put(conn, conn->block.data, conn->block.n);
  if (lane->n_between) put_between(lane, request);
  const struct iovec parts[] = {{template->head.data, template->head.n},
                                {request->id, ID_DIGITS},
                                {lane->own, lane->n_between},
                                {template->tail.data, template->tail.n}};
  put_message(conn, parts, 4, n_bytes, request->stream);
  request->next = conn->unstamped;
  conn->unstamped = request;
  mark_dirty(lane, conn);
}

static void flush_conn(Lane *lane, Conn *conn) {
  if (!conn->n_pieces || conn->lost != NOT_LOST) return;
  int64_t at_ns = now_ns();
  for (Request *request = conn->unstamped; request; request = request->next) {
    request->sent_ns = at_ns;
    note_lag(lane, request, at_ns);
  }
  conn->unstamped = NULL;
  if (!conn->is_full) push(lane, conn);
  if (conn->n_pieces && conn->lost == NOT_LOST) lane->n_write_pauses++;
}

void flush_dirty(Lane *lane) {
  for (int i = 0; i < lane->n_dirty; i++) {
    lane->dirty[i]->is_dirty = 0;
    flush_conn(lane, lane->dirty[i]);
  }
  lane->n_dirty = 0;
}

static int is_known(const Blocks *blocks, const char *data, Py_ssize_t n) {
  for (int i = 0; i < blocks->n; i++)
    if (blocks->blocks[i].n == n && !memcmp(blocks->blocks[i].data, data, n)) return 1;
  return 0;
}

/* Takes a frame; 0 where Python must. */
static int on_frame(Lane *lane, Conn *conn, const char *frame, Py_ssize_t n, int64_t at_ns) {
  int kind = (uint8_t)frame[3], flags = (uint8_t)frame[4];
  uint32_t stream = u32(frame + 5) & 0x7FFFFFFF;
  const char *payload = frame + FRAME_HEAD;
  if (++conn->n_idle > MOST_IDLE_FRAMES) return 0; /* which says so */
  if (kind == WINDOW_UPDATE && n == 4) {
    int64_t increment = u32(payload) & 0x7FFFFFFF;
    if (stream) return stream < conn->next_stream && stream & 1; /* requests are wholly sent: they need no room */
    if (!increment || conn->window + increment > LARGEST_WINDOW) return 0;
    conn->window += increment;
    return 1;
  }
  if (kind == PING && n == 8 && !stream && !(flags & ACK)) {
    if (!conn->n_pieces) conn->n_acks = 0;
    if (++conn->n_acks > MOST_ACKS) return 0;
    char head[FRAME_HEAD];
    frame_head(head, 8, PING, ACK, 0);
    put(conn, head, FRAME_HEAD);
    put(conn, payload, 8);
    mark_dirty(lane, conn);
    return 1;
  }
  if (kind != HEADERS && kind != DATA) return 0;
  Request *request = request_of(conn, stream);
  if (!request) return 0;
  const Layout *layout = layout_of(lane, request);
  if (request->sent_ns < 0 || request->body || is_to_be_checked(&lane->templates[request->template], request) ||
      layout->n_reply < 0)
    return 0;
  if (kind == HEADERS && flags == END_HEADERS && !request->has_head && is_known(&conn->heads, payload, n)) {
    goes_on(conn);
    request->has_head = 1;
    request->first_ns = at_ns;
    return 1;
  }
  if (kind == DATA && flags == 0 && request->has_head) {
    Py_ssize_t n_start = layout->prefix.n + ID_DIGITS + layout->suffix.n;
    if (!request->n_got ? n < n_start || !is_layout(layout, request, payload)
                        : request->n_got + n > layout->n_reply)
      return 0;
    if (n) goes_on(conn);
    request->n_got += n;
    conn->n_received += n;
    if (conn->n_received >= GIVE_BACK_BYTES) {
      char update[FRAME_HEAD + 4];
      frame_head(update, 4, WINDOW_UPDATE, 0, 0);
      for (int i = 0; i < 4; i++) update[FRAME_HEAD + i] = (char)(conn->n_received >> (24 - 8 * i));
      put(conn, update, sizeof update);
      mark_dirty(lane, conn);
      conn->n_received = 0;
    }
    return 1;
  }
  if (kind == HEADERS && flags == (END_HEADERS | END_STREAM) && request->has_head &&
      request->n_got == layout->n_reply && is_known(&conn->trailers, payload, n)) {
    goes_on(conn);
    record(lane, request, at_ns, request->n_got);
    if (lane->sequences) pass_turn(lane, request->sequence);
    int32_t user = request->user;
    drop_stream(lane, conn, request);
    end_flight(lane, request);
    if (lane->users) user_ended(lane, user, at_ns);
    return 1;
  }
  return 0;
}

void on_grpc(Lane *lane, Conn *conn) {
  reserve(&conn->rx, &conn->rx_room, conn->rx.n + SCRATCH_BYTES);
  ssize_t n = recv(conn->fd, conn->rx.data + conn->rx.n, SCRATCH_BYTES, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    lose(lane, conn, n ? errno : 0);
    return;
  }
  int64_t at_ns = now_ns(), n_done = lane->n_done;
  conn->rx.n += n;
  const char *at = conn->rx.data, *end = at + conn->rx.n;
  int is_stray = 0;
  while (!is_stray && !lane->has_failed && end - at >= FRAME_HEAD) {
    Py_ssize_t n_payload = u32(at) >> 8;
    if (n_payload > 16384)
      is_stray = 1;
    else if (end - at - FRAME_HEAD < n_payload)
      break;
    else if (on_frame(lane, conn, at, n_payload, at_ns))
      at += FRAME_HEAD + n_payload;
    else
      is_stray = 1;
  }
  conn->rx.n = end - at;
  memmove(conn->rx.data, at, conn->rx.n);
  conn->now_ns = at_ns;
  if (is_stray || (lane->pools[conn->target].n_waiting && lane->n_done > n_done)) stray(lane, conn);
}
