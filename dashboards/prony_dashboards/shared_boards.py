"""The boards that all engines share: the load generator, several runs beside one another, hosts."""

from collections.abc import Sequence

from prony_dashboards import clientside, panels, promql
from prony_dashboards.board import RUN, Board, board, limit_variables, run_variable
from prony_dashboards.findings import GPU, HOST, LOAD, needing
from prony_dashboards.panels import RED, Panel, Query, Threshold, stat, timeseries
from prony_loadgen import telemetry as load
from prony_server import telemetry as server

REQUESTS, TOKENS_PER_S = "suffix:requests", "suffix:tokens/s"
LATE = "0.01"  # seconds: a request sent later than this is late
LEGEND = f"{{{{{load.LABEL}}}}}"


def load_board() -> Board:
    return board(
        "load",
        "What the load generator asked for, what it got, and how far it may be trusted.",
        [("What was asked and what came", _asked()), ("Doubts about the instrument", _doubts())],
        [run_variable()],
    )


def compare_board() -> Board:
    return board(
        "compare",
        "Runs beside one another, each by its id: over the whole time shown, then over time. "
        "Choose a range that holds them. Whether a difference is one is not seen here: "
        "`prony compare` and `prony ab` test it.",
        [("Over the whole time shown", _totals()), ("Over time", _over_time())],
        [run_variable(), *limit_variables()],
    )


def gpu_host_board() -> Board:
    return board(
        "gpu-host",
        "The machines: GPUs through NVML (the server's own gauges) or dcgm-exporter, hosts "
        "through the processes' own metrics or node-exporter. What nobody exports stays empty.",
        [("GPU", _gpu()), ("Processes", _processes()), ("Host", _host())],
        [panels.label_variable("instance", "Instance", "up", "instance")],
    )


def _asked() -> list[Panel]:
    return [
        needing(panel, LOAD)
        for panel in (
            timeseries(
                "Offered and finished",
                "Requests that the schedule asked for, and those that finished. In open loop the "
                "first does not care how slow the server is; a lasting gap is a growing queue.",
                [
                    Query(promql.rate(load.OFFERED, RUN), legend="offered"),
                    Query(promql.rate(load.SEND_LAG + "_count", RUN), legend="sent"),
                    Query(promql.rate(load.REQUESTS, RUN), legend="finished"),
                ],
                unit="reqps",
            ),
            timeseries(
                "In flight",
                "Requests that were handed over and not yet answered, as the client counts them.",
                [Query(f"sum by ({load.LABEL}) ({load.REQUESTS_IN_FLIGHT}{{{RUN}}})", LEGEND)],
                unit=REQUESTS,
            ),
            timeseries(
                "Outcomes",
                "How requests ended for the client, per second.",
                [Query(promql.rate(load.REQUESTS, RUN, "outcome"), "{{outcome}}")],
                unit="reqps",
                stacked=True,
            ),
            timeseries(
                "Tokens received",
                "Output tokens of finished requests per second, at the client. A long answer "
                "counts when it ends, so this moves in steps where the server's count is smooth.",
                [Query(promql.rate(load.OUTPUT_TOKENS, RUN), legend="output tokens")],
                unit=TOKENS_PER_S,
                width=12,
            ),
            timeseries(
                "By class",
                "Finished requests per second by the class that the scenario gave them.",
                [Query(promql.rate(load.REQUESTS, RUN, "class"), "{{class}}")],
                unit="reqps",
                width=12,
                stacked=True,
            ),
        )
    ]


def _doubts() -> list[Panel]:
    sent = promql.rate(load.SEND_LAG + "_count", RUN)
    in_time = promql.rate(load.SEND_LAG + "_bucket", f'{RUN}, le="{LATE}"')
    return [
        *(
            needing(panel, LOAD)
            for panel in (
                timeseries(
                    "Send lag",
                    "How late our own client sent, after the intended moment. Over 10 ms the "
                    "instrument doubts itself, and the gate may refuse to judge.",
                    clientside.percentiles(load.SEND_LAG, (0.5, 0.99)),
                    unit="s",
                    thresholds=[Threshold(0.01, RED)],
                ),
                timeseries(
                    "Sent late",
                    "Share of requests that left more than 10 ms after their moment. Many mean "
                    "that the results understate the load: use fewer users a process, or more "
                    "processes.",
                    [Query(f"1 - {promql.ratio(in_time, sent)}", legend="late")],
                    unit="percentunit",
                    thresholds=[Threshold(0.01, RED)],
                ),
                timeseries(
                    "Share of failed requests",
                    "Failed requests of all that finished; nothing is shown while none finish.",
                    [Query(clientside.error_share(), legend="failed")],
                    unit="percentunit",
                    thresholds=[Threshold(0.01, RED)],
                ),
            )
        ),
        clientside.beyond(width=24),
    ]


