"""What is on the screen of ``ampwatch top``: from states and keys to lines. No terminal, no network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from textwrap import wrap

from ampwatch.cli.output import MAX_WIDTH
from ampwatch.cli.top.table import (
    BAD,
    CHOSEN,
    ORDERS,
    QUIET,
    STRONG,
    Line,
    clean,
    fitted,
    headline_lines,
    spark,
    summary,
    table,
)
from ampwatch.report.rank_list import RankList, RankRow
from ampwatch.report.report import render_incident
from ampwatch.report.short import INDENT, MIN_WIDTH, part

MIN_ROWS = 4
"""Lines of the table that there is to be room for, or the four lines of a rank are not shown."""

PANE = 6
"""Lines that the chosen rank has at most below the table, the one that parts them included."""

FAR = 1 << 30
"""Lines from one end to the other, and more."""

KEYS = "up/down choose  Enter open  f next finding  s sort  / filter  q quit"
PAGE_KEYS = "up/down scroll  f next finding  Esc back  q quit"


class View:
    """The screen."""

    def __init__(self) -> None:
        self.is_over = False  # whether somebody wants to leave
        self._rows: list[RankRow] = []
        self._summary = ""
        self._trouble = ""
        self._ended = ""
        self._order = next(iter(ORDERS))
        self._filter = ""
        self._is_typing = False
        self._chosen: tuple[str, int] | None = None
        self._top = 0
        self._page: RankRow | None = None
        self._scrolled = self._end = 0
        self._starts: list[int] = []
        self._height = 24

    def show(self, ranks: RankList, ended: str) -> None:
        """Take in a new list, as ``once`` does; whoever was chosen stays chosen."""
        self._rows, self._ended, self._trouble = ranks.ranks, ended, ""
        now = time.strftime("%H:%M:%S", time.localtime(ranks.now))
        self._summary = f"{now}  {summary(self._rows)}"
        if (page := self._page) is not None:
            newer = [row for row in self._rows if row.identity == page.identity]
            self._page = next(iter(newer), page)
            if not newer:
                self.say(f"this rank is not shown any more{self._ended}")

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
            self._press_on_page(key)
        else:
            self._press_on_table(key)

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the screen, in at most ``height`` lines of ``width`` cells."""
        self._height = height
        foot = self._foot()
        room = max(height - 1 - len(foot), 0)
        page = self._page
        body = self._table(width, room) if page is None else self._incident(page, width, room)
        body += [[] for _ in range(room - len(body))]
        head = [("ampwatch top  ", STRONG), (self._summary, "")]
        return [fitted(line, width) for line in [head, *body[:room], *foot]][:height]

    def _shown(self) -> list[RankRow]:
        """Return the rows that the filter lets through, in order."""
        words = self._filter.lower().split()
        rows = [row for row in self._rows if all(word in _searched(row) for word in words)]
        return sorted(rows, key=ORDERS[self._order])

    def _place(self, shown: Sequence[RankRow]) -> int:
        """Return the place of the chosen row; that of the first one if nobody has chosen."""
        return next((i for i, row in enumerate(shown) if row.identity == self._chosen), 0)

    def _table(self, width: int, room: int) -> list[Line]:
        shown = self._shown()
        if not shown:
            return [[], *([(line, "")] for line in wrap(self._nothing(), width))]
        place = self._place(shown)
        chosen = shown[place]
        pane: list[Line] = []
        if room - PANE >= MIN_ROWS:
            pane = [
                [("─" * width, QUIET)],
                *headline_lines(chosen.name, chosen.level, chosen.headline, width),
            ]
        # More of it where the table leaves room: nothing of what to do first is to be cut.
        pane = pane[: max(PANE, room - 1 - len(shown))]
        space = max(room - 1 - len(pane), 1)
        self._top = min(max(self._top, place - space + 1), place, max(len(shown) - space, 0))
        window = shown[self._top : self._top + space]
        head, *lines = table(window, shown, width)
        lines[place - self._top] = [(text, CHOSEN) for text, _ in lines[place - self._top]]
        return [head, *lines, *[[] for _ in range(space - len(lines))], *pane]

    def _nothing(self) -> str:
        if self._rows:
            return f"No rank has {self._filter!r} in its run, host, state or findings. Esc shows all{self._ended}."
        return (
            f"No run. A training that calls ampwatch.monitor() appears here by itself{self._ended}."
        )

    def _incident(self, row: RankRow, width: int, room: int) -> list[Line]:
        """Return what is shown of the page of a rank: its four lines, its numbers, each finding."""
        width = min(width, MAX_WIDTH)
        lines = headline_lines(row.name, row.level, row.headline, width)
        for label, text in self._about(row, max(width - INDENT, MIN_WIDTH)):
            lines += [[(about, QUIET), (line, "")] for about, line in part(label, text, width)]
        self._starts = []
        for incident in row.incidents:
            self._starts.append(len(lines) + 1)
            head, *more = render_incident(incident, max(width, MIN_WIDTH)).splitlines()
            over, style = ("", STRONG) if incident.goes_on else ("  (over)", QUIET)
            lines += [[], [(head + over, style)], *([(line, "")] for line in more)]
        if not self._starts:
            lines += [[], [("No finding was made.", "")]]
        self._end = max(len(lines) - room, 0)
        self._scrolled = min(self._scrolled, self._end)
        return lines[self._scrolled : self._scrolled + room]

    def _about(self, row: RankRow, cells: int) -> list[tuple[str, str]]:
        """Return who a rank is and its numbers, each with what it is about."""
        of = f" of {row.world_size}" if row.world_size > 1 else ""
        parts = ((" on ", row.host), (", of ", row.user), (", GPU ", row.gpu))
        where = "".join(f"{word}{text}" for word, text in parts if text)
        return [
            ("who", f"rank {row.rank}{of}{where}; {row.state}"),
            ("step", row.phases),
            *(
                ("", f"{title}: {value}{f' ({note})' if note else ''}")
                for title, (value, note) in row.figures.items()
            ),
            *(("", f"{words}: {url}") for words, url in row.links.items()),
            ("scale", spark(row.scale, cells, is_log=True)),
            ("loss", spark(row.loss, cells)),
        ]

    def _foot(self) -> list[Line]:
        lines: list[Line] = []
        if self._trouble:
            lines.append([(f"not current: {self._trouble}", BAD)])
        if self._is_typing:
            return [*lines, [("filter: ", STRONG), (f"{self._filter}_", "")]]
        if self._page is not None:
            return [*lines, [(PAGE_KEYS, QUIET)]]
        only = f"  only {self._filter!r}" if self._filter else ""
        return [*lines, [(f"{KEYS}  by {self._order}{only}", QUIET)]]

    def _type(self, key: str) -> None:
        if key in ("<enter>", "<escape>"):
            self._is_typing = False
            self._filter = "" if key == "<escape>" else self._filter
        elif key == "<backspace>":
            self._filter = self._filter[:-1]
        elif len(key) == 1:
            self._filter += key

    def _press_on_table(self, key: str) -> None:
        if key == "/":
            self._is_typing, self._filter = True, ""
        elif key == "s":
            orders = list(ORDERS)
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        elif key == "<escape>":
            self._filter, self._chosen = "", None
        elif shown := self._shown():
            self._press_on_rows(shown, self._place(shown), key)

    def _press_on_rows(self, shown: Sequence[RankRow], place: int, key: str) -> None:
        if key == "<enter>":
            self._page, self._scrolled = shown[place], 0
        elif key == "f":
            after = [*shown[place + 1 :], *shown[: place + 1]]
            place = next((shown.index(row) for row in after if row.incidents), place)
        elif not (move := self._move(key)):
            return
        else:
            place = min(max(place + move, 0), len(shown) - 1)
        self._chosen = shown[place].identity

    def _press_on_page(self, key: str) -> None:
        if key in ("<escape>", "<backspace>", "<left>"):
            self._page = None
        elif key == "f":
            start = next((start for start in self._starts if start > self._scrolled), None)
            if start is not None and self._scrolled < self._end:
                self._scrolled = min(start, self._end)
            else:
                self._press_on_table("f")
                self._press_on_table("<enter>")
        else:
            self._scrolled = min(max(self._scrolled + self._move(key), 0), self._end)

    def _move(self, key: str) -> int:
        """Return by how many lines a key moves; 0 for other keys."""
        far = max(self._height - PANE - 4, 1)
        moves = {"<up>": -1, "<down>": 1, "<page up>": -far, "<page down>": far}
        return {**moves, "k": -1, "j": 1, "<home>": -FAR, "<end>": FAR}.get(key, 0)


def _searched(row: RankRow) -> str:
    """Return the words of a rank that a filter looks in."""
    members = [member.finding for incident in row.incidents for member in incident.members]
    findings = [f"{finding.kind} {finding.where}" for finding in members]
    words = [row.host, row.user, row.level.value, row.state]
    return " ".join([row.run, f"rank {row.rank}", *words, *findings]).lower()
