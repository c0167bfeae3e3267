"""Closed HTTP load by Locust as a library: FastHttpUser, one process, no wait, no catch_response.

    python rival_locust.py HOST PORT PATH BODY_FILE N_JSON_BYTES USERS SECONDS

prints one JSON object; times in us. Neither the web page nor the console tables of Locust run. Response times come
from its request event, since its own table rounds them to whole ms.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gevent
import locust
from locust.env import Environment

HOST, PORT, PATH, BODY_FILE, N_JSON_BYTES, USERS, SECONDS = sys.argv[1:]
BODY = Path(BODY_FILE).read_bytes()
HEADERS = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": N_JSON_BYTES}


class Caller(locust.FastHttpUser):
    """Sends the same request again as soon as the last one is answered."""

    host = f"http://{HOST}:{PORT}"

    @locust.task
    def infer(self) -> None:
        self.client.post(PATH, data=BODY, headers=HEADERS)


def main() -> None:
    service_us: list[float] = []

    def on_request(response_time: float, **_: object) -> None:
        service_us.append(response_time * 1_000)

    environment = Environment(user_classes=[Caller])
    environment.events.request.add_listener(on_request)
    runner = environment.create_local_runner()
    gevent.get_hub().loop.update_now()  # else the end is set from a stale clock, before the imports
    start = time.perf_counter()
    runner.start(int(USERS), spawn_rate=int(USERS))
    gevent.spawn_later(float(SECONDS), runner.quit)
    runner.greenlet.join()
    elapsed_s = time.perf_counter() - start
    total = environment.stats.total
    service_us.sort()
    result = {
        "version": locust.__version__,
        "n_ok": total.num_requests - total.num_failures,
        "n_failed": total.num_failures,
        "elapsed_s": elapsed_s,
        "service_us": {f"p{q}": round(service_us[q * len(service_us) // 100], 1) for q in (50, 95, 99)},
    }
    print(json.dumps(result))


main()