def _totals() -> list[Panel]:
    window = promql.RANGE

    def of_runs(title: str, text: str, expr: str, unit: str, decimals: int | None = None) -> Panel:
        query = [Query(expr, legend=LEGEND, instant=True)]
        return needing(
            stat(title, text, query, unit=unit, width=8, height=6, decimals=decimals), LOAD
        )

    finished = f'{load.REQUESTS}{{{RUN}, outcome!="incomplete"}}'
    return [
        of_runs(
            "Requests",
            "Requests that finished in the time shown, each run by itself.",
            f"sum by ({load.LABEL}) (increase({finished}[{window}]))",
            REQUESTS,
            0,
        ),
        of_runs(
            "TTFT p99",
            "From histogram buckets, over the time shown; exact figures are in the reports.",
            promql.quantile(0.99, load.TIME_TO_FIRST_TOKEN, RUN, load.LABEL, window),
            "s",
        ),
        of_runs(
            "TPOT p99",
            "From histogram buckets, over the time shown; exact figures are in the reports.",
            promql.quantile(0.99, load.TIME_PER_OUTPUT_TOKEN, RUN, load.LABEL, window),
            "s",
        ),
        of_runs(
            "Whole request p99",
            "From histogram buckets, over the time shown; exact figures are in the reports.",
            promql.quantile(0.99, load.REQUEST_DURATION, RUN, load.LABEL, window),
            "s",
        ),
        of_runs(
            "Failed",
            "Share of failed requests among those that finished in the time shown.",
            clientside.error_share(load.LABEL, window),
            "percentunit",
        ),
        of_runs(
            "Output tokens",
            "Output tokens of the requests that finished in the time shown.",
            f"sum by ({load.LABEL}) (increase({load.OUTPUT_TOKENS}{{{RUN}}}[{window}]))",
            "suffix:tokens",
            0,
        ),
    ]


def _over_time() -> list[Panel]:
    def by_run(title: str, text: str, expr: str, unit: str, limit: str = "") -> Panel:
        query = [Query(expr, legend=LEGEND)]
        return needing(timeseries(title, text, query, unit=unit, width=12, limit=limit), LOAD)

    def p99(histogram: str) -> str:
        return promql.quantile(0.99, histogram, RUN, load.LABEL)

    return [
        by_run(
            "TTFT p99 over time",
            "Each run's own. Dashed: the limit chosen above.",
            p99(load.TIME_TO_FIRST_TOKEN),
            "s",
            "$slo_ttft",
        ),
        by_run(
            "TPOT p99 over time",
            "Each run's own. Dashed: the limit chosen above.",
            p99(load.TIME_PER_OUTPUT_TOKEN),
            "s",
            "$slo_tpot",
        ),
        by_run(
            "Finished requests a second",
            "Each run's own, at the client.",
            clientside.attempts(load.LABEL),
            "reqps",
        ),
        by_run(
            "Send lag p99",
            "How late the load generator was: a run with a high one is not comparable.",
            p99(load.SEND_LAG),
            "s",
        ),
    ]


