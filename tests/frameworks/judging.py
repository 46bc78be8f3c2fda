"""Judges what was gathered of an environment: one cell for each thing that ampwatch promises there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.frameworks.running import Fault, Outcome

YES, PARTLY, NO = "yes", "partly", "no"

OVERFLOW_KINDS = frozenset({"forward_overflow", "silent_overflow"})
"""Kinds of finding that fit a float16 overflow in one module's forward."""

GRADIENT_KINDS = frozenset({"backward_nonfinite_any_scale", "scale_collapse"})
"""Kinds of finding that fit an infinite gradient of one parameter."""

SCALE_KINDS = frozenset({"scale_collapse", "scale_below_one"})
"""Kinds of finding that follow from either, and are no mistake beside it."""

NO_NAMES = ("optimizer:", "buffer:", "loss", "api", "env")
"""Places of findings that are no name of a module or parameter."""

TIME_OF_DAY = re.compile(r"\d\d:\d\d:\d\d([.,]\d+)?")

Outcomes = dict[Fault, Outcome]


class Cell(NamedTuple):
    """One cell of the matrix.

    Attributes:
        answer: ``yes``, ``partly`` or ``no``.
        note: What is missing; empty for a plain yes.
    """

    answer: str
    note: str = ""


def judge(
    bare: Outcomes,
    watched: Outcomes,
    leftovers: list[str],
    truths: tuple[tuple[str, str], ...] = (),
    dtypes: tuple[str, ...] = ("float16",),
) -> dict[str, Cell]:
    """Return the cells of one environment, watched in one way.

    Args:
        bare: The same program without ampwatch.
        watched: The program, watched.
        leftovers: Rings that nobody has removed.
        truths: Kinds of findings that are made of the healthy training and are true, and why.
        dtypes: Dtypes in which the program multiplies matrices.
    """
    true = dict(truths)
    for outcome in watched.values():
        for report in outcome.reports:
            report["true"] = [f for f in report["findings"] if f["kind"] in true]
            report["findings"] = [f for f in report["findings"] if f["kind"] not in true]
    cells = {column: check(bare, watched, leftovers) for column, check in COLUMNS.items()}
    if cells["ops"].answer == YES:
        cells["ops"] = _products(watched[Fault.NONE], dtypes)
    seen = {f["kind"] for report in watched[Fault.NONE].reports for f in report["true"]}
    if seen and cells["quiet"].answer == YES:
        cells["quiet"] = Cell(YES, "; ".join(true[kind] for kind in sorted(seen)))
    return cells


