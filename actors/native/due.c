/* What is due: the arrivals of a plan, or the users of a closed loop in a heap by their next send. */

#include "lane.h"

/* Of equals the user of the lower number: users stand in the order of their numbers. */
static int is_before(Turn a, Turn b) { return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.user < b.user; }

static void push_turn(Lane *lane, int64_t at_ns, int32_t user) {
  int64_t place = lane->n_heap++;
  Turn turn = {at_ns, user};
  for (int64_t above; place && is_before(turn, lane->heap[above = (place - 1) / 2]); place = above)
    lane->heap[place] = lane->heap[above];
  lane->heap[place] = turn;
  lane->users[user].place = IN_HEAP;
}

static Turn pop_turn(Lane *lane) {
  Turn first = lane->heap[0], last = lane->heap[--lane->n_heap];
  int64_t place = 0, below;
  while ((below = 2 * place + 1) < lane->n_heap) {
    if (below + 1 < lane->n_heap && is_before(lane->heap[below + 1], lane->heap[below])) below++;
    if (!is_before(lane->heap[below], last)) break;
    lane->heap[place] = lane->heap[below];
    place = below;
  }
  lane->heap[place] = last;
  return first;
}

int is_template(const Lane *lane, int64_t number) { return number >= 0 && number < lane->n_templates; }

/* Whether arrivals may name it. */
int can_be_due(const Lane *lane, int64_t number) {
  return is_template(lane, number) && (lane->rule == PLANNED || number < lane->n_kinds);
}

int has_begun(const Lane *lane) { return lane->users || lane->kinds; }

static int are_steps(const Lane *lane, const User *user) {
  for (int i = 0; i < user->n_steps; i++)
    if (user->think_ns[i] < 0 || user->think_ns[i] > LATEST_NS || !can_be_due(lane, user->template[i]))
      return 0;
  return 1;
}

static void draw_steps(Lane *lane, int32_t index) { /* needs the interpreter */
  User *user = &lane->users[index];
  user->at = user->n_steps = 0;
  PyObject *drawn = PyObject_CallFunction(lane->refill, "i", index);
  const char *think, *template;
  Py_ssize_t n_think, n_template;
  int is_sound = 0;
  if (drawn && !PyTuple_Check(drawn)) {
    PyErr_SetString(PyExc_TypeError, "a user's steps: not (think times, templates)");
  } else if (drawn && PyArg_ParseTuple(drawn, "y#y#", &think, &n_think, &template, &n_template)) {
    is_sound = n_think && n_think % 8 == 0 && n_think <= (Py_ssize_t)sizeof user->think_ns && n_think == 2 * n_template;
    if (is_sound) {
      memcpy(user->think_ns, think, n_think);
      memcpy(user->template, template, n_template);
      user->n_steps = (int)(n_think / 8);
      is_sound = are_steps(lane, user);
    }
    if (!is_sound)
      PyErr_SetString(PyExc_ValueError, "a user's steps: not 1 to 64 think times from 0 on, each with its template");
  }
  if (!is_sound) {
    user->n_steps = 0;
    lane->has_failed = 1;
  }
  Py_XDECREF(drawn);
}

void enter_phase(Lane *lane, int32_t index, int first_phase, int64_t free_ns) { /* needs the interpreter */
  User *user = &lane->users[index];
  PyObject *begun = PyObject_CallFunction(lane->enter, "iiL", index, first_phase, (long long)free_ns);
  long long send_ns, end_ns;
  int phase;
  if (!begun) {
    lane->has_failed = 1;
  } else if (begun != Py_None) {
    if (!PyTuple_Check(begun)) {
      PyErr_SetString(PyExc_TypeError, "a user's phase: not (send_ns, phase, end_ns)");
      lane->has_failed = 1;
    } else if (PyArg_ParseTuple(begun, "LiL", &send_ns, &phase, &end_ns) &&
               is_within("a user's first send", send_ns, 0, LATEST_NS) &&
               is_within("a user's phase", phase, first_phase, UINT8_MAX) &&
               is_within("the end of a user's phase", end_ns, 0, LATEST_NS)) {
      user->phase = phase;
      user->end_ns = end_ns;
      draw_steps(lane, index);
      if (!lane->has_failed && ready_course(lane, index)) push_turn(lane, send_ns, index);
    } else {
      lane->has_failed = 1;
    }
  }
  Py_XDECREF(begun);
}

