"""Figures of the machine: null where there is no GPU, and where a GPU does not measure."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from andrea.serve.machine import Machine

GPU = ["gpu_util", "gpu_mem_used", "gpu_mem_total", "gpu_power_w", "gpu_power_limit_w", "gpu_temp_c"]
KEYS = [*GPU, "cpu_load_1m", "cpu_cores", "mem_used", "mem_total"]


class NVMLError(Exception):
    """As the library has one."""


def fake_nvml(**changes):
    """Return a library that knows one card."""

    def handle(index):
        if index:
            raise NVMLError
        return "card"

    calls = {
        "NVMLError": NVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=93),
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(used=5 * 2**30, total=80 * 2**30),
        "nvmlDeviceGetPowerUsage": lambda card: 412_345,
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: 700_000,
        "nvmlDeviceGetTemperature": lambda card, sensor: 61,
    }
    return SimpleNamespace(**{**calls, **changes})


def fails(*arguments):
    raise NVMLError


@pytest.fixture
def nvml(monkeypatch):
    """Return a function that installs a library; None: there is none."""
    return lambda library: monkeypatch.setitem(sys.modules, "pynvml", library)


def test_a_card_is_measured(nvml):
    """Percent, bytes, watts, degrees Celsius."""
    nvml(fake_nvml())
    figures = Machine().figures()
    assert list(figures) == KEYS
    assert list(figures.values())[:6] == [93, 5 * 2**30, 80 * 2**30, 412.345, 700.0, 61]


def test_what_a_card_does_not_measure_is_null(nvml):
    """And all else is there."""
    nvml(fake_nvml(nvmlDeviceGetPowerUsage=fails))
    figures = Machine().figures()
    assert figures["gpu_power_w"] is None
    assert figures["gpu_power_limit_w"] == 700.0


@pytest.mark.parametrize(
    ("library", "gpu"),
    [(None, 0), (fake_nvml(nvmlInit=fails), 0), (fake_nvml(), 1)],
    ids=["no library", "no driver", "no card"],
)
def test_without_a_card_its_figures_are_null(nvml, library, gpu):
    """Those of the computer are not."""
    nvml(library)
    figures = Machine(gpu).figures()
    assert list(figures) == KEYS
    assert [figures[key] for key in GPU] == [None] * 6
    assert figures["cpu_cores"] >= 1
    assert 0 < figures["mem_used"] <= figures["mem_total"]
    assert figures["cpu_load_1m"] >= 0


def test_the_library_has_what_is_asked_of_it():
    """The stand-in above knows no name that nvidia-ml-py does not have."""
    import pynvml

    assert [name for name in vars(fake_nvml()) if not hasattr(pynvml, name)] == []
    assert issubclass(pynvml.NVMLError, Exception)
