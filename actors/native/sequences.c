/* Requests of sequences: whose turn it is, as squall.actors.load.sequence_turns says it, and what each says of its own.

   open loop    a0 ──────┤ a1 ────┤           a1 was due here ▼, and is released when a0 has ended
                ▲   ▼        ▲
   closed loop  a user's next request is due after the end of the one before: none waits

   Only Python sees a request fail, and tells it here: what is due of a sequence that was cut is Python's to record. */

#include "lane.h"

enum { ID_TEXT_BYTES = 19, ID_VARINT_BYTES = 9 }; /* of each id from LEAST_ID on, in decimal and in protobuf */
enum { IS_START = 1, IS_END = 2, IS_HELD = 4 };

/* bytes */

void put_place(const Lane *lane, const Request *request) {
  char *at = lane->own;
  memcpy(at, lane->places + (request->marks & (IS_START | IS_END)) * lane->n_between, lane->n_between);
  at += lane->place_id_at;
  uint64_t id = (uint64_t)request->correlation_id;
  if (lane->is_varint)
    for (int i = 0; i < ID_VARINT_BYTES; i++, id >>= 7) at[i] = (char)((id & 0x7F) | (i + 1 < ID_VARINT_BYTES) << 7);
  else
    for (int i = ID_TEXT_BYTES - 1; i >= 0; i--, id /= 10) at[i] = (char)('0' + id % 10);
}

const char set_sequences_doc[] =
    "set_sequences(places, id_at, is_varint, is_ordered, is_cut_by_failure, held_code)\n\nRequests are of sequences. "
    "`places`: what each has behind its id, four texts of one length: of one in the middle, the first, the last, one that is "
    "both; with room for the sequence's id at `id_at`, in decimal or in protobuf. `held_code`: the detail of one that was sent "
    "late for the one before. Before the first template.";
PyObject *Lane_set_sequences(Lane *lane, PyObject *args) {
  const char *places;
  Py_ssize_t n_places;
  int id_at, is_varint, is_ordered, is_cut, held_code;
  if (!PyArg_ParseTuple(args, "y#iiiii", &places, &n_places, &id_at, &is_varint, &is_ordered, &is_cut, &held_code))
    return NULL;
  int n_id = is_varint ? ID_VARINT_BYTES : ID_TEXT_BYTES;
  if (!may_enter(lane) || !is_within("bytes behind an id", n_places / 4, n_id, INT32_MAX / 8) ||
      !is_within("where a sequence's id stands", id_at, 0, n_places / 4 - n_id) ||
      !is_within("the code of a detail", held_code, 0, UINT16_MAX))
    return NULL;
  if (n_places % 4 || lane->n_templates || lane->own) {
    PyErr_SetString(PyExc_ValueError, "four texts of one length are given once, before the first template");
    return NULL;
  }
  lane->places = copied(places, n_places).data;
  lane->n_between = (int)(n_places / 4);
  lane->own = grown(NULL, lane->n_between);
  lane->place_id_at = id_at;
  lane->is_varint = is_varint != 0;
  lane->is_ordered = is_ordered != 0;
  lane->is_cut_by_failure = is_cut != 0;
  lane->held_code = (uint16_t)held_code;
  Py_RETURN_NONE;
}

/* what a run has of them */

static int are_ids(const int64_t *ids, Py_ssize_t n) {
  int is_sound = 1;
  for (Py_ssize_t i = 0; is_sound && i < n; i++) is_sound = is_within("a sequence's id", ids[i], LEAST_ID, LARGEST_ID);
  return is_sound;
}

/* 0 with a ValueError where the arrivals are not of those sequences, or cannot be found by their tokens. */
static int are_places(const Lane *lane, const int32_t *sequence_of, const uint8_t *marks, Py_ssize_t n, Py_ssize_t n_ids) {
  const int64_t *tokens = lane->tokens.buf;
  for (Py_ssize_t i = 0; i < n; i++) {
    const char *why = NULL;
    if (sequence_of[i] < 0 || sequence_of[i] >= n_ids) why = "no such sequence";
    else if (marks[i] > (IS_START | IS_END)) why = "no such mark";
    else if (i && tokens[i] <= tokens[i - 1]) why = "its token is not above the one before it";
    if (why) {
      PyErr_Format(PyExc_ValueError, "arrival %zd: %s", i, why);
      return 0;
    }
  }
  return 1;
}

