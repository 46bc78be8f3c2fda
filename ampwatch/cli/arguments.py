"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import math


def seconds(text: str) -> float:
    """Return a time. Unit: s.

    Raises:
        ArgumentTypeError: If it is no number above 0.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        msg = f"expected a number of seconds > 0, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number
