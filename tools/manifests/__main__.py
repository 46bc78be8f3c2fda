"""Write the manifests that are made of others, or check them.

python -m tools.manifests            write them
python -m tools.manifests --check    say which are out of date, and end with 1 if one is
"""

from __future__ import annotations

import sys

from tools.manifests.chart import chart
from tools.manifests.examples import examples
from tools.manifests.parts import ROOT


def main() -> int:
    """Write or check, and return the exit status."""
    made = {**chart(), **examples()}
    old = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in old:
        if "--check" in sys.argv:
            print(
                f"expected {path.relative_to(ROOT)} as generated; run: make docs", file=sys.stderr
            )
        else:
            path.write_text(made[path], encoding="utf-8")
    return int("--check" in sys.argv and bool(old))


if __name__ == "__main__":
    sys.exit(main())
