"""What holds for all tests: how fast a machine is decides none of them."""

from hypothesis import HealthCheck, settings

settings.register_profile("prony", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("prony")
