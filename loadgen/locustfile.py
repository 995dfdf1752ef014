"""`locust -f loadgen/locustfile.py -H http://HOST:PORT`: a scenario, with all of Locust's options.

`--scenario` names it (default: chat). Your own users: see "A locustfile of your own" in README.md.
"""

from prony_loadgen.locust_user import ScenarioUser


class Scenario(ScenarioUser):
    """Sends what the scenario says."""
