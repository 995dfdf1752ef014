"""Memory there is, and memory that a call takes: a device and a call in, bytes out."""

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device's memory; on a CPU of RAM, as far as this process may use it."""

    total: int
    free: int


def memory_of(device: torch.device) -> Memory:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(int(total), int(free))
    return Memory(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available_memory(),
    )


def available_memory() -> int:
    """Bytes of RAM that this process can still take: the machine's, or its container's if less."""
    free = _meminfo_available()
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text()
        used = Path("/sys/fs/cgroup/memory.current").read_text()
        return max(0, min(free, int(most) - int(used)))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return free


def peak_of(call: Callable[[], object], device: torch.device) -> int:
    """Bytes that the device's memory grew by, at most, while the call went on.

    On a GPU all that the process took, fragments and libraries' workspaces too. On Linux the peak
    of resident memory; elsewhere the growth of the highest that it ever was, which may be 0. Memory
    that the process already held is found again by the engine's steps, so it rightly counts as 0.
    """
    if device.type == "cuda":
        return _peak_on_cuda(call, device)
    try:
        (_PROCESS / "clear_refs").write_text("5")  # the highest so far becomes what is now
        before, highest = _status("VmRSS"), "VmHWM"
    except OSError:
        before, highest = _highest_ever(), ""
    call()
    return max(0, (_status(highest) if highest else _highest_ever()) - before)


def _peak_on_cuda(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    reserved = torch.cuda.memory_reserved(device)
    others = _held_by_others(device)
    call()
    torch.cuda.synchronize(device)
    grown = torch.cuda.max_memory_reserved(device) - reserved
    return grown + max(0, _held_by_others(device) - others)


def _held_by_others(device: torch.device) -> int:
    """What is taken of the device, but not by torch's allocator here: contexts, workspaces."""
    memory = memory_of(device)
    return memory.total - memory.free - torch.cuda.memory_reserved(device)


def _highest_ever() -> int:
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def _status(name: str) -> int:
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # Not Linux: half of what is installed.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
