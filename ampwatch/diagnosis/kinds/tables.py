"""The lists of kinds and detectors in the documentation, written from the rows.

``python -m ampwatch.diagnosis.kinds`` writes them into the pages of the repository, between two
comments; with ``--check`` it only says which pages are not as they would be written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector
from ampwatch.diagnosis.detectors import DETECTORS
from ampwatch.diagnosis.kinds.kind import KindFamily
from ampwatch.diagnosis.kinds.registry import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ampwatch.diagnosis.kinds.kind import Kind

REPOSITORY = Path(__file__).parents[3]

BEGIN = "<!-- Generated from the rows of the kinds: python -m ampwatch.diagnosis.kinds -->"
END = "<!-- End of what is generated -->"

INDEX = "docs/diagnoses/README.md"
"""The page with a line for each kind."""


def by_family(rows: Sequence[Kind] = ROWS) -> Iterator[tuple[KindFamily, list[Kind]]]:
    """Yield the families with their kinds, in the order of the pages."""
    for family in KindFamily:
        kinds = [row for row in rows if row.family is family]
        if kinds:
            yield family, kinds


def list_of_readme(rows: Sequence[Kind] = ROWS) -> str:
    """Return the list of the README: a line for each family, with the first of its kinds in words."""
    lines = []
    for family, kinds in by_family(rows):
        place = f"{INDEX}#{family.title.lower().replace(' ', '-')}"
        more = f", and {len(kinds) - 1} more" if kinds[1:] else ""
        lines.append(f"- [{family.trouble}]({place}): {kinds[0].meaning}{more}")
    return "\n".join(lines) + "\n"


def index_of_pages(rows: Sequence[Kind] = ROWS) -> str:
    """Return the sections of the index: a heading for each family, a line for each kind."""
    parts = []
    for family, kinds in by_family(rows):
        introduction = f"{family.introduction}\n\n" if family.introduction else ""
        table = "".join(f"| [`{k.slug}`]({k.slug}.md) | {k.meaning} |\n" for k in kinds)
        parts.append(
            f"## {family.title}\n\n{introduction}| kind | what it is |\n| --- | --- |\n{table}"
        )
    return "\n".join(parts)


def order_of_detectors() -> str:
    """Return the table of the detectors: what each takes, in the order in which they judge an iteration."""
    lines = ["| detector | takes at once | of each iteration |", "| --- | --- | --- |"]
    for kind in DETECTORS:
        path = kind.__module__.partition("diagnosis.")[2].replace(".", "/")
        taken = ", ".join(f"`{evidence.__name__}`" for evidence in kind.observers)
        judges = "judges it" * (kind.detect is not Detector.detect)
        counts = "counts quiet ones" * (kind.count is not Detector.count)
        does = ", ".join(filter(None, (judges, counts)))
        lines.append(f"| `{kind.__name__}`, `{path}.py` | {taken} | {does} |")
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "README.md": list_of_readme,
    INDEX: index_of_pages,
    "docs/diagnosis.md": order_of_detectors,
}
"""Pages with a generated part, by their place in the repository."""


def inserted(page: str, generated: str) -> str:
    """Return the text of a page with its generated part as it should be.

    Raises:
        ValueError: If the page lacks one of the two comments.
    """
    before, begin, rest = page.partition(f"{BEGIN}\n\n")
    _, end, behind = rest.partition(f"\n{END}\n")
    if not begin or not end:
        msg = f"expected the lines {BEGIN!r} and {END!r}, each with an empty line inside; got a page without"
        raise ValueError(msg)
    return before + begin + generated + end + behind


def main(arguments: Sequence[str], repository: Path = REPOSITORY) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ampwatch.diagnosis.kinds", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args(arguments).check
    stale = []
    for name, generated in PAGES.items():
        page = repository / name
        text = page.read_text(encoding="utf-8")
        wanted = inserted(text, generated())
        if wanted == text:
            continue
        stale.append(name)
        if not check:
            page.write_text(wanted, encoding="utf-8")
    for name in stale if check else ():
        sys.stderr.write(f"expected the list in {name} as generated; run: make docs\n")
    return int(check and bool(stale))
