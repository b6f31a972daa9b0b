"""Two facts that NVML lacks, asked of the CUDA driver: size of the L2 cache and number of SMs. No context is made."""

import ctypes

_L2_CACHE_SIZE = 38
_MULTIPROCESSOR_COUNT = 16


def l2_and_sm_count() -> tuple[int, int] | None:
    """Return L2 bytes and number of SMs of the first CUDA device; None without a usable driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        device, l2_bytes, num_sms = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        calls = (
            lambda: driver.cuInit(0),
            lambda: driver.cuDeviceGet(ctypes.byref(device), 0),
            lambda: driver.cuDeviceGetAttribute(ctypes.byref(l2_bytes), _L2_CACHE_SIZE, device),
            lambda: driver.cuDeviceGetAttribute(ctypes.byref(num_sms), _MULTIPROCESSOR_COUNT, device),
        )
        if any(call() != 0 for call in calls):
            return None
    except (OSError, AttributeError):
        return None
    return l2_bytes.value, num_sms.value
