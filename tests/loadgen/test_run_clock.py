"""One clock for the workers of a run."""

from hypothesis import given
from hypothesis import strategies as st

from prony_loadgen.run_clock import Asked, clock_name, offset

ways = st.floats(0.0, 0.5)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(ways, ways), min_size=1, max_size=9))
def test_the_offset_is_wrong_by_at_most_what_it_says(
    true: float, journeys: list[tuple[float, float]]
) -> None:
    exchanges = []
    for number, (there, back) in enumerate(journeys):
        asked = 100.0 + number
        exchanges.append(Asked(asked, asked + there + true, asked + there + back))
    found = offset(exchanges)
    assert abs(found.seconds - true) <= found.uncertainty + 1e-6
    assert found.uncertainty <= min(there + back for there, back in journeys) / 2 + 1e-6


def test_processes_of_one_machine_have_one_clock() -> None:
    import subprocess
    import sys

    told = subprocess.run(
        [sys.executable, "-c", "from prony_loadgen.run_clock import clock_name as n; print(n())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == str(clock_name()).strip() != "None"
