"""What NVML and torch's allocator tell of GPUs, by stand-ins that answer as the real ones do."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from prony_server.collectors import DeviceMemory
from prony_server.gpu import SHORTEST, GpuCollector


class Nvml:
    """Two GPUs as pynvml shows them: a Hopper, and one that tells of its memory alone."""

    NVML_SUCCESS, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 0, 1, 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10
    nvmlClocksEventReasonSwPowerCap = 0x04
    nvmlClocksEventReasonHwSlowdown = 0x08
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.samples = itertools.count(1)
        self.held: set[int] = set()  # samples that are allocated
        self.compared: list[tuple[int, int]] = []

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(used=(gpu + 1) * 2**30)

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.only_the_first(gpu, 73))

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return self.only_the_first(gpu, 412_500)  # milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        return self.only_the_first(gpu, 9_000_500)  # millijoules

    def nvmlDeviceGetClockInfo(self, gpu: int, which: int) -> int:
        assert which == self.NVML_CLOCK_SM
        return self.only_the_first(gpu, 1_755)  # MHz

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self.only_the_first(gpu, 61)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: int) -> int:
        return self.only_the_first(gpu, 0x04 | 0x01)  # power cap; 0x01 is idle, no reason to worry

    def nvmlGpmQueryDeviceSupport(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int(gpu == 0))

    def nvmlGpmSampleAlloc(self) -> int:
        sample = next(self.samples)
        self.held.add(sample)
        return sample

    def nvmlGpmSampleGet(self, gpu: int, sample: int) -> int:
        return self.only_the_first(gpu, sample)

    def nvmlGpmSampleFree(self, sample: int) -> None:
        self.held.remove(sample)

    @staticmethod
    def c_nvmlGpmMetricsGet_t() -> SimpleNamespace:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(333)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=0, sample2=0, metrics=metrics)

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        assert asked.version == self.NVML_GPM_METRICS_GET_VERSION
        assert {asked.sample1, asked.sample2} <= self.held
        self.compared.append((asked.sample1, asked.sample2))
        values = {2: 81.0, 5: float("nan"), 10: 64.5}
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = values[metric.metricId]
        return asked

    def only_the_first(self, gpu: int, value: int) -> int:
        if gpu:
            raise self.NVMLError("not supported")
        return value


class Registry(CollectorRegistry):
    """With a clock that stands still until it is moved."""

    def __init__(self, nvml: Nvml) -> None:
        super().__init__()
        self.now = 100.0
        self.register(GpuCollector(nvml, lambda: self.now))

    def of(self, name: str, **labels: str) -> float | None:
        return self.get_sample_value(f"prony_gpu_{name}", {"gpu": "0", **labels})


def test_what_a_gpu_tells_comes_in_base_units() -> None:
    registry = Registry(Nvml())
    assert registry.of("utilization_ratio") == 0.73
    assert registry.of("memory_used_bytes") == 2**30
    assert registry.of("power_watts") == 412.5
    assert registry.of("energy_joules_total") == 9000.5
    assert registry.of("sm_clock_hertz") == 1.755e9
    assert registry.of("temperature_celsius") == 61
    assert registry.of("throttled", reason="power_cap") == 1
    assert registry.of("throttled", reason="thermal") == 0


def test_a_gpu_that_does_not_say_is_absent_and_not_zero() -> None:
    text = generate_latest(Registry(Nvml())).decode()
    second = [line for line in text.splitlines() if 'gpu="1"' in line]
    assert second == ['prony_gpu_memory_used_bytes{gpu="1"} 2.147483648e+09']


def test_activity_is_of_the_time_between_two_scrapes_and_absent_before_the_second() -> None:
    nvml = Nvml()
    registry = Registry(nvml)
    assert registry.of("sm_activity_ratio") is None
    registry.now += 2.0
    assert registry.of("sm_activity_ratio") == 0.81
    assert registry.of("dram_activity_ratio") == 0.645  # asked at the same time: not sampled anew
    assert registry.of("tensor_activity_ratio") is None  # GPM gave no number
    registry.now += 2 * SHORTEST
    assert registry.of("dram_activity_ratio") == 0.645
    assert nvml.compared == [(1, 2), (2, 3)]
    assert nvml.held == {3}


def test_a_gpu_that_is_lost_between_two_scrapes_is_absent() -> None:
    nvml = Nvml()
    registry = Registry(nvml)
    registry.now += 2.0
    assert registry.of("sm_activity_ratio") == 0.81
    nvml.only_the_first = lost  # type: ignore[method-assign]
    registry.now += 2.0
    assert registry.of("sm_activity_ratio") is None
    assert registry.of("power_watts") is None
    assert len(nvml.held) == 1


def lost(gpu: int, value: int) -> int:
    raise Nvml.NVMLError("GPU is lost")


@pytest.mark.parametrize(
    ("stats", "told"),
    [
        (
            {
                "allocated_bytes.all.current": 2**30,
                "reserved_bytes.all.current": 2**31,
                "num_alloc_retries": 3,
                "num_ooms": 1,
            },
            {
                "prony_device_memory_allocated_bytes": 2**30,
                "prony_device_memory_reserved_bytes": 2**31,
                "prony_device_alloc_retries_total": 3,
            },
        ),
        ({}, {}),  # torch before its first allocation
    ],
)
def test_torchs_allocator_is_told_as_far_as_torch_tells_it(
    stats: dict[str, int], told: dict[str, float]
) -> None:
    registry = CollectorRegistry()
    registry.register(DeviceMemory(lambda: stats))
    samples = {s.name: s.value for family in registry.collect() for s in family.samples}
    assert samples == told
