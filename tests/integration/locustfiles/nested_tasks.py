"""Tasks in an order, and task sets within others that are left again."""

from __future__ import annotations

from locust import HttpUser, SequentialTaskSet, TaskSet, constant, task


class LogIn(SequentialTaskSet):
    """Step by step, then back to what it is within."""

    @task
    def first(self) -> None:
        self.client.get("/v2/health/live", name="1 live")

    @task
    def second(self) -> None:
        self.client.get("/v2/health/ready", name="2 ready")

    @task
    def third(self) -> None:
        self.client.get("/v2", name="3 server")
        self.interrupt()


class Browse(TaskSet):
    """Either of two tasks, or another task set."""

    tasks = {LogIn: 3}  # noqa: RUF012 - as Locust's documentation has it

    @task
    def metadata(self) -> None:
        self.client.get("/v2/models/seqlen_head", name="model")

    @task
    def leave(self) -> None:
        self.interrupt(reschedule=False)


class Person(HttpUser):
    """Browses."""

    wait_time = constant(0.01)
    tasks = [Browse]  # noqa: RUF012
