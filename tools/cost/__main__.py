"""Write the tables and the picture of what watching costs, or check them.

    python -m tools.cost            write them into README.md and docs/
    python -m tools.cost --check    say what is out of date, and end with 1 if something is

What is measured is in `benchmarks/results/`, with a digest of the code. A table is out of date if a watched
step runs other code now, and if it is not what was measured.
"""

from __future__ import annotations

import sys

from tools.cost.code import ROOT, digest
from tools.cost.picture import PICTURE, drawn
from tools.cost.tables import PAGES, RESULTS, Measured, filled, measured


def outdated(kept: dict[str, Measured], now: str) -> list[str]:
    """Return a sentence for each measurement of code that is no longer this one.

    Args:
        kept: What was measured, by the target that measures it.
        now: The digest of the code as it is.
    """
    return [
        f"expected {RESULTS[target].relative_to(ROOT)} to be measured with the code that a watched step runs,"
        f" got one of commit {it['code']['commit']}, since when it has changed; run on a quiet machine:"
        f" make {target}"
        for target, it in kept.items()
        if it["code"]["digest"] != now
    ]


def main() -> int:
    """Write or check, and return the exit status."""
    kept = measured()
    written = {page: filled(page.read_text(encoding="utf-8"), kept) for page in PAGES}
    written[PICTURE] = drawn(kept)
    if "--check" not in sys.argv:
        for page, text in written.items():
            page.write_text(text, encoding="utf-8")
        return 0
    wrong = outdated(kept, digest())
    for page, text in written.items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            name = page.relative_to(ROOT)
            wrong.append(
                f"expected {name} as generated, got another one; run: python -m tools.cost"
            )
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
