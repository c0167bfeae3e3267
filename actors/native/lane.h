/* The common case of a request in C, without the interpreter and without its lock.

   A request is common if a connection is free (and over gRPC the windows take its bytes), and its reply has a head and a
   layout that Python has judged before. The lane sends it, reads its reply, compares it and writes its
   record. Anything else becomes a stray: the connection, with the requests on it and the bytes that came, goes back
   to Python, which does all that `squall.actors.load.engine` and the clients do without a lane, and parks the connection here
   again when it is calm.

       Python    park ──────────────┐                    ┌── take back (stray) … park
       lane            send  reply  send  reply …  unknown

   Arrivals are taken from the plan's arrays (open loop) or from users with steps drawn ahead (closed loop). One
   thread uses a lane, that of its `Loop`; only the counters may be read from others. Limited API of Python 3.11. */

#ifndef LANE_H
#define LANE_H
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records and plans are little-endian; without the lane squall does the same in Python"
#endif

#define NEVER_NS INT64_MAX
#define LATEST_NS (INT64_MAX / 4) /* of instants and spans that Python gives: sums of them do not overflow */
#define NS_PER_S 1000000000LL
#define ID_DIGITS 12
#define BETWEEN_WORDS 5
#define MOST_BETWEEN (BETWEEN_WORDS * 8)
#define LARGEST_TOKEN 999999999999LL
#define LEAST_ID 1000000000000000000LL /* as in squall.scenarios.sequences: ids have 19 digits, 9 bytes in protobuf */
#define LARGEST_ID INT64_MAX
#define SCRATCH_BYTES 65536
#define MOST_EVENTS 256
#define WRITES_PER_EVENT 4 /* as in squall.actors.load.engine */
#define SENDS_TOGETHER 64 /* calls of gRPC that share writes; what is due next waits for these */
#define BYTES_TOGETHER 65536
#define MOST_HEADS 1024 /* as in squall.actors.load.http_client: what Python knows it does not teach again */
#define MOST_TARGETS 64
#define MOST_RECENT 4096
#define GIVE_BACK_BYTES ((1LL << 30) - 1)
#define LARGEST_WINDOW ((1LL << 31) - 1)
#define LARGEST_STREAM ((1LL << 31) - 1)
#define LARGEST_REPLY ((1LL << 31) - 1)
#define LARGEST_BLOCK 16384 /* the frame that any peer takes */
#define MOST_STEPS 64
#define MOST_LENGTHS 64
#define MOST_OTHERS (1LL << 30)
#define MOST_STREAMS ((1LL << 32) - 1)
#define MOST_IDLE_FRAMES 1000 /* these four as in squall.actors.load.grpc_connection */
#define FRAMES_PER_CALL 4
#define BYTES_PER_FRAME 512
#define MOST_ACKS 65536
enum { HTTP, GRPC };
enum { PLANNED, LEAST_IN_FLIGHT, TWO_CHOICES }; /* as squall.actors.load.choice.RULES */
enum { FRAME_HEAD = 9, DATA = 0, HEADERS = 1, PING = 6, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { NOWHERE, IN_HEAP, IN_LANE, WITH_PYTHON }; /* where a user is: its request is the lane's, or Python's */
enum { NOT_LOST = -1 }; /* else an errno, 0 for the end of the stream */

typedef struct {
  char *data;
  Py_ssize_t n;
} Bytes;

typedef struct { /* one row of `requests`, as squall.actors.load.recorder reads it */
  int64_t request_id, scheduled_ns, sent_ns, first_byte_ns, done_ns, response_bytes;
  int32_t rows, request_bytes;
  uint8_t phase, outcome;
  uint16_t detail;
  uint8_t target, kind;
} __attribute__((packed)) Record;

typedef struct { /* of replies that are alike but for their ids and their tensors' data */
  Bytes prefix, suffix;
  int64_t n_reply, n_json; /* n_reply -1: none was judged yet */
  int head;                /* over HTTP, number of the last one's head: the next has it most likely */
} Layout;

typedef struct {
  Bytes head, tail;
  int32_t rows, n_bytes, target, layout, kind; /* kind: number of the model that it asks */
  int64_t check_every;
  int is_lent; /* its bytes are those of a Packed, not its own */
} Template;

typedef struct { /* templates whose tails lie in a buffer of Python's, and whose heads are shared */
  Py_buffer tails;
  Bytes *heads;
  Py_ssize_t n_heads;
} Packed;

typedef struct {
  Bytes bytes;
  int64_t n_json, n_body;
} Head;

typedef struct Request {
  int64_t token, at_ns, scheduled_ns, sent_ns, first_ns, n_got;
  int32_t template, user;
  uint32_t stream;
  int fd;
  uint8_t phase, has_head;
  int64_t correlation_id; /* its place, where it is of a sequence */
  int32_t sequence;
  uint16_t detail;
  uint8_t marks;
  char id[ID_DIGITS];
  struct Request *older, *newer; /* all in flight, by their sends */
  struct Request *next;          /* of one connection, not yet written; or free */
  struct Request *beside;        /* in the same slot */
  PyObject *body;                /* what came of a reply whose layout was replaced meanwhile */
} Request;

typedef struct {
  Bytes blocks[4];
  int n;
} Blocks;

typedef struct { /* the parked connections to one server */
  int *ready; /* HTTP: idle, the last used last; gRPC: all, in turn */
  int n_ready, ready_room, turn, n_others; /* n_others: of gRPC, those that Python has now */
  int is_in_turn; /* HTTP: the one used first is next */
  int64_t n_streams; /* of those that are ready */
  int64_t n_waiting, n_done; /* n_waiting: requests that Python has without a connection */
  Head heads[MOST_HEADS]; /* the newest in place of the oldest */
  int64_t n_heads;
} Pool;

typedef struct { /* `n` bytes to write: those at `lent`, or the next of the connection's own */
  const char *lent;
  Py_ssize_t n;
} Piece;

typedef struct Conn {
  int fd, kind, is_stray, lost, target;
  PyObject *owner;
  Request *request;    /* HTTP */
  Bytes rx;            /* bytes of a reply that has not come whole */
  Py_ssize_t rx_room;
  int64_t n_head, n_body, n_json; /* HTTP: what the reply's head says, once it was found; else n_head 0 */
  int64_t now_ns;      /* of a stray: when its last bytes came */
  Bytes tx;            /* the connection's own bytes among the pieces, written up to `tx_at` */
  Py_ssize_t tx_at, tx_room;
  Piece *pieces; /* what was not written, from `piece` on; none but these */
  int piece, n_pieces, pieces_room;
  int is_full; /* watched until its socket takes more */
  /* gRPC */
  Bytes block;
  Blocks heads, trailers;
  int64_t window, stream_window, frame_bytes, n_received, next_stream, n_most_streams, n_streams;
  int64_t n_idle;      /* frames in a row that are of no use to a call, below 0 what our sends allow besides */
  int64_t n_acks;      /* since all was written */
  Request **slots;     /* by stream / 2, modulo their number */
  uint32_t n_slots;
  Request *unstamped;
  int is_dirty;
} Conn;

typedef struct {
  int64_t number, n_sent, end_ns;
  int phase, at, n_steps, place;
  int64_t think_ns[MOST_STEPS];
  int32_t template[MOST_STEPS];
} User;

typedef struct { /* of a user: requests left of its sequence, and lengths drawn of those after it */
  int64_t n_begun;
  int32_t left, lengths[MOST_LENGTHS];
  int n_lengths, at, is_first;
} Course;

typedef struct { /* arrivals of it by index, -1: none; `next` is released after it */
  int64_t correlation_id, waiting, released;
  int32_t next, n_out; /* n_out: its requests that have their turn and have not ended */
  int16_t target;      /* -1: none was chosen yet */
  uint8_t is_cut; /* by a failure */
} Sequence;

typedef struct {
  int64_t at_ns;
  int32_t user;
} Turn;

typedef struct {
  PyObject_HEAD
  int epoll_fd, timer_fd;
  int64_t armed_ns, spin_ns, spun_ns;
  /* what is sent */
  Template *templates;
  int n_templates;
  int n_between; /* bytes that each request has behind its id; `own`: room for them */
  char *own;
  uint64_t between[BETWEEN_WORDS], (*flips)[10][BETWEEN_WORDS]; /* with the id 0; and what a digit flips of it */
  Packed *packed;
  int n_packed;
  Layout *layouts;
  int n_layouts;
  Py_buffer offsets, tokens, phases; /* open loop */
  int32_t *kinds; /* templates of the arrivals; copied, so that nobody changes them after they were checked */
  int64_t n_planned, next, start_ns, n_taken;
  User *users; /* closed loop */
  int64_t n_users, n_all_users;
  Turn *heap;
  int64_t n_heap;
  PyObject *enter, *refill;
  char *places; /* sequences: what stands behind the id, four texts; NULL: requests are of none */
  int place_id_at, is_varint, is_ordered, is_cut_by_failure;
  uint16_t held_code;
  Sequence *sequences; /* of the plan, or the one of each user */
  int64_t n_sequences, n_waiting;
  int32_t *sequence_of, first_released, last_released;
  int64_t *following; /* the next arrival of the same sequence, -1: none */
  uint8_t *marks;
  Course *courses;
  int64_t first_id;
  PyObject *lengths;
  /* where it goes */
  Conn **conns;
  int n_conns, kind; /* of its connections; -1 before the first */
  Pool *pools; /* by target */
  int n_pools, rule, n_kinds, last_target; /* n_kinds: templates of each server, where a rule chooses it */
  int64_t in_flight[MOST_TARGETS]; /* requests that were taken and have not ended, those that Python has too */
  Conn **dirty, **strays;
  int n_dirty, dirty_room, n_strays, strays_room;
  int is_stuck;
  Request *oldest, *newest, *free;
  int64_t n_in_flight, n_sent, n_done, lag_max_ns, n_write_pauses;
  /* what is kept */
  PyObject *swap, *buffer;
  Py_buffer records;
  int64_t n_records, n_record_room;
  uint8_t ok_code;
  int64_t recent[MOST_RECENT];
  int n_recent;
  PyThreadState *thread;
  int has_failed, is_busy, is_closed;
  char scratch[SCRATCH_BYTES];
} Lane;

/* memory.c */
int64_t now_ns(void);
void end_without_memory(void) __attribute__((noreturn));
void *grown(void *old, size_t n_bytes);
void reserve(Bytes *bytes, Py_ssize_t *room, Py_ssize_t n);
Bytes copied(const char *data, Py_ssize_t n);
Request *new_request(Lane *lane);

/* checks.c */
int may_enter(const Lane *lane);
int is_within(const char *what, long long value, long long least, long long most);
int is_function(const char *what, PyObject *object);
int lent_column(const char *what, PyObject *object, Py_buffer *view, Py_ssize_t n_bytes, const char *letters);
int is_record(long long n_bytes, PyObject *fields);
int is_target(const Lane *lane, long number);

/* records.c */
int lend_records(Lane *lane, PyObject *buffer);
void enter_python(Lane *lane);
void leave_python(Lane *lane);
void hand_over(Lane *lane);
void record(Lane *lane, const Request *request, int64_t done_ns, int64_t n_bytes);

/* due.c */
int is_template(const Lane *lane, int64_t number);
int can_be_due(const Lane *lane, int64_t number);
int has_begun(const Lane *lane);
void enter_phase(Lane *lane, int32_t index, int first_phase, int64_t free_ns);
void user_ended(Lane *lane, int32_t index, int64_t at_ns);
void user_again(Lane *lane, int32_t index, int64_t at_ns);
int64_t next_due(const Lane *lane);
int32_t next_template(const Lane *lane);
void take_due(Lane *lane, Request *request, int32_t template);

/* between.c */
void put_between(const Lane *lane, const Request *request);

/* sequences.c */
void put_place(const Lane *lane, const Request *request);
int begin_places(Lane *lane, PyObject *columns, Py_ssize_t n);
int begin_courses(Lane *lane, PyObject *told, int64_t n_users);
int is_without_lengths(const Lane *lane, int32_t index);
int ready_course(Lane *lane, int32_t index);
int is_held_back(Lane *lane);
int kept_target(const Lane *lane);
int64_t released_arrival(const Lane *lane);
void take_place(Lane *lane, Request *request, int64_t arrival, int32_t user, int target);
void pass_turn(Lane *lane, int32_t number);
int is_placed(const Lane *lane, int64_t token);
void find_place(const Lane *lane, Request *request);
void free_sequences(Lane *lane);

/* flight.c */
void begin_flight(Lane *lane, Request *request, int fd);
void order_by_send(Lane *lane, Request *request, int64_t sent_ns);
void end_flight(Lane *lane, Request *request);
void make_ready(Lane *lane, const Conn *conn);
void stray(Lane *lane, Conn *conn);
void stray_with(Lane *lane, Conn *conn, const char *data, Py_ssize_t n, int64_t at_ns);
void lose(Lane *lane, Conn *conn, int number);
void note_lag(Lane *lane, const Request *request, int64_t at_ns);

/* writing.c */
void put(Conn *conn, const void *data, Py_ssize_t n);
void put_tail(Conn *conn, const char *data, Py_ssize_t n);
void push(Lane *lane, Conn *conn);
void write_parts(Lane *lane, Conn *conn, struct iovec *parts, int n_parts);
void watch(Lane *lane, Conn *conn);
void unwatch(Lane *lane, Conn *conn);
PyObject *unsent(const Conn *conn);

/* http.c */
void send_http(Lane *lane, Conn *conn, int32_t number);
int is_layout(const Layout *layout, const Request *request, const char *body);
int is_to_be_checked(const Template *template, const Request *request);
void on_http(Lane *lane, Conn *conn);

/* grpc.c */
Request *request_of(Conn *conn, uint32_t stream);
void keep_stream(Lane *lane, Conn *conn, Request *request);
void drop_stream(Lane *lane, Conn *conn, Request *request);
int can_take(const Conn *conn);
int can_carry(const Conn *conn, int64_t n_bytes);
void send_grpc(Lane *lane, Conn *conn, int32_t number);
void flush_dirty(Lane *lane);
void on_grpc(Lane *lane, Conn *conn);

/* loop.c */
int follow(Lane *lane, int64_t until_ns, struct epoll_event *foreign);

/* What Python calls, `Lane.NAME`. */
#define ENTRY(name) \
  extern const char name##_doc[]; \
  PyObject *Lane_##name(Lane *lane, PyObject *arg)

/* between.c */
ENTRY(set_between);

/* sequences.c */
ENTRY(set_sequences);
ENTRY(turn_of);
ENTRY(passed);
ENTRY(held_back);
ENTRY(left_out);

/* templates.c */
void free_templates(Lane *lane);
Layout *layout_of(const Lane *lane, const Request *request);
PyObject *body_of(const Lane *lane, const Request *request);
ENTRY(add_template);
ENTRY(add_templates);
ENTRY(know_layout);
ENTRY(know_head);

/* choice.c */
int32_t chosen(const Lane *lane, int32_t number, int64_t token);
ENTRY(choose_by);
ENTRY(landed);

/* parking.c */
void free_conn(Lane *lane, Conn *conn);
PyObject *take_strays(Lane *lane);
ENTRY(expire);
ENTRY(reclaim);
ENTRY(park_http);
ENTRY(park_grpc);
ENTRY(lend);

/* begin.c */
PyObject *failed(void);
void release_plan(Lane *lane);
ENTRY(begin_open);
ENTRY(begin_closed);
ENTRY(take);
ENTRY(ended);
ENTRY(n_due_by);
ENTRY(halt);

#endif
