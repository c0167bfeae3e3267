"""Users of ours in a plain Locust environment, which has a process of its own: gevent patches the interpreter.

    python -m tests.integration.locust_calls JOB RESULT

Both files are pickles: of a `Job`, and of a `Done`.
"""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Job:
    """`handed`: fields of `Handed` but for `next_id`, whose ids count from `first_id`; None: alone. `attributes`: of
    the user class. Each of the users makes the `calls`, keyword arguments of `infer`, and ends."""

    protocol: str
    calls: Sequence[Mapping[str, Any]]
    n_users: int = 1
    handed: Mapping[str, Any] | None = None
    first_id: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Done:
    """`answers`: of each user its answers, or the exceptions of `infer` as text, in order. `events`: Locust's request
    events. `entries`: (method, name) -> (requests, failures, sum of response times). `n_made`: requests encoded."""

    answers: list[list[Any]]
    events: list[dict[str, Any]]
    entries: dict[tuple[str, str], tuple[int, int, float]]
    errors: dict[str, int]
    n_made: int = 0


def done(job: Job, folder: Path) -> Done:
    """What came of it in a process of its own."""
    told, result = folder / "job.pickle", folder / "done.pickle"
    told.write_bytes(pickle.dumps(job))
    command = [sys.executable, "-m", "tests.integration.locust_calls", str(told), str(result)]
    child = subprocess.run(command, cwd=ROOT, timeout=_TIMEOUT_S, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    found: Done = pickle.loads(result.read_bytes())
    assert "locust" not in sys.modules, "what was pickled has imported Locust here"
    return found


def _perform(job: Job) -> Done:
    import gevent
    import locust
    from locust.env import Environment

    import squall
    from squall.actors.triton_user.handed import SENT_KEY, Handed
    from squall.actors.triton_user.shared import process_of

    found = Done([], [], {}, {})

    def act(user: Any) -> None:
        answers: list[Any] = []
        found.answers.append(answers)
        for call in job.calls:
            try:
                answer = user.triton.infer(**call)
            except (ValueError, squall.SquallError) as error:
                answers.append(f"{type(error).__name__}: {error}")
                continue
            outputs = dict(answer.outputs) if answer.is_ok else {}
            answers.append(
                {
                    "request_id": answer.request_id, "outcome": answer.outcome, "detail": answer.detail,
                    "response_time_ns": answer.response_time_ns, "outputs": outputs,
                }
            )  # fmt: skip
        raise locust.exception.StopUser

    base = squall.TritonUser if job.protocol == "http" else squall.TritonGrpcUser
    caller = type("Caller", (base,), {"tasks": [act], "abstract": False, **job.attributes})
    environment = Environment(user_classes=[caller])
    if job.handed is not None:
        environment.squall = Handed(next_id=itertools.count(job.first_id).__next__, **job.handed)

    def on_request(**event: Any) -> None:
        sent = event["context"].get(SENT_KEY)
        error = event["exception"]
        told = ("request_type", "name", "response_time", "response_length", "start_time", "url")
        found.events.append(
            {**{key: event[key] for key in told}, "sent": tuple(sent), "exception": error and repr(error)}
        )

    environment.events.request.add_listener(on_request)
    runner = environment.create_local_runner()
    runner.start(job.n_users, spawn_rate=job.n_users)
    while len(found.answers) < job.n_users or runner.user_greenlets:
        gevent.sleep(0.01)
    found.entries = {
        (method, name): (entry.num_requests, entry.num_failures, entry.total_response_time)
        for (name, method), entry in environment.stats.entries.items()
    }
    found.errors = {repr(error.error): error.occurrences for error in environment.stats.errors.values()}
    found.n_made = sum(len(one.payloads.made) for one in process_of(environment)._shared.values())
    runner.quit()
    return found


if __name__ == "__main__":
    # by its name: what is pickled as of `__main__` is nobody's
    from tests.integration import locust_calls

    job_file, result_file = sys.argv[1:]
    performed = locust_calls._perform(pickle.loads(Path(job_file).read_bytes()))
    Path(result_file).write_bytes(pickle.dumps(performed))
