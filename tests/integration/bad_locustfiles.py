"""Locustfiles that do not run, or not to their end, by what is wrong with them: texts, since some are no Python."""

from __future__ import annotations

_LOOKER = """
from locust import HttpUser, constant, task


class Looker(HttpUser):
    wait_time = constant(0.02)

    @task
    def look(self):
        self.client.get("/v2/health/live")
"""

SYNTAX_ERROR = "from locust import HttpUser\n\n\nclass Looker(HttpUser:\n    pass\n"
NO_USERS = "from locust import task\n\n\ndef look():\n    pass\n"
ABSTRACT_USERS = "from locust import User\n\n\nclass Base(User):\n    abstract = True\n"
MISSING_IMPORT = "import no_such_package_of_a_test\n" + _LOOKER
RAISES_ON_IMPORT = _LOOKER + '\nraise RuntimeError("no account is left")\n'
NO_TASKS = (
    "from locust import HttpUser, constant\n\n\nclass Idle(HttpUser):\n    wait_time = constant(0.02)\n"
)
ON_START_RAISES = (
    _LOOKER
    + """
    def on_start(self):
        raise ValueError("no such account")
"""
)
ON_START_RAISES_FOR_SOME = (
    "import itertools\n\nnumbers = itertools.count()\n"
    + _LOOKER
    + """
    def on_start(self):
        if next(numbers) % 2:
            raise ValueError("this account is locked")
"""
)
"""For every second user that a worker spawns."""
WEIGHT_0 = _LOOKER + "\n    weight = 0\n"
TASK_RAISES = (
    _LOOKER
    + """
    @task
    def fail(self):
        raise KeyError("token")
"""
)
QUITS = (
    _LOOKER
    + """
    @task
    def quit(self):
        self.environment.runner.quit()
"""
)
"""The first user that comes to it ends its worker, or all of them where there is one process."""
EXITS = (
    _LOOKER
    + """
    @task
    def leave(self):
        raise SystemExit(3)
"""
)
