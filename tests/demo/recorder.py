"""A display that remembers what it was shown."""

from __future__ import annotations

from ampwatch.demo.display import Status


class Recorder:
    every_seconds = 0.0

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[Status] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, status: Status) -> None:
        self.shown.append(status)