static Sequence fresh(int64_t correlation_id) {
  return (Sequence){.correlation_id = correlation_id, .waiting = -1, .released = -1, .next = -1, .target = -1};
}

static void begin_sequences(Lane *lane, const int64_t *ids, Py_ssize_t n_ids) {
  lane->sequences = grown(NULL, (n_ids + 1) * sizeof *lane->sequences);
  for (Py_ssize_t i = 0; i < n_ids; i++) lane->sequences[i] = fresh(ids ? ids[i] : 0);
  lane->n_sequences = n_ids;
  lane->first_released = lane->last_released = -1;
}

static void *copy_of(const void *data, size_t n_bytes) { return memcpy(grown(NULL, n_bytes + 1), data, n_bytes); }

/* The arrivals' sequences, `columns` of Python's: ids of the sequences, sequence and marks of each of `n`
   arrivals. 0 with an exception where they are not sound. */
int begin_places(Lane *lane, PyObject *columns, Py_ssize_t n) {
  PyObject *ids, *sequence_of, *marks;
  if (!lane->places != (columns == Py_None)) {
    PyErr_SetString(PyExc_ValueError, "the sequences of arrivals are given where requests are of any, and only there");
    return 0;
  }
  if (!lane->places) return 1;
  if (!PyTuple_Check(columns)) {
    PyErr_SetString(PyExc_TypeError, "sequences: not (ids, sequence of each arrival, marks of each)");
    return 0;
  }
  if (!PyArg_ParseTuple(columns, "OOO", &ids, &sequence_of, &marks)) return 0;
  Py_buffer views[3] = {{0}};
  int is_sound = lent_column("ids", ids, &views[0], 8, "lq") && lent_column("sequences", sequence_of, &views[1], 4, "il") &&
                 lent_column("marks", marks, &views[2], 1, "B");
  Py_ssize_t n_ids = views[0].len / 8;
  if (is_sound && (views[1].len != 4 * n || views[2].len != n || n_ids > INT32_MAX)) {
    PyErr_SetString(PyExc_ValueError, "the columns of sequences differ in length");
    is_sound = 0;
  }
  if (is_sound && are_ids(views[0].buf, n_ids) && are_places(lane, views[1].buf, views[2].buf, n, n_ids)) {
    begin_sequences(lane, views[0].buf, n_ids);
    lane->sequence_of = copy_of(views[1].buf, views[1].len);
    lane->marks = copy_of(views[2].buf, views[2].len);
    lane->following = grown(NULL, (n + 1) * sizeof *lane->following);
    int64_t *last = grown(NULL, (n_ids + 1) * sizeof *last);
    for (Py_ssize_t i = 0; i < n_ids; i++) last[i] = -1;
    for (Py_ssize_t i = n - 1; i >= 0; i--) {
      lane->following[i] = last[lane->sequence_of[i]];
      last[lane->sequence_of[i]] = i;
    }
    free(last);
  } else {
    is_sound = 0;
  }
  for (int i = 0; i < 3; i++)
    if (views[i].obj) PyBuffer_Release(&views[i]);
  return is_sound;
}

/* The sequences of `n_users`: `told` is (id of the first of all, lengths), where lengths(index, first) -> int32 lengths of
   a user's sequences from that on. 0 with an exception where it is not sound. */
