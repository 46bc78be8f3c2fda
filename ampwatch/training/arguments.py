"""Checks of arguments at set-up, with messages: what was expected, what was given, what to do."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from ampwatch.errors import SettingsError


def check_number(
    name: str, value: Any, *, least: float | None = None, above: float | None = None
) -> None:
    """Refuse a value that is no finite number within its limits.

    Args:
        name: Name of the argument.
        value: The value as it was given.
        least: The smallest value that is taken, if there is one.
        above: The largest value that is not, if there is one.

    Raises:
        SettingsError: If it is refused.
    """
    _check(name, value, "number", isinstance(value, Real), least, above)


def check_count(name: str, value: Any, *, least: int) -> None:
    """Refuse a value that is no whole number of at least ``least``.

    Raises:
        SettingsError: If it is refused.
    """
    _check(name, value, "whole number", isinstance(value, Integral), least, None)


def check_flag(name: str, value: Any) -> bool:
    """Return a yes or no as a bool, NumPy's and 0 and 1 as well; refuse the rest, as ``"no"``.

    Raises:
        SettingsError: If it is refused.
    """
    # An array is neither, and says so by an exception of its own.
    if not getattr(value, "shape", ()) and value in (0, 1):
        return bool(value)
    msg = f"`{name}`: expected True or False, got {value!r}"
    raise SettingsError(msg)


def _check(
    name: str,
    value: Any,
    what: str,
    is_one: bool,  # noqa: FBT001 - of this module
    least: float | None,
    above: float | None,
) -> None:
    fits = is_one and not isinstance(value, bool) and math.isfinite(value)
    if fits and (least is None or value >= least) and (above is None or value > above):
        return
    bound = f" >= {least:g}" if least is not None else f" > {above:g}" if above is not None else ""
    msg = f"`{name}`: expected a {what}{bound}, got {value!r}"
    raise SettingsError(msg)


def check_headers(headers: Any) -> dict[str, str]:
    """Return headers of HTTP that can be sent, none for ``None``; no value is ever quoted.

    Raises:
        SettingsError: If they are no mapping, or one is no text or breaks out of its line.
    """
    if headers is None:
        return {}
    if not hasattr(headers, "items"):
        msg = f"`headers`: expected a mapping of names to values, got a {type(headers).__name__}; write headers={{'Authorization': ...}}"
        raise SettingsError(msg)
    for name, value in headers.items():
        for part in (name, value):
            if not isinstance(part, str):
                msg = (
                    f"`headers`: expected text for {name!r}, got a {type(part).__name__};"
                    " if it comes from an environment variable, that is not set"
                )
                raise SettingsError(msg)
        is_latin = all(ord(c) < 256 for c in name + value)
        if not name or not is_latin or any(c in "\r\n\0" for c in name + value) or ":" in name:
            msg = f"`headers`: expected one line of Latin-1 text for {name!r}, got other characters; strip() takes a line's end off"
            raise SettingsError(msg)
    return dict(headers)


def check_callable(name: str, value: Any, what_to_do: str) -> None:
    """Refuse a value that cannot be called.

    Raises:
        SettingsError: If it is refused.
    """
    if not callable(value):
        msg = f"`{name}`: expected a function that takes a finding, got {value!r}; {what_to_do}"
        raise SettingsError(msg)
