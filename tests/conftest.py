"""No example of a property test has a deadline, nor has their making: a busy machine may hold up any."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("squall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("squall")