int begin_courses(Lane *lane, PyObject *told, int64_t n_users) {
  long long first_id;
  PyObject *lengths;
  if (!lane->places != (told == Py_None)) {
    PyErr_SetString(PyExc_ValueError, "the sequences of users are given where requests are of any, and only there");
    return 0;
  }
  if (!lane->places) return 1;
  if (!PyTuple_Check(told)) {
    PyErr_SetString(PyExc_TypeError, "sequences: not (id of the first, lengths)");
    return 0;
  }
  if (!PyArg_ParseTuple(told, "LO", &first_id, &lengths) || !is_function("lengths", lengths) ||
      !is_within("a sequence's id", first_id, LEAST_ID, LARGEST_ID - LARGEST_TOKEN))
    return 0;
  lane->first_id = first_id;
  lane->lengths = Py_NewRef(lengths);
  begin_sequences(lane, NULL, n_users);
  lane->courses = grown(NULL, (n_users + 1) * sizeof *lane->courses);
  memset(lane->courses, 0, (n_users + 1) * sizeof *lane->courses);
  return 1;
}

static void draw_lengths(Lane *lane, int32_t index) { /* needs the interpreter */
  Course *course = &lane->courses[index];
  course->at = course->n_lengths = 0;
  PyObject *drawn = PyObject_CallFunction(lane->lengths, "iL", index, (long long)course->n_begun);
  char *data;
  Py_ssize_t n = 0;
  int is_sound = drawn && !PyBytes_AsStringAndSize(drawn, &data, &n);
  if (is_sound) {
    is_sound = n && n % 4 == 0 && n <= (Py_ssize_t)sizeof course->lengths;
    if (is_sound) memcpy(course->lengths, data, n);
    for (int i = 0; is_sound && i < n / 4; i++) is_sound = course->lengths[i] > 0;
    if (!is_sound) PyErr_SetString(PyExc_ValueError, "lengths of a user's sequences: not 1 to 64 int32 above 0");
  }
  if (is_sound)
    course->n_lengths = (int)(n / 4);
  else
    lane->has_failed = 1;
  Py_XDECREF(drawn);
}

/* Whether `ready_course` must ask Python. */
int is_without_lengths(const Lane *lane, int32_t index) {
  const Course *course = lane->courses ? &lane->courses[index] : NULL;
  return course && !course->left && course->at == course->n_lengths;
}

/* Before a user's turn: where its sequence is over, the next one begins. 0 where that cannot be had. */
int ready_course(Lane *lane, int32_t index) { /* needs the interpreter where it is without lengths */
  if (is_without_lengths(lane, index)) draw_lengths(lane, index);
  if (lane->has_failed) return 0;
  Course *course = lane->courses ? &lane->courses[index] : NULL;
  if (!course || course->left) return 1;
  course->left = course->lengths[course->at++];
  course->is_first = 1;
  lane->sequences[index] = fresh(lane->first_id + course->n_begun++ * lane->n_all_users + lane->users[index].number);
  return 1;
}

/* turns */

static Sequence *next_sequence(const Lane *lane) {
  if (lane->users) return &lane->sequences[lane->heap[0].user];
  return &lane->sequences[lane->first_released >= 0 ? lane->first_released : lane->sequence_of[lane->next]];
}

/* Whether the arrival that is next is not the lane's to send now: it waits for the one before it, or Python records it. */
int is_held_back(Lane *lane) {
  if (!lane->sequences || lane->first_released >= 0) return 0;
  Sequence *sequence = next_sequence(lane);
  if (sequence->is_cut) {
    lane->is_stuck = 1;
    return 1;
  }
  if (lane->users || !lane->is_ordered || !sequence->n_out) return 0;
  lane->marks[lane->next] |= IS_HELD;
  if (sequence->waiting < 0) sequence->waiting = lane->next;
  lane->n_waiting++;
  lane->next++;
  return 1;
}

/* The server of the next arrival's sequence, where it has one; else -1. */
int kept_target(const Lane *lane) { return lane->sequences ? next_sequence(lane)->target : -1; }

/* The released arrival that is next; -1: none is. */
int64_t released_arrival(const Lane *lane) {
  return lane->sequences && lane->first_released >= 0 ? lane->sequences[lane->first_released].released : -1;
}

