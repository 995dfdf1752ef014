"""Which metric names a board may read: those of the engine map, of ours, and of known exporters."""

from types import ModuleType
from typing import Final

from prony_dashboards.engines import ENGINES
from prony_loadgen import telemetry as load
from prony_server import telemetry as server

# Of prometheus_client's process collector, node-exporter, dcgm-exporter (its default counters) and
# Prometheus itself. slo:... is what `prony rules` records.
EXPORTERS: Final = frozenset(
    {
        "up",
        "ALERTS",
        "slo:sli_error:ratio_rate5m",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "node_cpu_seconds_total",
        "node_memory_MemAvailable_bytes",
        "node_memory_MemTotal_bytes",
        "node_network_receive_bytes_total",
        "node_network_transmit_bytes_total",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "DCGM_FI_PROF_PCIE_RX_BYTES",
    }
)

# Shown by nothing on purpose; whoever adds a metric shows it or says here why not.
NOT_SHOWN: Final = {
    server.KV_BLOCKS_USED: "the ratio is shown",
    server.GPU_ENERGY: "its rate is the power, which is shown; it is for sums over a run",
    server.REQUEST_LOG_DROPPED: "of the log, which is off by default, and not of what is served",
}


def exported_names() -> set[str]:
    """Every metric name that our server's and our load generator's telemetry know."""
    return _constants(server) | _constants(load)


def known_names(engine: str | None) -> set[str]:
    """Every name that a board of this engine may read, or a board that all engines share."""
    if engine is None:
        return exported_names() | EXPORTERS
    return ENGINES[engine].names() | _constants(load) | EXPORTERS


def _constants(module: ModuleType) -> set[str]:
    # Names are the module's upper-case strings that could be one: "prony" and "run_id" could too,
    # but no query selects those.
    found = (value for name, value in vars(module).items() if name.isupper())
    return {value for value in found if isinstance(value, str) and value.count("_") >= 2}
