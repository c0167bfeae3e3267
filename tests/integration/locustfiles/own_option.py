"""Options of its own on Locust's command line, read in the event `init`, in on_start and in a task."""

from __future__ import annotations

from typing import Any

from locust import HttpUser, constant, events, task

seen: list[str] = []


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    parser.add_argument(
        "--tenant", type=str, default="nobody", env_var="LOCUST_TENANT", help="whose requests"
    )
    parser.add_argument("--n-looks", type=int, default=1, help="requests a task")


@events.init.add_listener
def on_init(environment: Any, **_: Any) -> None:
    seen.append(environment.parsed_options.tenant)


class Looker(HttpUser):
    """Its requests have the name of the tenant."""

    wait_time = constant(0.05)

    def on_start(self) -> None:
        self.tenant = self.environment.parsed_options.tenant
        assert seen == [self.tenant]

    @task
    def look(self) -> None:
        for _ in range(self.environment.parsed_options.n_looks):
            self.client.get("/v2/health/live", name=f"look of {self.tenant}")