/* An arrival is taken: its index in the plan, or -1 and its user; for that server. */
void take_place(Lane *lane, Request *request, int64_t arrival, int32_t user, int target) {
  Sequence *sequence;
  if (arrival >= 0) {
    request->sequence = lane->sequence_of[arrival];
    request->marks = lane->marks[arrival];
    sequence = &lane->sequences[request->sequence];
    if (sequence->released == arrival) {
      lane->first_released = sequence->next;
      if (sequence->next < 0) lane->last_released = -1;
      sequence->released = sequence->next = -1;
      lane->n_waiting--;
    } else if (!sequence->is_cut) {
      sequence->n_out++;
    }
  } else {
    Course *course = &lane->courses[user];
    request->sequence = user;
    sequence = &lane->sequences[user];
    request->marks = (uint8_t)((course->is_first ? IS_START : 0) | (course->left == 1 ? IS_END : 0));
    course->is_first = 0;
    course->left--;
    if (!sequence->is_cut) sequence->n_out++;
  }
  if (sequence->is_cut) lane->in_flight[target]--; /* it is never sent */
  request->correlation_id = sequence->correlation_id;
  request->detail = request->marks & IS_HELD ? lane->held_code : 0;
  if (lane->rule != PLANNED) sequence->target = (int16_t)target;
}

/* A request of that sequence has ended well, or in spite of its failure the next one follows. */
void pass_turn(Lane *lane, int32_t number) {
  Sequence *sequence = &lane->sequences[number];
  sequence->n_out--;
  int64_t arrival = sequence->waiting;
  if (arrival < 0 || sequence->is_cut || sequence->released >= 0) return;
  int64_t following = lane->following[arrival];
  sequence->waiting = following >= 0 && lane->marks[following] & IS_HELD ? following : -1;
  sequence->released = arrival;
  sequence->n_out++;
  if (lane->last_released >= 0)
    lane->sequences[lane->last_released].next = number;
  else
    lane->first_released = number;
  lane->last_released = number;
}

/* what Python asks and tells */

/* Index of the arrival with that token, or of the user whose it is; -1: there is none. */
static int64_t place_of(const Lane *lane, int64_t token) {
  if (lane->users && !lane->n_users) return -1;
  int64_t low = 0, high = lane->users ? lane->n_users : lane->n_planned;
  int64_t wanted = lane->users ? token % lane->n_all_users : token;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    int64_t found = lane->users ? lane->users[middle].number : ((int64_t *)lane->tokens.buf)[middle];
    if (found == wanted) return middle;
    if (found < wanted)
      low = middle + 1;
    else
      high = middle;
  }
  return -1;
}

/* Whether that request is of a sequence here, where all are of one. */
int is_placed(const Lane *lane, int64_t token) { return !lane->sequences || place_of(lane, token) >= 0; }

/* What a request that Python sent has of its sequence. */
void find_place(const Lane *lane, Request *request) {
  if (!lane->sequences) return;
  int64_t place = place_of(lane, request->token);
  request->sequence = lane->users ? (int32_t)place : lane->sequence_of[place];
  if (!lane->users && lane->marks[place] & IS_HELD) request->detail = lane->held_code;
}

/* Place of the token that is `arg`; -1 with an exception where it cannot be asked for. */
static int64_t asked_place(const Lane *lane, int64_t token) {
  if (!may_enter(lane)) return -1;
  int64_t place = lane->sequences && token >= 0 ? place_of(lane, token) : -1;
  if (place < 0) PyErr_Format(PyExc_ValueError, "request %lld is of no sequence here", (long long)token);
  return place;
}

const char turn_of_doc[] =
    "turn_of(token) -> (is_cut, is_held)\n\nOf a request that was taken: whether a failure has cut its sequence, and whether it "
    "was held back.";
PyObject *Lane_turn_of(Lane *lane, PyObject *arg) {
  int64_t token = PyLong_AsLongLong(arg);
  if (token == -1 && PyErr_Occurred()) return NULL;
  int64_t place = asked_place(lane, token);
  if (place < 0) return NULL;
  int is_held = !lane->users && lane->marks[place] & IS_HELD;
  return Py_BuildValue("(ii)", (int)lane->sequences[lane->users ? place : lane->sequence_of[place]].is_cut, is_held);
}

