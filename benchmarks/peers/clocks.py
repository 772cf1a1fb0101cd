"""The GPU's clock and power beside the runs, by NVML (libnvidia-ml.so.1)."""

import ctypes
import statistics
import threading
import time

SAMPLE_S = 0.005
# NVML's power and clock change every few ms: shorter loads have too few samples.
LEAST_LOAD_S = 0.5
CLOCK_SM = 1  # nvmlClockType_t
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, mW


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = [("field", ctypes.c_uint), ("scope", ctypes.c_uint),
                ("timestamp", ctypes.c_longlong), ("latency_us", ctypes.c_longlong),
                ("value_type", ctypes.c_int), ("result", ctypes.c_int),
                ("value", ctypes.c_uint), ("padding", ctypes.c_uint)]


class Clocks:
    """Samples while it is entered. Nothing where NVML is missing."""

    def __init__(self):
        self.samples, self.running, self.thread = [], threading.Event(), None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None

    def __enter__(self):
        self.began = time.monotonic()
        if self.nvml is not None and self.nvml.nvmlInit_v2() == 0:
            self.running.set()
            self.thread = threading.Thread(target=self.sample)
            self.thread.start()
        return self

    def __exit__(self, *_):
        if self.thread is not None:
            self.running.clear()
            self.thread.join()
            self.nvml.nvmlShutdown()

    def sample(self):
        device, mhz = ctypes.c_void_p(), ctypes.c_uint()
        if self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) != 0:
            return
        while self.running.is_set():
            power = FieldValue(field=POWER_INSTANT)
            failed = self.nvml.nvmlDeviceGetClockInfo(device, CLOCK_SM, ctypes.byref(mhz))
            failed |= self.nvml.nvmlDeviceGetFieldValues(device, 1, ctypes.byref(power))
            if failed == 0 and power.result == 0:
                self.samples.append((mhz.value, power.value / 1000))
            time.sleep(SAMPLE_S)

    def keep_busy(self, calls):
        """Runs them on until the load was long enough."""
        import torch

        torch.cuda.synchronize()
        while calls and time.monotonic() - self.began < LEAST_LOAD_S:
            for call in calls:
                call()
            torch.cuda.synchronize()

    def state(self):
        """{"sm_mhz_median": .., "power_w_median": .., "clock_samples": ..} of those under load."""
        if not self.samples:
            return {}
        most = max(watt for _, watt in self.samples)
        busy = [sample for sample in self.samples if sample[1] >= 0.6 * most]
        return {"sm_mhz_median": statistics.median(mhz for mhz, _ in busy),
                "power_w_median": statistics.median(watt for _, watt in busy),
                "clock_samples": len(busy)}
