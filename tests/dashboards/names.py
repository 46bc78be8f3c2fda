"""Which metrics, labels and values an expression may speak of: those of the catalogue, and a few more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.host.fleet.gpus import (
    CAPABILITY_STATES,
    TENSOR_PIPES,
    THROTTLE_REASONS,
    Feature,
    Reason,
)
from ampwatch.host.metrics.catalog import CATALOG
from ampwatch.host.metrics.kernels import PROFILER_PARTS
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.metrics.scopes import DTYPES, NO_DTYPE, OTHER_DTYPE
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.numerics.whatif import Fit
from ampwatch.report.op_shares import Absence
from ampwatch.report.verdict import Level
from ampwatch.wire.records import (
    KERNEL_UNITS,
    SKIP_CLASSES,
    CensusSource,
    RunState,
    Severity,
    Topic,
    WindowSkip,
)
from tests.dashboards.labels import Labels
from tests.dashboards.promql import Matcher, PromQLError, parse, selectors

TARGET = frozenset({"job", "instance"})
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
EXPORTED: dict[str, frozenset[str]] = {
    metric.name + suffix: frozenset(metric.labels)
    | TARGET
    | ({"le"} if suffix == "_bucket" else set())
    for metric in CATALOG
    for suffix in _SUFFIXES.get(metric.type, ("",))
}
"""Labels of every series of ampwatch, by the name under which it is queried."""

FOREIGN: dict[str, frozenset[str]] = {
    "up": TARGET,
    "scrape_duration_seconds": TARGET,
    "scrape_samples_scraped": TARGET,
    "ALERTS": TARGET | {"alertname", "alertstate", "severity"} | frozenset(LABELS),
    "ALERTS_FOR_STATE": TARGET | {"alertname", "severity"} | frozenset(LABELS),
}
"""Series that Prometheus makes itself."""

_VALUES: tuple[tuple[str, str, frozenset[str]], ...] = tuple(
    (metric, label, frozenset(values))
    for metric, label, values in (
        ("ampwatch_run_state", "state", [state.value for state in RunState]),
        ("ampwatch_run_health", "health", [level.label for level in Level]),
        ("ampwatch_root_info", "kind", KINDS),
        ("ampwatch_root_info", "severity", ["critical", "warning"]),
        ("ampwatch_rank_failure_info", "cause", ["true", "false"]),
        (".*_capability", "state", CAPABILITY_STATES),
        ("ampwatch_gpu_capability", "reason", [reason.value for reason in Reason]),
        (
            "ampwatch_precision_capability",
            "reason",
            [*(a.value for a in Absence), *(s.label for s in CensusSource)],
        ),
        ("ampwatch_precision_capability", "feature", ["ops", "kernels", "arithmetic"]),
        ("ampwatch_gpu_capability", "feature", ["nvml", "uuid", *(f.value for f in Feature)]),
        ("ampwatch_gpu_throttle_.*", "reason", [*THROTTLE_REASONS, "thermal"]),
        (
            "ampwatch_autocast_fallback_.*",
            "reason",
            [f.label for f in Fallback if f is not Fallback.NONE],
        ),
        ("ampwatch_profiler_windows_skipped_total", "reason", [skip.label for skip in WindowSkip]),
        (".*_nonfinite_elements_total", "kind", ["nan", "inf"]),
        ("ampwatch_finding.*", "kind", KINDS),
        ("ampwatch_finding.*", "severity", [severity.value for severity in Severity]),
        ("ampwatch_finding.*", "root", ["true", "false"]),
        ("ampwatch_gpu_ecc_errors_total", "severity", ["corrected", "uncorrected"]),
        ("ampwatch_gpu_info", "synthetic", ["true", "false"]),
        (".*", "class", [skip.label for skip in SKIP_CLASSES]),
        (".*", "collector", ["rings", "gpu"]),
        (".*", "domain", ["sm", "memory"]),
        (".*", "fit", [fit.value for fit in Fit]),
        (".*_format_fit", "format", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]),
        (".*_block_.*", "format", [fmt.name for fmt in FORMATS.values() if fmt.block is not None]),
        (".*", "op_kind", [kind.label for kind in OpKind if kind is not OpKind.CAST]),
        (".*", "optimizer", [*map(str, range(8)), "other"]),
        (".*", "part", PROFILER_PARTS),
        (".*", "pipe", TENSOR_PIPES),
        (".*", "topic", [topic.label for topic in Topic]),
        (".*", "unit", KERNEL_UNITS[:-1]),
        (".*", "views", ["hardware_kernels", "hardware_arithmetic", "kernels_arithmetic"]),
        *(
            (".*", label, [*DTYPES, OTHER_DTYPE, NO_DTYPE])
            for label in ("dtype", "from_dtype", "to_dtype")
        ),
        ("ALERTS", "alertstate", ["pending", "firing"]),
        ("ALERTS", "severity", ["critical", "warning", "info"]),
    )
)


def vocabulary(metric: str, label: str) -> frozenset[str] | None:
    """Return the values that ``label`` of ``metric`` can have, ``None`` where anything may stand."""
    for pattern, name, values in _VALUES:
        if name == label and re.fullmatch(pattern, metric):
            return values
    return None


def _alternatives(pattern: str) -> list[str]:
    """Split a regular expression at the bars that stand outside of parentheses."""
    parts, depth = [""], 0
    for character in pattern:
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _unknown_values(metric: str, matcher: Matcher) -> list[str]:
    values = vocabulary(metric, matcher.label)
    if values is None or "$" in matcher.value:
        return []
    if matcher.operator in {"=", "!="}:
        return [matcher.value] if matcher.value and matcher.value not in values else []
    return [
        part
        for part in _alternatives(matcher.value)
        if not any(re.fullmatch(part, value) for value in values)
    ]


class Names:
    """Names that an expression may speak of.

    Args:
        recorded: Labels of recording rules, by their names.
    """

    def __init__(self, recorded: Mapping[str, Iterable[str]] | None = None) -> None:
        further = {name: frozenset(labels) for name, labels in (recorded or {}).items()}
        self._known = {**EXPORTED, **FOREIGN, **further}

    def labels_of(self, metric: str) -> frozenset[str]:
        """Return the labels of ``metric``; none of one that is not known, which is told elsewhere."""
        return self._known.get(metric, frozenset())

    def problems(
        self, expression: str, legend: str = "", *, extra: Iterable[str] = ()
    ) -> list[str]:
        """Return what ``expression`` speaks of that is not there, in words.

        Args:
            expression: PromQL, with Grafana's variables or without.
            legend: Text with ``{{label}}`` for labels of the answer.
            extra: Labels that the answer gets from elsewhere, as those of an alert.
        """
        try:
            tree = parse(expression)
        except PromQLError as error:
            return [str(error)]
        found = []
        for selector in selectors(tree):
            if selector.name not in self._known:
                found.append(f"{selector.name}: no such metric")
                continue
            for matcher in selector.matchers:
                if matcher.label not in self._known[selector.name]:
                    found.append(f"{selector.name} has no label {matcher.label}")
                found += [
                    f"{selector.name}: {matcher.label} is never {value!r}"
                    for value in _unknown_values(selector.name, matcher)
                ]
        if found:
            return list(dict.fromkeys(found))
        labels = Labels(self.labels_of)
        answer = labels.of(tree) | frozenset(extra)
        missing = sorted(set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend)) - answer)
        return labels.problems + [f"legend: the answer has no label {name}" for name in missing]


def metrics(expression: str) -> set[str]:
    """Return the names of the metrics that ``expression`` reads, as the catalogue has them."""
    families = {
        metric.name + suffix: metric.name
        for metric in CATALOG
        for suffix in _SUFFIXES.get(metric.type, ("",))
    }
    return {families.get(selector.name, selector.name) for selector in selectors(expression)}
