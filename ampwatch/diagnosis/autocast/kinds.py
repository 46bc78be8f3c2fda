"""Kinds of findings about where autocast is on."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, certain, very_likely
from ampwatch.wire.records import Severity

AUTOCAST_INACTIVE = Kind(
    slug="autocast_inactive",
    number=29,
    family=KindFamily.AUTOCAST_STATE,
    meaning="code that should run under autocast runs in float32",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=very_likely("this program uses autocast, and these ops ran outside of it"),
    advice=(
        "Enter torch.autocast(device_type, dtype) inside the function that the thread runs (in"
        " forward, for DataParallel). Pass the device type of the tensors to torch.autocast and"
        " torch.amp.GradScaler: autocast is set per thread and per device type."
    ),
)


COMPILE_BACKWARD_AUTOCAST = Kind(
    slug="compile_backward_autocast",
    number=53,
    family=KindFamily.AUTOCAST_STATE,
    meaning="the compiled backward pass runs under the autocast of the forward",
    severities=(Severity.CRITICAL,),
    certainty=certain(
        "the compiled function was called with autocast on, and PyTorch's setting makes its backward run so"
    ),
    advice=(
        "Set torch._functorch.config.backward_pass_autocast = 'off' before anything is compiled, or"
        " enter torch.autocast inside the compiled function instead of around it."
    ),
)


STALE_AUTOCAST_CACHE = Kind(
    slug="stale_autocast_cache",
    number=52,
    family=KindFamily.AUTOCAST_STATE,
    meaning="autocast uses weights as they were before their last update",
    severities=(Severity.CRITICAL,),
    certainty=certain(
        "weights changed while the autocast region that had cached their casts was still open"
    ),
    advice=(
        "Leave torch.autocast before optimizer.step() and enter it again for the next forward. Else"
        " call torch.clear_autocast_cache() after each step, or use"
        " torch.autocast(device_type, dtype, cache_enabled=False)."
    ),
    proven_late=2,
)
