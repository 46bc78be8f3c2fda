"""What the programs of the tutorial print: run again, and written into the page between comments.

``python -m tools.site.tutorial`` writes them. Which sentences a program prints is the same each time; times, paths and the name of
the machine are not, and are written as a reader would have them. ``tests/docs`` holds the page against the programs, but for what
``masked`` takes out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from typing import NamedTuple

from tools.cost.code import ROOT

PAGE = ROOT / "docs" / "tutorial.md"

BLOCK = re.compile(
    r"(?P<begin><!-- ran: (?P<command>[^:\n]+): (?P<part>\w+)(?: (?P<what>\w+))?, written by python -m tools\.site\.tutorial -->\n)"
    r".*?(?P<end><!-- ran: end -->)",
    re.DOTALL,
)
"""A place on the page: the example with its options, and which part of what it prints."""

ONE_ARITHMETIC = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OMP_NUM_THREADS": "1",
}
"""Settings of PyTorch and its libraries with which CPUs of x86-64 sum in one order. With what each has of its own, a
training that fails in some steps fails in others on the next machine, and a storm there is a skip rate here."""

_FINDING = re.compile(r"^(?:CRITICAL|WARNING|INFO)  (?P<kind>\w+)  ")


class Ran(NamedTuple):
    """What an example has printed.

    Attributes:
        log: Lines of the log, which go to stderr.
        said: What the program itself prints before the first report.
        head: The report before its first finding.
        findings: The paragraphs of the findings, by kind.
    """

    log: str
    said: str
    head: str
    findings: dict[str, str]

    def part(self, name: str, what: str) -> str:
        """Return a part by its name on the page.

        Raises:
            KeyError: If there is no such part.
        """
        if name == "finding":
            return self.findings[what]
        return {"log": self.log, "said": self.said, "head": self.head}[name]


def run(command: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example on the CPU to its end, each step sampled.

    Args:
        command: Name of the example, and its options.
        more: More of them.
        environment: Variables besides those of this process.
    """
    name, *options = command.split()
    own = {"AMPWATCH_SAMPLE_EVERY": "1", "AMPWATCH_OVERHEAD_BUDGET": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(  # noqa: S603 - a program of this repository
        [sys.executable, ROOT / "examples" / f"{name}.py", *options, "--device", "cpu", *more],
        env=os.environ | ONE_ARITHMETIC | own | environment,
        capture_output=True,
        check=False,
        text=True,
    )


@cache
def ran(command: str) -> Ran:
    """Run an example, and return what it has printed.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    done = run(command)
    done.check_returncode()
    return parts_of_run(done.stdout, done.stderr)


def parts_of_run(output: str, log: str) -> Ran:
    """Return the parts of what an example has printed, and has written to stderr."""
    said = output.partition("ampwatch report: ")[0].strip()
    return Ran(log.rstrip(), said, *parts(output))


def parts(printed: str) -> tuple[str, dict[str, str]]:
    """Return the report at the end of what was printed: what is before its first finding, and the findings by kind."""
    said = printed[printed.rindex("ampwatch report: ") :].replace(f"{ROOT}/", "")
    said = re.sub(r"(?m)^(ampwatch report: .*), on \S+$", r"\1, on laptop", said)
    head, *paragraphs = said.rstrip().split("\n\n")
    return head, {match["kind"]: each for each in paragraphs if (match := _FINDING.match(each))}


_ROW_OF_SKIPS = re.compile(
    r"\d+ steps skipped in a row since step \d+"
    r"|\d+% of the steps skipped, more than growth makes up for at an interval of \d+, since step \d+"
)


def masked(text: str) -> str:
    """Return a text without what depends on the machine: its numbers, and the ends of its lines.

    The settings of ``ONE_ARITHMETIC`` are not heard by CPUs of every maker. Then other steps fail, and a collapse
    that comes of it is reported by its row of skips or by their share.
    """
    text = " ".join(text.split())
    text = _ROW_OF_SKIPS.sub("skipped", text)
    return re.sub(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+|\^-?\d+)?(?: [kMG]?B)?", "#", text)


def filled(text: str) -> str:
    """Return the page with what its programs print now."""
    return BLOCK.sub(
        lambda it: (
            f"{it['begin']}\n```text\n{ran(it['command']).part(it['part'], it['what'] or '')}\n```\n\n{it['end']}"
        ),
        text,
    )


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
