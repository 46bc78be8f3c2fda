"""What is on the screen of ``ampwatch top``: from rows and keys to lines. No terminal, no clock, no network."""

from __future__ import annotations

from enum import Enum
from textwrap import wrap
from typing import TYPE_CHECKING

from ampwatch.cli.top.cells import Line, Span, Style, clean, fitted
from ampwatch.cli.top.story import RankPage, headline_lines, page_of
from ampwatch.cli.top.table import head_and_lines
from ampwatch.cli.top.terminal import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.cli.top.rows import Row

MIN_ROWS = 4
"""Lines of the table that there is to be room for, or the four lines of a rank are not shown."""

PANE = 6
"""Lines that the chosen rank has at most below the table, the one that parts them included."""

KEYS = "up/down choose  Enter open  f next finding  s sort  / filter  q quit"
PAGE_KEYS = "up/down scroll  f next finding  Esc back  q quit"


class Order(Enum):
    """Orders of the table."""

    TROUBLE = "trouble"
    RANK = "run and rank"
    SLOWEST = "slowest"

    def key(self) -> Callable[[Row], tuple[object, ...]]:
        """Return the sort key."""
        if self is Order.RANK:
            return lambda row: (row.run, row.rank)
        if self is Order.SLOWEST:
            # NaN, which is not known, would not sort at all.
            return lambda row: (-(row.step_seconds if row.step_seconds > 0 else 0.0), row.identity)
        return lambda row: (row.badness, not row.is_speaker, row.run, row.rank)


