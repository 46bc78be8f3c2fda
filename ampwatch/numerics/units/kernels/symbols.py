"""The function of a kernel, taken from its full name: without return type and arguments.

The types of arguments mislead: ``reshape_and_cache_kernel(flashinfer::Params)`` computes no
attention. The template argument of a wrapper, ``cutlass::device_kernel<...>``, does count: it is the
kernel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|_GLOBAL__N__\w*?::")
_CLONE = re.compile(r"(?:\.kd)?(?: \[clone [^\]]*\])?$")
_WRAPPER = re.compile(r"(?:^|::)(?:device_kernel|kernel2?|kentry|global_kernel)$", re.IGNORECASE)
_OPENING = "<({["
_CLOSING = ">)}]"
_MAX_WRAPPERS = 4

# Of a mangled name, what contains digits and is no identifier: literals and back references.
_MANGLED_NOISE = re.compile(r"L[a-z]n?\d+E|[ST][0-9A-Z]*_")


class Symbol(NamedTuple):
    """A kernel's function.

    Attributes:
        function: Its qualified name without template arguments; after a space, where it is a
            wrapper, the name of what it wraps, and so on.
        template: Its template arguments, in full.
    """

    function: str
    template: str


def parse(name: str) -> Symbol:
    """Return the function of a kernel, by its name as a profiler writes it.

    Args:
        name: Any text: a demangled C++ signature, a mangled name, or a plain C name.
    """
    text = _CLONE.sub("", _ANONYMOUS.sub("", name.strip()))
    if text.startswith("_Z"):
        return _parse_mangled(text)
    path, template = _head(text)
    wrapped = path
    inside = template
    names = [path or text]
    for _ in range(_MAX_WRAPPERS):
        if not inside or (wrapped == path and not _WRAPPER.search(path)):
            break
        wrapped, inside = _head(_first_argument(inside))
        names.append(wrapped)
    return Symbol(" ".join(names), template)


def _levels(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield each character with its place and the brackets around it; a bracket is outside."""
    depth = 0
    for i, char in enumerate(text):
        # `operator->` and trailing return types have an arrow, which closes nothing.
        arrow = char == ">" and text[i - 1 : i] == "-"
        if char in _CLOSING and not arrow:
            depth = max(0, depth - 1)
        yield i, char, depth
        if char in _OPENING:
            depth += 1


def _head(text: str) -> tuple[str, str]:
    """Return the last name before the arguments, and its template arguments."""
    path = ""
    template = ""
    begin = None
    ended = False
    for i, char, depth in _levels(text):
        if depth:
            continue
        if char == "(" and path:
            break
        if char == "<":
            begin = i + 1
        elif char == ">" and begin is not None:
            template = text[begin:i]
            begin = None
        elif char == " ":
            ended = True
        elif char not in _OPENING + _CLOSING:
            if ended:  # that was the return type
                path = ""
                template = ""
                ended = False
            path += char
    return path, template if begin is None else text[begin:]  # cut short if never closed


def _first_argument(template: str) -> str:
    """Return the first of several template arguments."""
    for i, char, depth in _levels(template):
        if char == "," and depth == 0:
            return template[:i]
    return template


def _parse_mangled(text: str) -> Symbol:
    """Read the identifiers of an Itanium-mangled name.

    Those before the first template argument name the function. Later, arguments cannot be distinguished
    from template arguments, so the rest are taken for these.
    """
    function: list[str] = []
    rest: list[str] = []
    i = 2  # after _Z
    found = function
    while i < len(text):
        noise = _MANGLED_NOISE.match(text, i)
        # Four digits at most: a name is cut to _MAX_LENGTH characters before it comes here.
        length = re.match(r"[0-9]{1,4}", text[i : i + 4])
        if noise:
            i = noise.end()
        elif length:
            begin = i + length.end()
            i = begin + int(length.group())
            found.append(text[begin:i])
        else:
            if text[i] == "I":
                found = rest
            i += 1
    path = "::".join(function)
    wrapped = " " + "::".join(rest[:_MAX_WRAPPERS]) if _WRAPPER.search(path) else ""
    return Symbol(path + wrapped, " ".join(rest))
