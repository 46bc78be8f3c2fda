"""What each tool tells about the same planted overflow, by rules that a reader can check.

    python benchmarks/told.py                       all tools, some two minutes
    python benchmarks/told.py DebugUnderflowOverflow --keep DIRECTORY

Each tool watches `planted.py` twice in programs of its own, once with the overflow and once without. Judged is
what it printed and wrote in the first one alone: lines that are in both, numbers aside, say nothing of the
overflow. What is quoted is in the result, right or wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from companions import COMPANIONS
from conditions import version_of
from planted import LINE, MODULE, OP

MAX_SECONDS = 240
"""Time that a tool has for sixty steps, its start and its end."""

ALARM = re.compile(
    r"\b(nans?|infs?|infinity|infinite|infinities|overflow\w*|non-?finite|skipped)\b", re.IGNORECASE
)
"""Words of which a line has one if it says that something is not finite."""

QUESTIONS = ("noticed", "module", "op", "line", "remedy")
NOT_ASKED = (
    "bare",
    "bare again",
    "a dispatch mode that does nothing",
    "wandb.watch",
    "TensorBoard add_histogram, every 50th step",
)
"""What is not asked: nothing, and what looks at no step of sixty, or is the same as its neighbour."""


@dataclass(frozen=True)
class Reader:
    """Where a tool says what went wrong: patterns with one group, searched in what is new.

    Attributes:
        module: The module where it began.
        op: The op.
        line: File and line.
        remedy: What to change.
    """

    module: str = ""
    op: str = ""
    line: str = ""
    remedy: str = ""


AMPWATCH = Reader(
    module=r"Where: module ([\w.]+)",
    op=r"Where:[^\n]*; op (\w+)",
    line=r"; at\s+\S*?(\w+\.py:\d+)",
    remedy=r"What to change: ((?:[^\n]+\n){1,3})",
)
READERS = {
    "ampwatch light": AMPWATCH,
    "ampwatch standard": AMPWATCH,
    "ampwatch deep": AMPWATCH,
    # The first frame with an infinity; then the innermost line of the program in its traceback.
    "DebugUnderflowOverflow": Reader(
        module=r"\n {10,}([\w.]+) \w+\n(?:\S+ +\d\S* .*\n)*.*\b(?:inf|nan) ",
        line=r'(?s).*File "\S*?(planted\.py", line \d+)',
    ),
    # The op whose gradient is NaN; then the last line of the program in the forward traceback.
    "set_detect_anomaly(True)": Reader(
        op=r"Error detected in (\w+?)Backward",
        line=r'(?s)Traceback of forward call.*?(planted\.py", line \d+)(?!.*planted\.py.*Triggered)',
    ),
}
"""Tools that have an own form for it. Of any other the first line with an alarm is searched for names."""


@dataclass(frozen=True)
class Said:
    """What came out of a program.

    Attributes:
        status: Its exit status.
        last: The last line that it printed.
        text: All that it printed and wrote.
    """

    status: int
    last: str
    text: str


def run(tool: str, place: Path, *options: str) -> Said:
    """Let a tool watch the training."""
    place.mkdir(parents=True)
    program = str(Path(__file__).with_name("planted.py"))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, program, tool, str(place), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=MAX_SECONDS,
            check=False,
        )
        status, printed = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, printed = -1, late.stdout or b""
    written = [f.read_bytes() for f in sorted(place.rglob("*")) if f.is_file()]
    text = "\n".join(_text(each) for each in (printed, *written))
    return Said(status, _text(printed).rpartition("\n")[2], text)


def _text(content: bytes) -> str:
    """Return what is printable in some bytes, as `strings` does."""
    return "\n".join(
        found.decode() for found in re.findall(rb"[\t\x20-\x7e]{4,}", content.replace(b"\r", b"\n"))
    )


def judge(tool: str, said: Said, healthy: str, modules: list[str]) -> dict[str, Any]:
    """Return for each question what the tool said, and whether that is right."""
    new = news(said.text, healthy)
    alarm = next((line for line in new.splitlines() if ALARM.search(line)), "")
    died = said.last if said.status else ""
    found = {"noticed": (alarm or died).strip()[:200]}
    if tool in READERS:
        found |= {q: _first(getattr(READERS[tool], q), new) for q in QUESTIONS[1:]}
    else:
        found |= {
            "module": next(
                (m for m in modules if re.search(rf"(?<![\w.]){re.escape(m)}", alarm)), ""
            ),
            "op": _first(rf"\b(?:aten::)?({OP})\b", alarm),
            "line": _first(r"(\w+\.py:\d+)", alarm),
            "remedy": "",
        }
    found["line"] = found["line"].replace('", line ', ":")
    right = {
        "noticed": bool(found["noticed"]),
        "module": re.fullmatch(rf"{re.escape(MODULE)}(\..+)?", found["module"]) is not None,
        "op": found["op"].lower() == OP,
        "line": found["line"] == LINE,
        "remedy": "float32" in found["remedy"] or "bfloat16" in found["remedy"],
    }
    return {q: {"said": found[q], "right": right[q]} for q in QUESTIONS}


def news(text: str, healthy: str) -> str:
    """Return the lines of a text that another one does not have, whatever numbers are in them."""
    known = {re.sub(r"\d+", "#", line).strip() for line in healthy.splitlines()}
    return "\n".join(
        line for line in text.splitlines() if re.sub(r"\d+", "#", line).strip() not in known
    )


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text) if pattern else None
    return " ".join(found.group(1).split()) if found else ""


def ask(tool: str, place: Path) -> dict[str, Any] | None:
    """Return what a tool told, and how many host syncs a step has with it; ``None`` if it does not run."""
    healthy = run(tool, place / "healthy", "--healthy")
    if healthy.status:
        print(f"{tool} does not run here and is left out: {healthy.last}", flush=True)
        return None
    said = run(tool, place / "faulty")
    run(tool, place / "syncs", "--syncs")
    counted = place / "syncs" / "syncs.json"
    found = {
        "answers": judge(tool, said, healthy.text, names_of_modules()),
        "ended": said.status,
        "syncs": json.loads(counted.read_text()) if counted.exists() else None,
    }
    marks = (
        f"{question} {'right' if answer['right'] else 'another one' if answer['said'] else '-'}"
        for question, answer in found["answers"].items()
    )
    print(f"{tool}: {', '.join(marks)}; {found['syncs']} syncs a step", flush=True)
    return found


def names_of_modules() -> list[str]:
    """Return the names of all modules of the planted model, the longest first."""
    from planted import Net  # noqa: PLC0415 - torch is not needed to judge

    return sorted((name for name, _ in Net().named_modules() if name), key=len, reverse=True)


def ask_all(tools: list[str], place: Path) -> dict[str, Any]:
    """Ask tools, two at a time: nothing is timed."""
    with ThreadPoolExecutor(2) as pool:
        places = [place / re.sub(r"\W+", "-", tool) for tool in tools]
        asked = zip(tools, pool.map(ask, tools, places), strict=True)
        return {tool: found for tool, found in asked if found is not None}


def installed() -> list[str]:
    """Return the companions that are there, and say which are not."""
    missing = {c.package for c in COMPANIONS.values() if not version_of(c.package)} - {"ampwatch"}
    for package in sorted(missing):
        print(f"{package} is not installed and left out; `make bench-peers` brings it in")
    return [name for name, c in COMPANIONS.items() if c.package not in missing]


def main() -> None:
    """Ask, and print what was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=", ".join(COMPANIONS))
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="keep what was written there"
    )
    args = parser.parse_args()
    tools = args.tools or [t for t in installed() if t == "bare" or t not in NOT_ASKED]
    with TemporaryDirectory() as place:
        print(json.dumps(ask_all(tools, args.keep or Path(place)), indent=2))


if __name__ == "__main__":
    main()
