"""How much load a server can be trusted with: a few requests at once go out, a rate comes back."""

import time
from itertools import islice

from prony.errors import UsageError
from prony_loadgen.client import Client
from prony_loadgen.dispatch import Form
from prony_loadgen.prompts import drafts
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario
from prony_loadgen.target import Target

AT_ONCE = 6
# A third of what it does when busy: queues stay short, so that latency is the server's, not ours.
SHARE_OF_CAPACITY = 1 / 3
PATIENCE = 120.0  # seconds


def sustainable_rate(target: Target, model: str, scenario: Scenario) -> float:
    """Requests a second of this scenario that leave the server some two thirds idle.

    Raises UsageError where not one of the requests was answered.
    """
    form = Form(
        dialect=scenario.dialect,
        model=model,
        ignore_eos=scenario.output.mode == "forced",
        extra_body=scenario.extra_body,
        keep_text=False,
    )
    records: list[RequestRecord] = []
    client = Client(target, origin=time.monotonic(), on_record=records.append)
    client.start()
    for number, draft in enumerate(islice(drafts(scenario), AT_ONCE)):
        request = form.request(
            draft.prompt,
            id=f"pace-{number}",
            cls=scenario.name,
            intended=time.monotonic(),
            max_tokens=draft.output_tokens,
        )
        client.submit(request)
    client.close(PATIENCE)
    answered = [record for record in records if record.ok and record.arrivals]
    if not answered:
        why = next((record.error for record in records if record.error), "no answer")
        raise UsageError(f"{target.url}: not one of {AT_ONCE} first requests was answered: {why}")
    seconds = max(record.arrivals[-1].at for record in answered)
    return round(SHARE_OF_CAPACITY * len(answered) / seconds, 3)
