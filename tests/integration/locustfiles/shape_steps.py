"""A load in steps: the number of users is the shape's, whatever the command line says."""

from __future__ import annotations

from locust import HttpUser, LoadTestShape, constant, task


class Looker(HttpUser):
    """Looks whether the server is there."""

    wait_time = constant(0.02)

    @task
    def look(self) -> None:
        self.client.get("/v2/health/live")


class Steps(LoadTestShape):
    """Two users more a second, up to eight."""

    step_s = 1
    users_a_step = 2
    most_users = 8

    def tick(self) -> tuple[int, float]:
        step = int(self.get_run_time() // self.step_s) + 1
        return min(step * self.users_a_step, self.most_users), 10
