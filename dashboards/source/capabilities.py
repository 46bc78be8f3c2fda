"""Words for why something is absent, of GPUs and of precision."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, NEUTRAL, WARN, words

STATE_WORDS = words(
    {
        "supported": ("supported", GOOD),
        "unsupported": ("not supported", NEUTRAL),
        "no_permission": ("no permission", WARN),
        "off": ("switched off", NEUTRAL),
        "error": ("error", BAD),
    }
)

PRECISION_FEATURES = words(
    {
        "ops": ("what ops computed in", NEUTRAL),
        "kernels": ("share of tensor cores in the time of kernels", NEUTRAL),
        "arithmetic": ("share of the ceiling", NEUTRAL),
    }
)

PRECISION_REASONS = words(
    {
        "ok": ("it is measured", GOOD),
        "waiting": ("the first measurement is on its way", NEUTRAL),
        "no_gpu": ("the training does not run on a GPU", NEUTRAL),
        "no_matmuls": ("nothing that multiplies matrices was seen", NEUTRAL),
        "unknown_device": ("the peak of this GPU is not known: set peak_flops", WARN),
        "no_peak": ("the peak of one of the dtypes is not known: set peak_flops", WARN),
        "no_step_time": ("too few steps to know how long one takes", NEUTRAL),
        "dispatch": ("counted one by one", GOOD),
        "profiler": ("counted from profiler windows: dtypes and FLOPs, no reasons", NEUTRAL),
        "forced_eager": ("counted one by one, compiled code run eagerly meanwhile", NEUTRAL),
    }
)

GPU_REASONS = words(
    {
        "ok": ("it is read", GOOD),
        "waiting": ("the first value is on its way: GPM needs two looks", NEUTRAL),
        "no_data": ("the driver has no value right now", NEUTRAL),
        "switched_off": ("a setting switches it off", NEUTRAL),
        "not_supported": ("this GPU, or the mode it is in, does not have it", NEUTRAL),
        "not_in_driver": ("the driver is too old for it: update it", WARN),
        "not_in_binding": ("the package nvidia-ml-py is too old for it: update it", WARN),
        "no_permission": ("the daemon's user may not ask for it", WARN),
        "no_devices": ("NVML shows no GPU to the daemon: give it the devices", WARN),
        "library_not_found": ("there is no NVIDIA driver here", NEUTRAL),
        "library_unusable": ("libnvidia-ml.so.1 cannot be loaded: see the daemon's log", BAD),
        "driver_not_loaded": ("the NVIDIA driver is not loaded", WARN),
        "binding_not_found": ("the package nvidia-ml-py is not installed", BAD),
        "version_mismatch": ("the driver was updated: restart the daemon", BAD),
        "not_shown": ("a rank computes on it, and the daemon is not shown it", BAD),
        "gpu_lost": ("the GPU has fallen off the bus: restart the machine", BAD),
        "reset_required": ("the GPU wants to be reset", BAD),
        "timeout": ("the driver hangs", BAD),
        "error": ("an error that the daemon's log names", BAD),
    }
)
