"""Contents of the gradients of parameters: the losses that have been added up in them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.training.kernels.admission import is_zero_on_host
from ampwatch.training.private import version_of
from ampwatch.training.sensors.calls.scaled_roots import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    Kinds = frozenset[int]

NOTHING: Kinds = frozenset()
_UNKNOWN: Kinds = frozenset({UNKNOWN})


class _Content(NamedTuple):
    """Knowledge of one gradient."""

    parameter: weakref.ref[Tensor]  # the parameter that it belongs to
    gradient: int  # identity of the gradient
    version: int  # version of the gradient when it was last checked
    slack: int  # amount that the version may have risen by without other content
    kinds: Kinds  # kinds of losses in it


class GradientBefore(NamedTuple):
    """A gradient before backward.

    Attributes:
        parameter: The parameter.
        gradient: Identity of the gradient, 0 if there is none.
        version: Version of the gradient.
        kinds: Kinds of losses in it.
    """

    parameter: Tensor
    gradient: int
    version: int
    kinds: Kinds


class GradContents:
    """Follows gradients by identity and version: every op in place raises the version.

    A gradient that was changed by something unknown is of unknown content, unless it lies in host
    memory and is zero.

    Attributes:
        known: Knowledge by identity of the parameter; empty where nothing is followed.
    """

    def __init__(self) -> None:
        self.known: dict[int, _Content] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.known.clear()

    def before(self, parameters: Iterable[Tensor]) -> list[GradientBefore]:
        """Return the gradients as they are before backward. Cost: 0.3 us a parameter."""
        seen = []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                seen.append(GradientBefore(parameter, 0, 0, NOTHING))
            else:
                version = _version(gradient)
                kinds = self._kinds_before(parameter, gradient)
                seen.append(GradientBefore(parameter, id(gradient), version, kinds))
        return seen

    def _kinds_before(self, parameter: Tensor, gradient: Tensor) -> Kinds:
        content = self.known.get(id(parameter))
        known = content is not None and _still(content, parameter, gradient)
        if content is not None and known and not content.kinds:
            return NOTHING
        # Checked also where it seems unchanged: ``grad.data.zero_()`` does not raise the version,
        # since ``.data`` is a tensor with a counter of its own.
        if is_zero_on_host(gradient):
            return NOTHING
        return content.kinds if content is not None and known else _UNKNOWN

    def after(self, seen: Sequence[GradientBefore], added: dict[int, Kinds] | Kinds) -> int:
        """Take in the gradients as backward has left them; return how many it has changed.

        Args:
            seen: Gradients from before.
            added: Kinds that backward has added, to all of them or by identity of the parameter.
        """
        changed = 0
        for parameter, identity, version, kinds in seen:
            gradient = parameter.grad
            if gradient is None:
                continue
            if id(gradient) != identity or _version(gradient) != version:
                changed += 1
                new = added.get(id(parameter), _UNKNOWN) if isinstance(added, dict) else added
                self._put(parameter, gradient, kinds | new)
            elif id(parameter) in self.known or kinds:
                self._put(parameter, gradient, kinds)
        return changed

    def _put(self, parameter: Tensor, gradient: Tensor, kinds: Kinds) -> None:
        self.known[id(parameter)] = _Content(
            weakref.ref(parameter), id(gradient), _version(gradient), 0, kinds
        )

    def of(self, parameters: Iterable[Tensor]) -> list[tuple[Tensor, Kinds]]:
        """Return the parameters whose gradients' content is known, with the content."""
        found = []
        for parameter in parameters:
            content = self.known.get(id(parameter))
            if content is None or UNKNOWN in content.kinds:
                continue
            gradient = parameter.grad
            if gradient is not None and _still(content, parameter, gradient):
                found.append((parameter, content.kinds))
        return found

    def set(self, parameters: Iterable[Tensor], kinds: Kinds) -> None:
        """Set the content of the gradients of these parameters, where there are any."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._put(parameter, parameter.grad, kinds)

    def forget(self, parameters: Iterable[Tensor]) -> None:
        """Forget the content of the gradients of these parameters."""
        for parameter in parameters:
            self.known.pop(id(parameter), None)

    def allow_changes(self, gradients: Iterable[int], changes: int) -> None:
        """Let gradients, by identity, be changed in place this many times and keep their content."""
        identities = set(gradients)
        for key, content in self.known.items():
            if content.gradient in identities:
                self.known[key] = content._replace(slack=content.slack + changes)


def _still(content: _Content, parameter: Tensor, gradient: Tensor) -> bool:
    return (
        content.parameter() is parameter
        and content.gradient == id(gradient)
        and content.version <= _version(gradient) <= content.version + content.slack
    )


def _version(tensor: Tensor) -> int:
    try:
        return version_of(tensor)
    except RuntimeError:  # made under torch.inference_mode, which counts no versions
        return 0
