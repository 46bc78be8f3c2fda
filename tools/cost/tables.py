"""Tables of what watching costs, as Markdown, from what `make bench` and `make bench-peers` have measured."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tools.cost.code import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RESULTS = {
    "bench": ROOT / "benchmarks" / "results" / "cost.json",
    "bench-peers": ROOT / "benchmarks" / "results" / "cost-of-peers.json",
}
"""What is measured, by the target of the Makefile that measures it."""

PAGES = (ROOT / "README.md", ROOT / "docs" / "cost.md")
"""Pages with tables, each between a pair of comments."""

BARE, CONTROL = "bare", "bare again"

FAILING = "failing"
"""The training of which every step fails; it has a table of its own."""

QUESTIONS = ("noticed", "module", "op", "line", "remedy")

Measured = dict[str, Any]
"""What a program of `benchmarks/` has written."""

_BLOCK = re.compile(
    r"(?P<begin><!-- cost: (?P<name>[\w-]+), written by python -m tools\.cost -->\n)"
    r".*?(?P<end><!-- cost: end -->)",
    re.DOTALL,
)


def measured() -> dict[str, Measured]:
    """Return what is kept of each measurement, by the target that made it."""
    return {
        target: json.loads(file.read_text(encoding="utf-8")) for target, file in RESULTS.items()
    }


def filled(text: str, kept: dict[str, Measured]) -> str:
    """Return a page with its tables written again.

    Raises:
        KeyError: If a table is not one of these.
    """
    return _BLOCK.sub(
        lambda block: f"{block['begin']}\n{TABLES[block['name']](kept)}\n\n{block['end']}", text
    )


def _markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    marks = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, marks, *rows))


def _with_noise(value: str, noise: str) -> str:
    return f"{value} (noise {noise})"


def _phases(kept: dict[str, Measured], level: str, phase: str) -> list[tuple[Measured, ...]]:
    """Return for each training that goes well its result, and a phase of it at a level and bare again."""
    return [
        (each, each["variants"][level][phase], each["variants"][CONTROL][phase])
        for each in kept["bench"]["results"]
        if level in each["variants"] and each["workload"] != FAILING
    ]


def origin(kept: dict[str, Measured], target: str) -> str:
    """Return a sentence that says when, of which commit, where and with what it was measured."""
    it = kept[target]
    versions = ", ".join(
        f"{name} {version}" for name, version in it["versions"].items() if name != "ampwatch"
    )
    changed = ", changed since" if it["code"]["changed"] else ""
    half = ""
    if not it["conditions"].get("computes_in_bfloat16", True):
        half = ", which has no instructions for bfloat16, so in float32"
    return (
        f"Measured by `make {target}` on {it['date'][:10]}, commit `{it['code']['commit']}`{changed}, on "
        f"{it['machine']['cores']} cores of {it['machine']['cpu']}{half}; {versions}."
    )


def light(kept: dict[str, Measured]) -> str:
    """Return what `light` adds to every step, in microseconds."""
    heads = (
        "training",
        "bare step",
        "median step",
        "mean step",
        "mean, as a ratio",
        "own account",
        "worst step (bare)",
    )
    rows = []
    for each, now, noise in _phases(kept, "light", "after"):
        rows.append(
            (
                each["workload"],
                f"{each['bare_ms']:.2f} ms",
                _with_noise(f"{now['median_us']:+.0f} us", f"{noise['median_us']:+.0f}"),
                _with_noise(f"{now['mean_us']:+.0f} us", f"{noise['mean_us']:+.0f}"),
                _with_noise(f"{now['cpu_ratio']:.3f}", f"{noise['cpu_ratio']:.3f}"),
                f"{now['own_us']:.0f} us",
                _worst(now),
            )
        )
    return _markdown(heads, rows)


def _worst(now: Measured) -> str:
    return f"{now['worst_ms']:.1f} ms ({now['worst_bare_ms']:.1f})"


def opening(kept: dict[str, Measured]) -> str:
    """Return what the first steps cost at `standard`, where most is looked at for the first time."""
    steps = next((now["steps"] for _, now, _ in _phases(kept, "standard", "opening")), 0)
    heads = (
        "training",
        "bare step",
        f"first {steps} steps",
        "by the clock",
        "dearest 50 in a row",
        "first 32",
        "worst step (bare)",
    )
    rows = [
        (
            each["workload"],
            f"{each['bare_ms']:.2f} ms",
            *(
                _with_noise(f"{now[key]:.3f}", f"{noise[key]:.3f}")
                for key in ("cpu_ratio", "wall_ratio", "window_ratio", "first_ratio")
            ),
            _worst(now),
        )
        for each, now, noise in _phases(kept, "standard", "opening")
    ]
    return _markdown(heads, rows)


def standard(kept: dict[str, Measured]) -> str:
    """Return what `standard` costs after that."""
    heads = (
        "training",
        "steps",
        "total",
        "by the clock",
        "difference",
        "own account",
        "worst step (bare)",
    )
    rows = [
        (
            each["workload"],
            f"{now['steps']}",
            _with_noise(f"{now['cpu_ratio']:.3f}", f"{noise['cpu_ratio']:.3f}"),
            _with_noise(f"{now['wall_ratio']:.3f}", f"{noise['wall_ratio']:.3f}"),
            f"{now['mean_us']:+.0f} us",
            f"{now['own_us']:.0f} us, {now['own_us'] / (1e3 * each['bare_ms']):.2%}",
            _worst(now),
        )
        for each, now, noise in _phases(kept, "standard", "after")
    ]
    return _markdown(heads, rows)


def deep(kept: dict[str, Measured]) -> str:
    """Return what `deep` costs, which looks at every op of every step."""
    heads = ("training", "bare step", "total", "by the clock", "worst step (bare)")
    rows = [
        (
            each["workload"],
            f"{each['bare_ms']:.2f} ms",
            _with_noise(f"{now['cpu_ratio']:.2f}", f"{noise['cpu_ratio']:.3f}"),
            _with_noise(f"{now['wall_ratio']:.2f}", f"{noise['wall_ratio']:.3f}"),
            _worst(now),
        )
        for each, now, noise in _phases(kept, "deep", "after")
    ]
    return _markdown(heads, rows)


def failing(kept: dict[str, Measured]) -> str:
    """Return what a training costs whose steps fail, all of them."""
    heads = ("level", "bare step", "first 32 steps", "steps 51 to 400", "worst step (bare)")
    rows = [
        (
            f"`{level}`",
            f"{each['bare_ms']:.2f} ms",
            *(
                _with_noise(
                    f"{each['variants'][level]['opening'][key]:.2f}",
                    f"{each['variants'][CONTROL]['opening'][key]:.3f}",
                )
                for key in ("first_ratio", "later_ratio")
            ),
            _worst(each["variants"][level]["opening"]),
        )
        for each in kept["bench"]["results"]
        for level in ("light", "standard")
        if each["workload"] == FAILING
    ]
    return _markdown(heads, rows) if rows else "Not measured yet."


def peers(kept: dict[str, Measured]) -> str:
    """Return what each tool costs on each training: sums of CPU time, and the worst step."""
    results = kept["bench-peers"]["results"]
    if not results:
        return "Not measured yet."
    heads = ["", *(f"{r['workload']}, {r['bare_ms']:.0f} ms" for r in results), "host syncs a step"]
    rows = []
    for name in results[0]["variants"]:
        ratios = [
            f"{r['variants'][name]['cpu_ratio']:.2f} (x {r['variants'][name]['worst_ms'] / r['bare_ms']:.1f})"
            for r in results
        ]
        rows.append((_named(name), *ratios, syncs(kept, name)))
    return _markdown(heads, rows)


def _named(name: str) -> str:
    return "a second bare run" if name == CONTROL else name


def syncs(kept: dict[str, Measured], name: str) -> str:
    """Return how many host syncs a tool adds to a step, as text; empty where it was not counted."""
    told = kept["bench-peers"]["told"]
    if name not in told or told[name]["syncs"] is None or told[BARE]["syncs"] is None:
        return ""
    return f"{told[name]['syncs'] - told[BARE]['syncs']:+.4g}"


def told(kept: dict[str, Measured]) -> str:
    """Return what each tool told about the same planted overflow."""
    heads = ("", *QUESTIONS)
    rows = []
    for name, it in kept["bench-peers"]["told"].items():
        if name != BARE:
            rows.append((name, *(_answer(it["answers"][question]) for question in QUESTIONS)))
    return _markdown(heads, rows)


def _answer(answer: Measured) -> str:
    if not answer["said"]:
        return "-"
    return "yes" if answer["right"] else "another one"


TABLES: dict[str, Callable[[dict[str, Measured]], str]] = {
    "origin": lambda kept: origin(kept, "bench"),
    "origin-of-peers": lambda kept: origin(kept, "bench-peers"),
    "light": light,
    "opening": opening,
    "standard": standard,
    "deep": deep,
    "failing": failing,
    "peers": peers,
    "told": told,
}
"""What can stand between comments of a page, by its name there."""
