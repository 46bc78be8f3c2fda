"""``ampwatch explain``: the page about a kind of finding, about an alert, or a guide."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from ampwatch.cli.output import encodable, piped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping

    from ampwatch.report.pages import Page

HELP = "explain a kind of finding or an alert, and what to do"

DESCRIPTION = """\
Explain a kind of finding: what it means, a program that shows it, and the remedy. Or print the
runbook of an alert, or a guide. With --run: print a finding of a run of this machine, or of a
report, and then the page of its kind.

The pages are installed with ampwatch: no network is needed. A daemon serves them as well, under
/explain/, /runbooks/ and /docs/.
"""

EPILOG = """\
examples:
  ampwatch explain
      a line for each kind, each alert and each guide
  ampwatch explain forward_overflow
      the page about findings of that kind
  ampwatch explain AmpwatchLossScaleCollapsed
      the runbook of that alert
  ampwatch explain settings
      all settings
  ampwatch explain --run gpt
      the root finding of the run
  ampwatch explain grad_underflow --run gpt.json
      the findings of that kind in a report
  ampwatch explain forward_overflow@decoder.3
      the finding with that key (logs and JSON reports have it), of the newest run that has one

The exit status is 2 if no page or finding has that name.
"""

MAX_WIDTH = 100
NO_PAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    names = parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a kind of finding, its key, an alert or a guide; a list of pages if not given",
    )
    names.completer = _page_names  # type: ignore[attr-defined] # which argcomplete reads
    parser.add_argument(
        "--run",
        metavar="RUN|PATH",
        help="a run of this machine, or a report: explain its own findings",
    )


def _page_names(**_asked: object) -> list[str]:
    """Return the names of all pages, for completion."""
    from ampwatch.report.pages import pages  # noqa: PLC0415 - --help must be quick

    return list(pages())


def run(args: argparse.Namespace) -> int:
    """Print the pages.

    Raises:
        AmpwatchError: If the installation is incomplete.
    """
    from ampwatch.report.pages import pages  # noqa: PLC0415 - --help must be quick

    known = pages()
    if args.run is not None or any(is_key(name) for name in args.names):
        from ampwatch.cli.explain_finding import explain_findings  # noqa: PLC0415 - likewise

        return explain_findings(args.names, args.run, _print_pages, known)
    if unknown := [name for name in args.names if name not in known]:
        print("\n".join(_no_page(name, known) for name in unknown), file=sys.stderr)
        return NO_PAGE
    with piped():
        if args.names:
            _print_pages([known[name] for name in args.names])
        else:
            print(encodable("\n".join(_listed(known))))
    return 0


def is_key(name: str) -> bool:
    """Return whether ``name`` is the key of a finding: its kind and its place."""
    return "@" in name


def _no_page(name: str, known: Iterable[str]) -> str:
    from ampwatch.errors import did_you_mean  # noqa: PLC0415 - as above

    near = did_you_mean(name, known) or "; `ampwatch explain` lists them"
    return f"ampwatch: expected a kind of finding, an alert or a guide, got {name!r}{near}"


def _print_pages(chosen: Iterable[Page]) -> None:
    from ampwatch.report.pages import for_terminal  # noqa: PLC0415 - as above

    in_colours = sys.stdout.isatty() and importlib.util.find_spec("rich") is not None
    for place, page in enumerate(chosen):
        if place:
            print()
        if in_colours:
            _print_with_rich(for_terminal(page))
        else:
            print(encodable(for_terminal(page).rstrip()))


def _print_with_rich(text: str) -> None:
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.markdown import Markdown  # noqa: PLC0415

    console = Console()
    console.print(Markdown(text, hyperlinks=False), width=min(console.width, MAX_WIDTH))


def _listed(known: Mapping[str, Page]) -> Iterator[str]:
    """Yield a line for each page, under the headings of its shelf and of its family."""
    from ampwatch.diagnosis.kinds.tables import by_family  # noqa: PLC0415 - as above
    from ampwatch.report.pages import Shelf  # noqa: PLC0415

    for family, kinds in by_family():
        yield from _section(family.title, [known[row.slug] for row in kinds if row.slug in known])
    for shelf in (Shelf.RUNBOOKS, Shelf.GUIDES):
        yield from _section(shelf.title, [page for page in known.values() if page.shelf is shelf])
    yield "ampwatch explain NAME prints the page."


def _section(title: str, listed: list[Page]) -> Iterator[str]:
    yield title
    columns = min(shutil.get_terminal_size((MAX_WIDTH, 40)).columns, MAX_WIDTH)
    names = max((len(page.name) for page in listed), default=0)
    indent = " " * (names + 4)
    for page in listed:
        yield from textwrap.wrap(
            f"  {page.name:<{names}}  {page.gist}",
            max(columns, 2 * len(indent)),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    yield ""
