"""A fault at a chosen call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Fault:
    """Raises at one call of a method and counts the calls."""

    def __init__(self, original: Callable[..., Any], at_call: int, error: type[Exception]) -> None:
        self.original = original
        self.at_call = at_call
        self.error = error
        self.calls = 0

    def bound_to(self) -> Callable[..., Any]:
        def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.at_call:
                msg = "planted"
                raise self.error(msg)
            return self.original(instance, *args, **kwargs)

        return method
