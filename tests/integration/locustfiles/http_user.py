"""Two kinds of users of an API: tasks with weights, tags, a check of each reply, a request before the first task."""

from __future__ import annotations

from locust import HttpUser, between, tag, task

MODEL = "seqlen_head"


class Caller(HttpUser):
    """Asks the model, and looks now and then whether it is there."""

    wait_time = between(0.01, 0.05)
    weight = 3

    def on_start(self) -> None:
        (tensor,) = self.client.get(f"/v2/models/{MODEL}", name="/v2/models/[model]").json()["inputs"]
        shape = [1, *tensor["shape"][1:]]
        n_values = 1
        for one in shape:
            n_values *= one
        data = [0.5] * n_values
        self.body = {"inputs": [{**tensor, "shape": shape, "data": data}]}

    @tag("infer")
    @task(10)
    def infer(self) -> None:
        with self.client.post(
            f"/v2/models/{MODEL}/infer", json=self.body, name="infer", catch_response=True
        ) as reply:
            if reply.status_code != 200:
                reply.failure(f"status {reply.status_code}")
            elif not reply.json()["outputs"][0]["data"]:
                reply.failure("no values")
            else:
                reply.success()

    @tag("look")
    @task
    def look(self) -> None:
        self.client.get("/v2/health/ready")


class Watcher(HttpUser):
    """Asks for what most people never ask, and counts as a success that it is not there."""

    wait_time = between(0.05, 0.1)

    @tag("look")
    @task(2)
    def metadata(self) -> None:
        self.client.get("/v2")

    @tag("look")
    @task
    def unknown(self) -> None:
        with self.client.get("/v2/models/none", name="unknown", catch_response=True) as reply:
            if reply.status_code in (400, 404):
                reply.success()

    @tag("fails")
    @task
    def refused(self) -> None:
        self.client.post(f"/v2/models/{MODEL}/infer", data="no JSON", name="refused")
