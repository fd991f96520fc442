"""Figures of the machine that the server runs on: its GPU, its processors, its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil


class Machine:
    """Asks the system and, through NVML, one GPU; what cannot be had is None.

    Parameters
    ----------
    gpu
        Index of the GPU, as ``nvidia-smi`` counts.
    """

    def __init__(self, gpu: int = 0) -> None:
        self._nvml, self._card = _open(gpu)

    def figures(self) -> dict[str, float | None]:
        """Return utilisation in percent, memory in bytes, power in watts, temperature in degrees Celsius."""
        memory = psutil.virtual_memory()
        return {
            "gpu_util": self._ask(lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu),
            "gpu_mem_used": self._ask(lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).used),
            "gpu_mem_total": self._ask(lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).total),
            "gpu_power_w": self._ask(lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1000),
            "gpu_power_limit_w": self._ask(lambda nvml, card: nvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1000),
            "gpu_temp_c": self._ask(lambda nvml, card: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)),
            "cpu_load_1m": psutil.getloadavg()[0],
            "cpu_cores": psutil.cpu_count(),
            "mem_used": memory.total - memory.available,
            "mem_total": memory.total,
        }

    def _ask(self, question: Callable[[Any, Any], float]) -> float | None:
        """Return what the card answers; not every card measures everything."""
        if self._nvml is None:
            return None
        try:
            return question(self._nvml, self._card)
        except self._nvml.NVMLError:
            return None


def _open(gpu: int) -> tuple[Any, Any]:
    """Return NVML and the handle of a card; (None, None) where there is no card, no driver or no library."""
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(gpu)
    except pynvml.NVMLError:
        return None, None
