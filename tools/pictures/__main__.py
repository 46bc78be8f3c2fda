"""Draw the pictures of number formats, or check them.

python -m tools.pictures            draw them into docs/images/
python -m tools.pictures --train    train first, for those that show a training
python -m tools.pictures --check    say what is not as it would be drawn, and end with 1 if something is
"""

from __future__ import annotations

import json
import sys

from tools.cost.code import ROOT
from tools.pictures.drawing import files
from tools.pictures.training import MEASURED, measure, measured


def main() -> int:
    """Draw or check, and return the exit status."""
    if "--train" in sys.argv:
        MEASURED.write_text(json.dumps(measure()) + "\n", encoding="utf-8")
    drawn = files(measured())
    if "--check" not in sys.argv:
        for file, picture in drawn.items():
            file.write_text(picture, encoding="utf-8")
        return 0
    stale = [
        file
        for file, picture in drawn.items()
        if not file.exists() or file.read_text(encoding="utf-8") != picture
    ]
    for file in stale:
        print(
            f"expected {file.relative_to(ROOT)} as drawn, got another one; run: make docs",
            file=sys.stderr,
        )
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
