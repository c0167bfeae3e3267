"""A load that ends itself: the shape says None after two seconds."""

from __future__ import annotations

from locust import HttpUser, LoadTestShape, constant, task


class Looker(HttpUser):
    """Looks whether the server is there."""

    wait_time = constant(0.02)

    @task
    def look(self) -> None:
        self.client.get("/v2/health/live")


class Short(LoadTestShape):
    """Up, then more, then the end."""

    stages = ((1, 2, 10), (2, 4, 10))

    def tick(self) -> tuple[int, float] | None:
        for until_s, n_users, spawn_rate in self.stages:
            if self.get_run_time() < until_s:
                return n_users, spawn_rate
        return None
