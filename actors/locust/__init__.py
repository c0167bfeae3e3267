"""Locust's master and workers: processes of their own under gevent, what starts and watches them, their rows."""
