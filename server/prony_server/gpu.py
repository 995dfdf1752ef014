"""What NVML tells of each GPU, read when scraped; what it will not tell is absent, never 0."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prony_server import telemetry as names

# Why the clocks are held down: NVML's constants, and what the label calls them.
THROTTLES: Final = {
    "nvmlClocksEventReasonSwPowerCap": "power_cap",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware_thermal",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power_brake",
    "nvmlClocksEventReasonHwSlowdown": "hardware",
}
# GPM's metrics, in percent of the time between two samples.
_ACTIVITIES: Final = (
    (names.GPU_SM_ACTIVITY, "Share of SMs that were busy", "NVML_GPM_METRIC_SM_UTIL"),
    (names.GPU_TENSOR_ACTIVITY, "Tensor cores in use", "NVML_GPM_METRIC_ANY_TENSOR_UTIL"),
    (names.GPU_DRAM_ACTIVITY, "Memory bandwidth in use", "NVML_GPM_METRIC_DRAM_BW_UTIL"),
)
SHORTEST: Final = 0.1  # seconds between two GPM samples: a shorter time tells nothing


class GpuCollector(Collector):
    def __init__(self, nvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the pynvml module, initialised."""
        self._nvml = nvml
        self._gpus = [
            (str(index), nvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(nvml.nvmlDeviceGetCount())
        ]
        self._activity = {index: _Activity(nvml, gpu, clock) for index, gpu in self._gpus}

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        nvml = self._nvml
        for name, text, read in (
            (
                names.GPU_UTILIZATION,
                "Share of time in which a kernel was running",
                lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            ),
            (
                names.GPU_MEMORY_USED,
                "Device memory in use by all processes",
                lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
            ),
            (names.GPU_POWER, "Drawn now", lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
            (
                names.GPU_ENERGY,
                "Used since the driver was loaded",
                lambda gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
            ),
            (
                names.GPU_SM_CLOCK,
                "Of the SMs, now",
                lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6,
            ),
            (
                names.GPU_TEMPERATURE,
                "Of the die",
                lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            ),
        ):
            yield from self._family(name, text, read)
        yield from self._throttled()
        yield from self._activities()

    def _family(self, name: str, text: str, read: Callable[[Any], float]) -> Iterator[Metric]:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, text, labels=("gpu",))
        for index, gpu in self._gpus:
            with contextlib.suppress(self._nvml.NVMLError):
                family.add_metric((index,), read(gpu))
        if family.samples:
            yield family

    def _throttled(self) -> Iterator[Metric]:
        nvml = self._nvml
        family = GaugeMetricFamily(
            names.GPU_THROTTLED, "1 while this holds the clocks down", labels=("gpu", "reason")
        )
        for index, gpu in self._gpus:
            with contextlib.suppress(nvml.NVMLError):
                now = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
                for constant, reason in THROTTLES.items():
                    held = bool(now & getattr(nvml, constant))
                    family.add_metric((index, reason), float(held))
        if family.samples:
            yield family

    def _activities(self) -> Iterator[Metric]:
        read = {index: activity.read() for index, activity in self._activity.items()}
        for at, (name, text, _) in enumerate(_ACTIVITIES):
            family = GaugeMetricFamily(name, text, labels=("gpu",))
            for index, shares in read.items():
                share = shares[at] if shares else None
                if share is not None:
                    family.add_metric((index,), share)
            if family.samples:
                yield family


class _Activity:
    """GPM of one GPU: the time since the last reading, as shares; nothing where it has no GPM."""

    def __init__(self, nvml: Any, gpu: Any, clock: Callable[[], float]) -> None:
        self._nvml, self._gpu, self._clock = nvml, gpu, clock
        self._sample: Any = None
        self._sampled = clock()
        self._shares: tuple[float | None, ...] = ()
        self._lock = threading.Lock()  # two may scrape at once
        with contextlib.suppress(nvml.NVMLError):
            if nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
                self._sample = self._new()

    def read(self) -> tuple[float | None, ...]:
        """In the order of _ACTIVITIES; what two scrapes at nearly one time ask for is the same."""
        with self._lock:
            now = self._clock()
            if self._sample is not None and now - self._sampled >= SHORTEST:
                self._renew(now)
            return self._shares

    def _renew(self, now: float) -> None:
        nvml = self._nvml
        self._shares = ()
        with contextlib.suppress(nvml.NVMLError):
            newer = self._new()
            older, self._sample, self._sampled = self._sample, newer, now
            try:
                self._shares = self._between(older, newer)
            finally:
                nvml.nvmlGpmSampleFree(older)

    def _new(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        try:
            return self._nvml.nvmlGpmSampleGet(self._gpu, sample)
        except self._nvml.NVMLError:
            self._nvml.nvmlGpmSampleFree(sample)
            raise

    def _between(self, older: Any, newer: Any) -> tuple[float | None, ...]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_ACTIVITIES)
        asked.sample1, asked.sample2 = older, newer
        for at, (_, _, metric) in enumerate(_ACTIVITIES):
            asked.metrics[at].metricId = getattr(nvml, metric)
        nvml.nvmlGpmMetricsGet(asked)
        got = [asked.metrics[at] for at in range(len(_ACTIVITIES))]
        return tuple(
            m.value / 100 if m.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(m.value) else None
            for m in got
        )


def register_gpus(registry: CollectorRegistry) -> bool:
    """Adds the GPUs' series where NVML and a GPU exist; says whether it did."""
    try:
        import pynvml
    except ImportError:
        return False
    try:
        pynvml.nvmlInit()
        collector = GpuCollector(pynvml)
    except pynvml.NVMLError:
        return False
    registry.register(collector)
    return True