class View:
    """The screen.

    Args:
        is_ascii: Whether only ASCII can be shown.

    Attributes:
        is_over: Whether somebody wants to leave.
    """

    def __init__(self, *, is_ascii: bool = False) -> None:
        self.is_over = False
        self._is_ascii = is_ascii
        self._rows: list[Row] = []
        self._summary = ""
        self._trouble = ""
        self._ended = ""
        self._order = Order.TROUBLE
        self._filter = ""
        self._is_typing = False
        self._chosen: tuple[str, int] | None = None
        self._top = 0
        self._page: RankPage | None = None
        self._height = 24

    def show(self, rows: Sequence[Row], summary: str, ended: str = "") -> None:
        """Take in a new state; whoever was chosen stays chosen.

        Args:
            rows: Its ranks.
            summary: The first line.
            ended: The end of a sentence about ranks that are not shown any more.
        """
        self._rows, self._summary, self._trouble, self._ended = list(rows), summary, "", ended
        page = self._page
        if page is not None:
            self._page = next((page.of(row) for row in rows if row.identity == page.identity), page)
            if all(row.identity != page.identity for row in rows):
                self.say(f"this rank is not shown any more{ended}")

    def say(self, trouble: str) -> None:
        """Show that the newest state could not be had; the last one stays."""
        self._trouble = clean(trouble)

    def press(self, key: str) -> None:
        """Do what ``key`` stands for."""
        if self._is_typing:
            self._type(key)
        elif key == "q":
            self.is_over = True
        elif self._page is not None:
            self._press_on_page(self._page, key)
        else:
            self._press_on_table(key)

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the screen, in at most ``height`` lines of ``width`` cells."""
        self._height = height
        foot = self._foot()
        room = max(height - 1 - len(foot), 0)
        page = self._page
        body = self._table(width, room) if page is None else page.lines(width, room)
        head: Line = [Span("ampwatch top  ", Style.STRONG), Span(self._summary)]
        body += [[] for _ in range(room - len(body))]
        return [fitted(line, width) for line in [head, *body[:room], *foot]][:height]

    def _shown(self) -> list[Row]:
        """Return the rows that the filter lets through, in order."""
        words = self._filter.lower().split()
        rows = [row for row in self._rows if all(word in _searched(row) for word in words)]
        return sorted(rows, key=self._order.key())

    def _place(self, shown: Sequence[Row]) -> int:
        """Return the place of the chosen row; that of the first one if nobody has chosen."""
        return next((i for i, row in enumerate(shown) if row.identity == self._chosen), 0)

    def _table(self, width: int, room: int) -> list[Line]:
        shown = self._shown()
        if not shown:
            return [[], *([Span(line)] for line in wrap(self._nothing(), width))]
        place = self._place(shown)
        # More of it where the table leaves room: nothing of what to do first is to be cut.
        limit = max(PANE, room - 1 - len(shown))
        pane = self._pane(shown[place], width)[:limit] if room - PANE >= MIN_ROWS else []
        space = max(room - 1 - len(pane), 1)
        self._top = min(max(self._top, place - space + 1), place, max(len(shown) - space, 0))
        window = shown[self._top : self._top + space]
        head, lines = head_and_lines(window, width, is_ascii=self._is_ascii, among=shown)
        lines[place - self._top] = [
            Span(text, Style.CHOSEN) for text, _ in lines[place - self._top]
        ]
        return [head, *lines, *[[] for _ in range(space - len(lines))], *pane]

    def _pane(self, row: Row, width: int) -> list[Line]:
        told = headline_lines(row.name, row.level, row.lines, width)
        rule = ("-" if self._is_ascii else "─") * width
        return [[Span(rule, Style.QUIET)], *told]

    def _nothing(self) -> str:
        if self._rows:
            return f"No rank has {self._filter!r} in its run, host, state or findings. Esc shows all{self._ended}."
        return (
            f"No run. A training that calls ampwatch.monitor() appears here by itself{self._ended}."
        )

    def _foot(self) -> list[Line]:
        lines: list[Line] = []
        if self._trouble:
            lines.append([Span(f"not current: {self._trouble}", Style.BAD)])
        if self._is_typing:
            lines.append([Span("filter: ", Style.STRONG), Span(f"{self._filter}_")])
        else:
            keys = KEYS if self._page is None else PAGE_KEYS
            now = f"  by {self._order.value}" if self._page is None else ""
            only = f"  only {self._filter!r}" if self._filter and self._page is None else ""
            lines.append([Span(f"{keys}{now}{only}", Style.QUIET)])
        return lines

    def _type(self, key: str) -> None:
        if key in (Key.ENTER, Key.ESCAPE):
            self._is_typing = False
            self._filter = "" if key == Key.ESCAPE else self._filter
        elif key == Key.BACKSPACE:
            self._filter = self._filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self._filter += key

    def _press_on_table(self, key: str) -> None:
        if key == "/":
            self._is_typing, self._filter = True, ""
        elif key == "s":
            orders = list(Order)
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        elif key == Key.ESCAPE:
            self._filter, self._chosen = "", None
        elif shown := self._shown():
            self._press_on_rows(shown, key)

    def _press_on_rows(self, shown: Sequence[Row], key: str) -> None:
        place = self._place(shown)
        if key == Key.ENTER:
            self._open(shown[place])
        elif key == "f":
            self._next_with_finding(shown, place)
        elif (move := self._moves().get(key)) is not None:
            self._chosen = shown[min(max(place + move, 0), len(shown) - 1)].identity

    def _moves(self) -> dict[str, int]:
        far = max(self._height - PANE - 4, 1)
        end = len(self._rows)
        return {
            Key.UP: -1,
            "k": -1,
            Key.DOWN: 1,
            "j": 1,
            Key.PAGE_UP: -far,
            Key.PAGE_DOWN: far,
            Key.HOME: -end,
            Key.END: end,
        }

    def _next_with_finding(self, shown: Sequence[Row], place: int) -> None:
        after = [*shown[place + 1 :], *shown[: place + 1]]
        row = next((row for row in after if row.stories), None)
        if row is not None:
            self._chosen = row.identity

    def _open(self, row: Row) -> None:
        self._chosen = row.identity
        self._page = page_of(row, is_ascii=self._is_ascii)

    def _press_on_page(self, page: RankPage, key: str) -> None:
        if key in (Key.ESCAPE, Key.BACKSPACE, Key.LEFT):
            self._page = None
        elif key == "f":
            if not page.go_to_next_finding():
                shown = self._shown()
                self._next_with_finding(shown, self._place(shown))
                self._open(shown[self._place(shown)])
        elif (move := self._moves().get(key)) is not None:
            page.scroll(move * (len(self._rows) + 999) if key in (Key.HOME, Key.END) else move)


def _searched(row: Row) -> str:
    findings = [m.finding for story in row.stories for m in story.members]
    kinds = [f"{f.kind} {f.where}" for f in findings]
    return " ".join(
        [row.run, f"rank {row.rank}", row.host, row.user, row.level, row.process, *kinds]
    ).lower()
