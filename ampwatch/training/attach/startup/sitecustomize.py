"""Read by every Python that `ampwatch run` starts, and by those that these start.

This directory is first on ``PYTHONPATH`` then. Nothing is imported here that a program might not
have: ampwatch itself is loaded when the program has imported torch, and does something when
it makes an optimizer or a GradScaler. Whatever goes wrong, the program runs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would be one more import
ATTACH = "AMPWATCH_ATTACH"
"""A copy of the name in ampwatch/settings.py, which is not imported for this."""


class _WhenTorchIsThere:
    """Finds no module by itself; has ampwatch loaded as soon as torch has been."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Return what the others find for torch, with a loader that calls us at its end."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            # Python itself passes over finders of the old kind, which lack the method.
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        try:
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._loaded(loader)

            # On the instance, not on its class: other modules have loaders of the same class.
            loader.exec_module = exec_module
        except Exception as error:  # noqa: BLE001 - the program must run
            _report(error)

    def _loaded(self, loader: Any) -> None:
        try:
            # Undone first, so that nothing of this stays if the import of ampwatch fails.
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _have_ampwatch()
            from ampwatch.training.attach.auto import arm  # noqa: PLC0415 - not before there is torch

            arm()
        except Exception as error:  # noqa: BLE001 - the program must run
            _report(error)


def _have_ampwatch() -> None:
    """Import ampwatch from beside this file, if this Python has none of its own."""
    if importlib.util.find_spec("ampwatch") is not None:  # which imports nothing
        return
    package = os.path.abspath(os.path.join(HERE, "..", "..", ".."))  # noqa: PTH100, PTH118 - as above
    spec = importlib.util.spec_from_file_location(
        "ampwatch",
        os.path.join(package, "__init__.py"),  # noqa: PTH118 - as above
        submodule_search_locations=[package],
    )
    if spec is not None and spec.loader is not None:
        sys.modules["ampwatch"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _report(error: Exception) -> None:
    print(  # noqa: T201 - there is no log yet
        f"ampwatch: this program runs unwatched, because ampwatch could not attach:"
        f" {type(error).__name__}: {error}",
        file=sys.stderr,
    )


def _leave_no_trace() -> None:
    """Take this directory off the path, and load the sitecustomize that it hides, if any."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    ours = sys.modules["sitecustomize"]
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # Python prints what it raises, as it would without us (site.execsitecustomize).
        sys.modules["sitecustomize"] = ours
        raise


if os.environ.get(ATTACH):
    # First: Python asks finders in order and takes the first answer, so the last would never be asked.
    sys.meta_path.insert(0, _WhenTorchIsThere())
_leave_no_trace()