def _gpu() -> list[Panel]:
    where = 'instance=~"$instance"'
    device = "{{instance}} {{gpu}}"

    def of_gpu(
        title: str, text: str, expr: str, unit: str, maximum: float | None = None,
        minimum: float | None = 0, thresholds: Sequence[Threshold] = (), legend: str = device,
        more: Sequence[Query] = (),
    ) -> Panel:  # fmt: skip
        queries = [Query(expr, legend=legend), *more]
        return needing(
            timeseries(title, text, queries, unit=unit, maximum=maximum, minimum=minimum,
                       thresholds=thresholds),
            GPU,
        )  # fmt: skip

    used = f"({server.GPU_MEMORY_USED}{{{where}}} or DCGM_FI_DEV_FB_USED{{{where}}} * 1048576)"
    return [
        of_gpu(
            "Kernel running",
            "Share of time in which any kernel ran. It says nothing about how full the GPU was: "
            "see the next three.",
            f"{server.GPU_UTILIZATION}{{{where}}} or DCGM_FI_DEV_GPU_UTIL{{{where}}} / 100",
            "percentunit",
            1,
        ),
        of_gpu(
            "SMs busy",
            "Share of multiprocessors that worked, over time: what a kernel that runs on a few of "
            "them leaves idle is seen here. From GPM: Hopper and later.",
            f"{server.GPU_SM_ACTIVITY}{{{where}}}",
            "percentunit",
            1,
        ),
        of_gpu(
            "Tensor cores active",
            "Share of cycles in which the tensor pipe worked: high in prefill.",
            f"{server.GPU_TENSOR_ACTIVITY}{{{where}}} "
            f"or DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{where}}}",
            "percentunit",
            1,
        ),
        of_gpu(
            "Memory bandwidth in use",
            "Share of cycles in which device memory moved data: what bounds decode.",
            f"{server.GPU_DRAM_ACTIVITY}{{{where}}} or DCGM_FI_PROF_DRAM_ACTIVE{{{where}}}",
            "percentunit",
            1,
        ),
        of_gpu("Device memory", "Device memory in use by all processes.", used, "bytes"),
        of_gpu(
            "Slope of device memory",
            "Growth over 5 minutes: at steady load a line that stays above 0 is a leak.",
            f"deriv({server.GPU_MEMORY_USED}{{{where}}}[5m]) "
            f"or deriv(DCGM_FI_DEV_FB_USED{{{where}}}[5m]) * 1048576",
            "Bps",
            minimum=None,
            thresholds=[Threshold(1e6, RED)],
        ),
        of_gpu(
            "Power",
            "What the GPU draws. At its limit the clocks fall and so does the speed.",
            f"{server.GPU_POWER}{{{where}}} or DCGM_FI_DEV_POWER_USAGE{{{where}}}",
            "watt",
        ),
        of_gpu(
            "SM clock",
            "A falling clock at high load is a limit of power or heat.",
            f"{server.GPU_SM_CLOCK}{{{where}}} or DCGM_FI_DEV_SM_CLOCK{{{where}}} * 1000000",
            "hertz",
        ),
        of_gpu(
            "Held back",
            "1 while the reason named holds the clocks down: power at its cap, heat, the hardware "
            "itself.",
            f"max by (instance, gpu, reason) ({server.GPU_THROTTLED}{{{where}}})",
            "short",
            1,
            legend=f"{device} {{{{reason}}}}",
        ),
        of_gpu(
            "Temperature",
            "Of the GPU's die.",
            f"{server.GPU_TEMPERATURE}{{{where}}} or DCGM_FI_DEV_GPU_TEMP{{{where}}}",
            "celsius",
        ),
        of_gpu(
            "Memory of torch",
            "What tensors hold, and what torch's allocator has taken from the device: what lies "
            "between is cut into pieces too small to use.",
            f"{server.DEVICE_MEMORY_ALLOCATED}{{{where}}}",
            "bytes",
            legend="{{instance}} tensors",
            more=[
                Query(f"{server.DEVICE_MEMORY_RESERVED}{{{where}}}", "{{instance}} taken"),
            ],
        ),
        of_gpu(
            "Allocator retries",
            "Times a second that torch's allocator had to give memory back to the device and ask "
            "anew. Each stops everything; above 0 memory is too tight.",
            promql.rate(server.DEVICE_ALLOC_RETRIES, where, "instance"),
            "suffix:retries/s",
            legend="{{instance}}",
            thresholds=[Threshold(0.1, RED)],
        ),
        of_gpu(
            "PCIe traffic",
            "Bytes a second to and from the GPU.",
            f"DCGM_FI_PROF_PCIE_TX_BYTES{{{where}}} + DCGM_FI_PROF_PCIE_RX_BYTES{{{where}}}",
            "Bps",
        ),
    ]


def _processes() -> list[Panel]:
    where = 'instance=~"$instance"'
    return [
        timeseries(
            "Processor of each process",
            "Cores that a scraped process keeps busy. A Python server near 1 on its event loop is "
            "at its limit, however idle the machine.",
            [Query(promql.rate("process_cpu_seconds_total", where, "instance"), "{{instance}}")],
            unit="suffix:cores",
        ),
        timeseries(
            "Memory of each process",
            "Memory in RAM of each scraped process.",
            [Query(f"process_resident_memory_bytes{{{where}}}", "{{instance}}")],
            unit="bytes",
        ),
        timeseries(
            "Open descriptors",
            "Share of the file descriptors that a process may open; each stream takes one.",
            [Query(f"process_open_fds{{{where}}} / process_max_fds{{{where}}}", "{{instance}}")],
            unit="percentunit",
            thresholds=[Threshold(0.8, RED)],
        ),
    ]


def _host() -> list[Panel]:
    where = 'instance=~"$instance"'
    idle = promql.rate("node_cpu_seconds_total", f'{where}, mode="idle"', "instance")
    every = promql.rate("node_cpu_seconds_total", where, "instance")
    available = f"node_memory_MemAvailable_bytes{{{where}}}"
    return [
        needing(panel, HOST)
        for panel in (
            timeseries(
                "Processor of the host",
                "Share of all cores that is busy, by whatever runs there.",
                [Query(f"1 - {promql.ratio(idle, every)}", "{{instance}}")],
                unit="percentunit",
                maximum=1,
                thresholds=[Threshold(0.9, RED)],
            ),
            timeseries(
                "Memory of the host",
                "Share of memory that is not available.",
                [Query(f"1 - {available} / node_memory_MemTotal_bytes{{{where}}}", "{{instance}}")],
                unit="percentunit",
                maximum=1,
                thresholds=[Threshold(0.95, RED)],
            ),
            timeseries(
                "Network of the host",
                "Bytes a second, both directions, all interfaces.",
                [
                    Query(
                        promql.rate("node_network_receive_bytes_total", where, "instance"),
                        "{{instance}} in",
                    ),
                    Query(
                        promql.rate("node_network_transmit_bytes_total", where, "instance"),
                        "{{instance}} out",
                    ),
                ],
                unit="Bps",
            ),
        )
    ]
