"""What an inference of a `TritonUser` costs beside a plain `FastHttpUser` that posts the same body to the same server.

    python -m tests.bench.triton_user [--users 32] [--seconds 3] [--rounds 3] [--width 1024]

prints a JSON list: CPU of the Locust process in us per request (user + system, from the start of its users to their
end; imports do not count) of each kind of user, the median of the rounds, and its ratio to that of the plain one. The
kinds follow each other in every round, so that a busy host is so for all; the server is the null Triton in a process of
its own. A run with a failed request raises RuntimeError: there is no figure then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from squall.models.made import make_inputs
from squall.models.payload import PREFIX, encode_body, encode_id
from tests.null_process import NullProcess, null_spec

KINDS = ("plain", "http", "grpc")
_TIMEOUT_S = 60.0


def figures(n_users: int, seconds: float, n_rounds: int, width: int) -> list[dict[str, Any]]:
    """One of each kind."""
    cpu_us: dict[str, list[float]] = {kind: [] for kind in KINDS}
    n_requests = dict.fromkeys(KINDS, 0)
    with NullProcess(f"--width={width}") as null:
        ports = [str(null.ports[protocol]) for protocol in ("http", "grpc")]
        for _ in range(n_rounds):
            for kind in KINDS:
                words = [kind, *ports, str(n_users), str(seconds), str(width)]
                command = [sys.executable, "-m", "tests.bench.triton_user", "--child", *words]
                said = json.loads(subprocess.check_output(command, text=True, timeout=_TIMEOUT_S + seconds))
                if said["n_failed"] or not said["n_ok"]:
                    raise RuntimeError(f"{kind}: {said}")
                cpu_us[kind].append(said["cpu_s"] / said["n_ok"] * 1e6)
                n_requests[kind] += said["n_ok"]
    plain = statistics.median(cpu_us["plain"])
    return [
        {
            "user": kind, "n_users": n_users, "n_requests": n_requests[kind], "width": width,
            "cpu_us_per_request": round(statistics.median(cpu_us[kind]), 1),
            "ratio_to_plain": round(statistics.median(cpu_us[kind]) / plain, 3),
        }
        for kind in KINDS
    ]  # fmt: skip


def _child(kind: str, http_port: int, grpc_port: int, n_users: int, seconds: float, width: int) -> None:
    """One Locust process with users of one kind, no wait between their requests."""
    import time

    import gevent
    import locust
    from locust.env import Environment

    import squall
    from squall.actors.triton_user.handed import Handed, UserModel, UserTarget

    spec, url = null_spec(width), f"http://127.0.0.1:{http_port}"
    body = encode_body(spec, make_inputs(spec, 1, 0, 0))
    data = PREFIX + encode_id(0) + body.suffix
    path = f"/v2/models/{spec.name}/versions/{spec.version}/infer"
    headers = {
        "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(body.n_json_bytes),
    }  # fmt: skip

    def post(user: Any) -> None:
        user.client.post(path, data=data, headers=headers)

    def infer(user: Any) -> None:
        user.triton.infer()

    bases = {"plain": locust.FastHttpUser, "http": squall.TritonUser, "grpc": squall.TritonGrpcUser}
    content = {"tasks": [post if kind == "plain" else infer], "abstract": False, "host": url}
    environment = Environment(user_classes=[type("Caller", (bases[kind],), content)])
    ids = iter(range(10**12))
    target = UserTarget("null", url, f"127.0.0.1:{grpc_port}", (spec,))
    environment.squall = Handed((target,), (UserModel(spec.name, {}),), 0, ids.__next__)
    runner = environment.create_local_runner()
    gevent.get_hub().loop.update_now()
    before_s = time.process_time()
    runner.start(n_users, spawn_rate=n_users)
    gevent.sleep(seconds)
    runner.quit()
    cpu_s, total = time.process_time() - before_s, environment.stats.total
    n_ok = total.num_requests - total.num_failures
    print(json.dumps({"n_ok": n_ok, "n_failed": total.num_failures, "cpu_s": cpu_s}))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, http_port, grpc_port, n_users, seconds, width = sys.argv[2:]
        _child(kind, int(http_port), int(grpc_port), int(n_users), float(seconds), int(width))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=1024)
    told = parser.parse_args()
    print(json.dumps(figures(told.users, told.seconds, told.rounds, told.width), indent=1))


if __name__ == "__main__":
    main()
