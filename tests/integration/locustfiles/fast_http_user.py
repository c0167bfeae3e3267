"""Users of Locust's quicker client, which ask again as soon as they are answered."""

from __future__ import annotations

from locust import FastHttpUser, constant, task

MODEL = "seqlen_head"


class Caller(FastHttpUser):
    """Sends one request over and over."""

    wait_time = constant(0)

    def on_start(self) -> None:
        (tensor,) = self.client.get(f"/v2/models/{MODEL}").json()["inputs"]
        shape = [1, *tensor["shape"][1:]]
        n_values = 1
        for one in shape:
            n_values *= one
        self.body = {"inputs": [{**tensor, "shape": shape, "data": [0.5] * n_values}]}

    @task
    def infer(self) -> None:
        with self.rest("POST", f"/v2/models/{MODEL}/infer", json=self.body, name="infer") as reply:
            if not reply.js or "outputs" not in reply.js:
                reply.failure("no outputs")