def names(_: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """Names of modules and parameters in series and findings, against those of the bare model."""
    seen: set[str] = set()
    for outcome in watched.values():
        for rank, told in enumerate(outcome.ranks):
            known = {*told["names"]["modules"], *told["names"]["parameters"]}
            used = outcome.labels("module", rank) | set(_places(outcome, rank))
            if strangers := sorted(used - known - {"(root)", ""}):
                return Cell(NO, f"`{strangers[0]}` is not a name of the bare model")
            seen |= used
    return Cell(YES) if seen else Cell(NO, "no module is named")


def scale(_: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """Loss scale and skips, against what the framework itself counts."""
    for fault, outcome in watched.items():
        for rank, told in enumerate(outcome.ranks):
            scales, skips = told["scales"], len(told["skipped"])
            last = [scale for scale in scales[-1:] if scale is not None]
            if list(outcome.values("ampwatch_loss_scale", rank)) != last:
                return Cell(NO, "the loss scale is not seen")
            seen = {
                "iterations": (
                    outcome.total("ampwatch_steps_total", rank),
                    told["first"] + len(scales),
                ),
                "skips": (outcome.total("ampwatch_optimizer_steps_skipped_total", rank), skips),
                "growths": (
                    outcome.total("ampwatch_loss_scale_growths_total", rank),
                    told["growths"],
                ),
            }
            for what, (counted, true) in seen.items():
                if counted != true:
                    return Cell(PARTLY, f"{counted:.0f} {what} instead of {true}{_with(fault)}")
            for report in outcome.reports:
                if report["identity"]["rank"] == rank and (wrong := _wrong_steps(report, told)):
                    return Cell(PARTLY, wrong)
    return Cell(YES)


def ops(_: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """Ops that were counted in iterations beyond the first; which of them, ``_products`` asks."""
    healthy = watched[Fault.NONE]
    for rank, _told in enumerate(healthy.ranks):
        if healthy.total("ampwatch_census_iterations_total", rank) < 2:
            return Cell(NO, "no ops are counted")
    return Cell(YES)


def _products(healthy: Outcome, dtypes: tuple[str, ...]) -> Cell:
    """Whether matmuls in each of these dtypes were counted on each rank."""
    for dtype in dtypes:
        for rank, _ in enumerate(healthy.ranks):
            if not healthy.total("ampwatch_op_calls_total", rank, op_kind="matmul", dtype=dtype):
                return Cell(PARTLY, f"no {dtype} matmuls among the ops counted")
    return Cell(YES)


def ranges(_: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """Gradients and outputs that were measured, and whether every module with parameters has a series."""
    healthy = watched[Fault.NONE]
    of_modules: set[str] = set()
    for rank, _told in enumerate(healthy.ranks):
        for topic in ("gradient", "activation"):
            if healthy.total("ampwatch_samples_total", rank, topic=topic) < 2:
                return Cell(PARTLY if topic == "activation" else NO, f"no {topic}s are measured")
        of_modules |= healthy.labels("module", rank, "ampwatch_module_gradient_amax")
    owners = {name.rpartition(".")[0] for name in healthy.ranks[0]["names"]["trained"]}
    missing = sorted(owners - of_modules - {""})
    return Cell(PARTLY, f"no gradients of `{missing[0]}`") if missing else Cell(YES)


def overflow(_: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """The planted overflow: its module, on every rank, and nothing else accused."""
    outcome = watched[Fault.OVERFLOW]
    return _found(outcome, Fault.OVERFLOW, OVERFLOW_KINDS, _is_at)


def gradient(_: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """The planted infinite gradient: its parameter, on every rank, and nothing else accused."""
    outcome = watched[Fault.GRADIENT]
    return _found(outcome, Fault.GRADIENT, GRADIENT_KINDS, _names_parameter)


def quiet(_: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """Nothing is said of a healthy training."""
    kinds = {
        finding["kind"]
        for report in watched[Fault.NONE].reports
        for finding in report["findings"]
        if finding["severity"] != "info"
    }
    return Cell(NO, f"{', '.join(sorted(kinds))} in a healthy run") if kinds else Cell(YES)


def identical(bare: Outcomes, watched: Outcomes, __: list[str]) -> Cell:
    """Weights and scales, bit by bit as without ampwatch, healthy and with each fault."""
    for fault, outcome in watched.items():
        for mine, other in itertools.zip_longest(outcome.ranks, bare[fault].ranks):
            if mine is None or other is None or mine["weights"] != other["weights"]:
                return Cell(NO, f"other weights{_with(fault)}")
            if mine["scales"] != other["scales"]:
                return Cell(NO, f"other loss scales{_with(fault)}")
    return Cell(YES)


def clean(bare: Outcomes, watched: Outcomes, leftovers: list[str]) -> Cell:
    """Exit status 0, no traceback, the program's own output, no failed sensor, nothing left behind."""
    for fault, outcome in watched.items():
        if outcome.code != 0:
            how = "hangs" if outcome.code is None else f"ends with {outcome.code}"
            return Cell(NO, f"{how}{_with(fault)}")
        if "Traceback" in outcome.stderr:
            return Cell(NO, f"a traceback on stderr{_with(fault)}")
        if _lines(outcome.stdout) != _lines(bare[fault].stdout):
            return Cell(NO, f"other output{_with(fault)}")
        failed = {
            labels["sensor"]
            for name, labels, value in outcome.samples
            if name == "ampwatch_sensor_errors_total" and value
        }
        if failed:
            return Cell(NO, f"sensors failed{_with(fault)}: {', '.join(sorted(failed))}")
    return Cell(NO, "rings are left behind") if leftovers else Cell(YES)


COLUMNS: Mapping[str, Callable[[Outcomes, Outcomes, list[str]], Cell]] = {
    "names": names,
    "scale and skips": scale,
    "ops": ops,
    "ranges": ranges,
    "overflow found": overflow,
    "gradient found": gradient,
    "quiet": quiet,
    "identical": identical,
    "clean exit": clean,
}


def _lines(stdout: str) -> list[str]:
    """Return the lines, in an order that does not depend on which rank was quicker, without times of day."""
    return sorted(TIME_OF_DAY.sub("", stdout).splitlines())


def _places(outcome: Outcome, rank: int) -> Iterator[str]:
    """Yield the names in the findings of one rank."""
    for finding in _findings(outcome, rank):
        place = finding["where"]
        if not place.startswith(NO_NAMES):
            yield place.removeprefix("param:")


def _findings(outcome: Outcome, rank: int) -> list[dict[str, Any]]:
    return [
        finding
        for report in outcome.reports
        if report["identity"]["rank"] == rank
        for finding in report["findings"]
    ]


def _found(
    outcome: Outcome,
    fault: Fault,
    fitting: frozenset[str],
    is_right: Callable[[dict[str, Any], str], bool],
) -> Cell:
    others: set[str] = set()
    missing = []
    for rank, told in enumerate(outcome.ranks):
        place = told["expected"][fault.value]
        findings = _findings(outcome, rank)
        right = [f for f in findings if f["kind"] in fitting and is_right(f, place)]
        if not right:
            missing.append(rank)
        others |= {
            f"`{f['kind']}` in `{f['where']}`"
            for f in findings
            if f["root"]
            and f["severity"] != "info"
            and f["kind"] not in SCALE_KINDS
            and f not in right
        }
    besides = f"{', '.join(sorted(others))} as a cause of its own" if others else ""
    if len(missing) == len(outcome.ranks):
        return Cell(NO, f"not named{'; ' + besides if besides else ''}")
    if missing:
        return Cell(PARTLY, f"named on some ranks only{'; ' + besides if besides else ''}")
    return Cell(PARTLY, besides) if besides else Cell(YES)


def _is_at(finding: dict[str, Any], place: str) -> bool:
    return bool(finding["where"] == place)


def _names_parameter(finding: dict[str, Any], place: str) -> bool:
    words = f"{finding['summary']} {finding['advice']}".split()
    return finding["where"] == f"param:{place}" or place in (word.strip("().,;:") for word in words)


def _wrong_steps(report: dict[str, Any], told: dict[str, Any]) -> str:
    """Return what differs first between the iterations of a report and those of the program."""
    columns = report["steps"]["columns"]
    step, after = columns.index("step"), columns.index("loss_scale")
    scales = dict(enumerate(told["scales"], told["first"]))
    for row in report["steps"]["rows"]:
        if row[step] not in scales:
            return f"iterations are not counted from {told['first']}"
        true = scales[row[step]]
        if true is not None and row[after] != true:
            return f"loss scale {row[after]:g} in iteration {row[step]} instead of {true:g}"
    return ""


def _with(fault: Fault) -> str:
    return f" with the {fault.value} planted" if fault.value else ""