/* -1 with an exception where it cannot be told. */
static int tell_arrival(const Lane *lane, PyObject *list, int64_t index) {
  int64_t at_ns = lane->start_ns + ((int64_t *)lane->offsets.buf)[index];
  PyObject *item = list ? Py_BuildValue("(LLLii)", (long long)at_ns, (long long)at_ns,
                                        (long long)((int64_t *)lane->tokens.buf)[index],
                                        (int)((uint8_t *)lane->phases.buf)[index], (int)lane->kinds[index])
                        : NULL;
  int rc = item ? PyList_Append(list, item) : -1;
  Py_XDECREF(item);
  return rc;
}

/* Tells all of a sequence that wait, and forgets them. */
static int tell_waiting(Lane *lane, Sequence *sequence, PyObject *list) {
  int rc = 0;
  for (int64_t at = sequence->waiting; at >= 0 && lane->marks[at] & IS_HELD; at = lane->following[at]) {
    rc |= tell_arrival(lane, list, at);
    lane->n_waiting--;
  }
  sequence->waiting = -1;
  return rc;
}

static PyObject *told_or_not(PyObject *list, int rc) {
  if (rc) Py_CLEAR(list);
  return list;
}

const char passed_doc[] =
    "passed(token, is_ok) -> arrivals\n\nA request that Python sent or took back has ended: the next of its sequence is due, or "
    "those that waited are never sent; each as `take` gives it.";
PyObject *Lane_passed(Lane *lane, PyObject *args) {
  long long token;
  int is_ok;
  if (!PyArg_ParseTuple(args, "Li", &token, &is_ok)) return NULL;
  int64_t place = asked_place(lane, token);
  if (place < 0) return NULL;
  int32_t number = lane->users ? (int32_t)place : lane->sequence_of[place];
  Sequence *sequence = &lane->sequences[number];
  if (!sequence->n_out) {
    PyErr_Format(PyExc_ValueError, "request %lld: no request of its sequence is in flight", token);
    return NULL;
  }
  PyObject *never = PyList_New(0);
  if (is_ok || !lane->is_cut_by_failure) {
    pass_turn(lane, number);
    return never;
  }
  sequence->n_out--;
  sequence->is_cut = 1;
  return told_or_not(never, tell_waiting(lane, sequence, never));
}

const char held_back_doc[] = "held_back() -> arrivals\n\nAll that wait, as `take` gives each; none does afterwards.";
PyObject *Lane_held_back(Lane *lane, PyObject *unused) {
  (void)unused;
  if (!may_enter(lane)) return NULL;
  PyObject *list = PyList_New(0);
  int rc = 0;
  for (int64_t i = 0; i < lane->n_sequences; i++) {
    Sequence *sequence = &lane->sequences[i];
    if (sequence->released >= 0) {
      rc |= tell_arrival(lane, list, sequence->released);
      sequence->released = sequence->next = -1;
      lane->n_waiting--;
    }
    rc |= tell_waiting(lane, sequence, list);
  }
  lane->first_released = lane->last_released = -1;
  return told_or_not(list, rc);
}

const char left_out_doc[] =
    "left_out(user_index, at_ns)\n\nWhat was taken of that user is never sent: it sends the next one in its place.";
PyObject *Lane_left_out(Lane *lane, PyObject *args) {
  int index;
  long long at_ns;
  if (!PyArg_ParseTuple(args, "iL", &index, &at_ns)) return NULL;
  if (!may_enter(lane) || !is_within("the instant it was due", at_ns, 0, LATEST_NS)) return NULL;
  if (index < 0 || index >= lane->n_users || lane->users[index].place != WITH_PYTHON || !lane->courses) {
    PyErr_Format(PyExc_ValueError, "user %d: no such user of sequences, or its request is not Python's", index);
    return NULL;
  }
  if (lane->has_failed) Py_RETURN_NONE;
  lane->is_busy = 1;
  user_again(lane, index, at_ns);
  lane->is_busy = 0;
  if (lane->has_failed) return failed();
  Py_RETURN_NONE;
}

void free_sequences(Lane *lane) {
  free(lane->places);
  free(lane->own);
  free(lane->sequences);
  free(lane->sequence_of);
  free(lane->following);
  free(lane->marks);
  free(lane->courses);
}
