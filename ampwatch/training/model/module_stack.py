"""The module that is running in every thread, and the one that a node of the graph comes from."""

from __future__ import annotations

from bisect import bisect_left
from threading import get_ident
from typing import NamedTuple

import torch

from ampwatch.training.private import current_node, next_sequence_number, sequence_number

ACCUMULATES = 2**63
"""Number from which the nodes are that add up gradients of parameters (``AccumulateGrad``).

Autograd runs the node with the highest number first, and gives these nodes the largest number
there is; it says nothing about who made them."""

MAX_MARKS = 100_000
"""Numbers that are remembered of one thread; nodes that are made after them have no name."""


FOREIGN = "\0foreign"
"""Name of what is computed for another training: in its modules, and after them until others run."""


class _Frame(NamedTuple):
    """A module that is running."""

    key: int  # identity of the module
    name: str  # qualified name of the module
    grad: bool  # whether gradients were recorded when it was entered


class ModuleStack:
    """The running modules of each thread.

    Nodes of autograd are numbered in the order in which a thread makes them. Noting the number
    whenever a module is entered or left is enough to find, in backward, the module that made
    the node that is running. No tensor has to be touched for it.
    """

    def __init__(self) -> None:
        self._stacks: dict[int, list[_Frame]] = {}
        # Pairs, and not two lists: an interrupt between two appends would leave one longer for good.
        self._marks: dict[int, list[tuple[int, str]]] = {}
        self._foreign: set[int] = set()

    def clear(self) -> None:
        """Forget everything, at the end of an iteration."""
        self._stacks.clear()
        self._marks.clear()
        self._foreign.clear()

    def enter(self, key: int, name: str) -> bool:
        """Take in a module that begins; return whether it is the outermost of its thread."""
        stack = self._stacks.setdefault(get_ident(), [])
        stack.append(_Frame(key, name, torch.is_grad_enabled()))
        self._note_owner(name)
        self._mark(name)
        return len(stack) == 1

    def leave(self, key: int) -> bool:
        """Take out a module that has ended; return whether its thread is in no module any more."""
        stack = self._stacks.get(get_ident(), [])
        # A module that was entered before the hooks were placed is not on the stack. Modules that
        # an exception has left lie above this one: no hook has run for them.
        if any(frame.key == key for frame in stack):
            while stack.pop().key != key:
                pass
        if stack:
            self._note_owner(stack[-1].name)
        # What follows the outermost module is a loss, as a rule: that of the model that has run.
        outside = FOREIGN if self.is_foreign() else ""
        self._mark(stack[-1].name if stack else outside)
        return not stack

    def _note_owner(self, name: str) -> None:
        if name == FOREIGN:
            self._foreign.add(get_ident())
        else:
            self._foreign.discard(get_ident())

    def is_foreign(self) -> bool:
        """Whether the calling thread computes for another training, as far as its forward tells."""
        return get_ident() in self._foreign

    def name(self) -> str:
        """Return the name of the module that is running; empty outside of all."""
        stack = self._stacks.get(get_ident())
        return stack[-1].name if stack else ""

    def is_inside(self) -> bool:
        """Whether the calling thread is in a module."""
        return bool(self._stacks.get(get_ident()))

    def has_grad(self) -> bool:
        """Whether gradients are recorded, or were when the outermost module was entered.

        Inside an ``autograd.Function`` none are recorded, although it is a part of the forward
        pass.
        """
        stack = self._stacks.get(get_ident())
        return stack[0].grad if stack else torch.is_grad_enabled()

    def name_of_node(self, thread: int) -> str:
        """Return the name of the module that made the running node; empty if it is not known.

        Args:
            thread: The thread that ran the forward pass.
        """
        node = current_node()
        marks = self._marks.get(thread)
        if node is None or not marks:
            return ""
        number = sequence_number(node)
        # Marks ascend, so the newest mark at or before the node is that of its module. A pair that
        # begins with the number is larger than the number alone, hence the next one.
        index = bisect_left(marks, (number + 1,)) - 1
        return marks[index][1] if index >= 0 and number < ACCUMULATES else ""

    def _mark(self, name: str) -> None:
        if not torch.is_grad_enabled():
            return  # no node is made
        me = get_ident()
        # The number that this thread's next node will have; numbers of threads are independent.
        number = next_sequence_number()
        marks = self._marks.setdefault(me, [])
        if len(marks) < MAX_MARKS:
            # The last mark has no name: every later node would be taken for one of its module.
            is_last = len(marks) == MAX_MARKS - 1
            marks.append((number, "" if is_last else name))