void user_ended(Lane *lane, int32_t index, int64_t at_ns) {
  User *user = &lane->users[index];
  user->place = NOWHERE;
  if (lane->has_failed) return; /* what raised is still to be told */
  if (user->at == user->n_steps) {
    enter_python(lane);
    draw_steps(lane, index);
    leave_python(lane);
    if (lane->has_failed) return;
  }
  int64_t send_ns = at_ns + user->think_ns[user->at];
  if (send_ns < user->end_ns) {
    int is_asked = is_without_lengths(lane, index);
    if (is_asked) enter_python(lane);
    int is_ready = ready_course(lane, index);
    if (is_asked) leave_python(lane);
    if (is_ready) push_turn(lane, send_ns, index);
  } else {
    enter_python(lane);
    enter_phase(lane, index, user->phase + 1, at_ns);
    leave_python(lane);
  }
}

/* What was taken of the user is never sent: its next request is due in its place, and is the same but for its id. */
void user_again(Lane *lane, int32_t index, int64_t at_ns) {
  lane->users[index].at--;
  if (ready_course(lane, index)) push_turn(lane, at_ns, index);
}

/* Index of the plan's arrival that is next: what was held back and has its turn goes before what is due. */
static int64_t next_arrival(const Lane *lane) {
  int64_t released = released_arrival(lane);
  return released >= 0 ? released : lane->next;
}

int64_t next_due(const Lane *lane) {
  if (lane->users) return lane->n_heap ? lane->heap[0].at_ns : NEVER_NS;
  int64_t index = next_arrival(lane);
  return index < lane->n_planned ? lane->start_ns + ((int64_t *)lane->offsets.buf)[index] : NEVER_NS;
}

static int64_t token_of(const Lane *lane, const User *user) {
  return user->n_sent * lane->n_all_users + user->number;
}

/* The template of the arrival that is next, for the server that it goes to; call only where one is left. */
int32_t next_template(const Lane *lane) {
  const User *user = lane->users ? &lane->users[lane->heap[0].user] : NULL;
  int64_t index = next_arrival(lane);
  int32_t number = user ? user->template[user->at] : lane->kinds[index];
  if (lane->rule == PLANNED) return number;
  int target = kept_target(lane);
  if (target >= 0) return number + target * lane->n_kinds;
  return chosen(lane, number, user ? token_of(lane, user) : ((int64_t *)lane->tokens.buf)[index]);
}

/* Takes the arrival that is next; `template` is what `next_template` said. */
void take_due(Lane *lane, Request *request, int32_t template) {
  lane->last_target = lane->templates[template].target;
  lane->in_flight[lane->last_target]++;
  request->template = template;
  lane->n_taken++;
  lane->is_stuck = 0;
  if (lane->users) {
    Turn turn = pop_turn(lane);
    User *user = &lane->users[turn.user];
    request->at_ns = turn.at_ns;
    request->scheduled_ns = -1;
    request->token = token_of(lane, user);
    user->n_sent++;
    user->at++;
    request->phase = (uint8_t)user->phase;
    request->user = turn.user;
    user->place = WITH_PYTHON;
    if (lane->sequences) take_place(lane, request, -1, turn.user, lane->last_target);
  } else {
    int64_t index = next_arrival(lane);
    if (index == lane->next) lane->next++;
    if (lane->sequences) take_place(lane, request, index, 0, lane->last_target);
    request->at_ns = request->scheduled_ns = lane->start_ns + ((int64_t *)lane->offsets.buf)[index];
    request->token = ((int64_t *)lane->tokens.buf)[index];
    request->phase = ((uint8_t *)lane->phases.buf)[index];
  }
}
