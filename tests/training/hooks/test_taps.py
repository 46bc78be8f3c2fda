"""Taps on methods of a class."""

from __future__ import annotations

import inspect
import sys
import threading
from types import ModuleType
from typing import Any

import pytest
import torch

from ampwatch.training.hooks import taps
from ampwatch.training.hooks.tapped_call import NOT_TAKEN, PythonTappedCall, TappedCall
from ampwatch.training.hooks.taps import listen, listen_to_function

pytestmark = pytest.mark.parametrize(
    "made_by", dict.fromkeys([TappedCall, PythonTappedCall]), indirect=True
)


@pytest.fixture(autouse=True)
def made_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls be made by the extension module, where it is built, or by Python."""
    monkeypatch.setattr(taps, "TappedCall", request.param)


class Base:
    def greet(self, name: str, *, loud: bool = False) -> str:
        """Say hello."""
        return f"HELLO {name}" if loud else f"hello {name}"


class Derived(Base):
    pass


class Overriding(Base):
    def greet(self, name: str, *, loud: bool = False) -> str:
        return "well, " + super().greet(name, loud=loud)


def test_only_the_chosen_instance_is_listened_to() -> None:
    """Instances of the class other than the chosen one go by unheard, equal or not."""
    heard: list[Any] = []
    mine, other = Base(), Base()
    listener = listen(Base, "greet", instance=mine, before=lambda *a: heard.append(a))
    other.greet("x")
    mine.greet("y", loud=True)
    listener.remove()
    mine.greet("z")

    assert heard == [(mine, ("y",), {"loud": True})]


def test_after_comes_after_and_not_at_all_when_the_method_raises() -> None:
    """A method that raises has not returned."""
    order: list[str] = []
    thing = Base()
    listener = listen(
        Base,
        "greet",
        instance=thing,
        before=lambda *_: order.append("before"),
        after=lambda *_: order.append("after"),
    )
    thing.greet("x")
    with pytest.raises(TypeError):
        thing.greet()  # type: ignore[call-arg]
    listener.remove()

    assert order == ["before", "after", "before"]


def test_what_the_method_has_raised_is_handled_while_who_hears_of_it_is_told() -> None:
    """It is what sys.exc_info() says then, and what was handled before is again afterwards."""
    heard: list[Any] = []
    listener = listen(Base, "greet", failed=lambda _: heard.append(sys.exc_info()[1]))
    outer = KeyError()
    try:
        raise outer
    except KeyError:
        with pytest.raises(TypeError) as caught:
            Base().greet()  # type: ignore[call-arg]
        handled = sys.exc_info()[1]
    listener.remove()

    assert heard == [caught.value]
    assert caught.value.__context__ is handled is outer


def test_a_listener_that_is_alone_may_make_the_call_itself() -> None:
    """What it leaves to the tap, and what another one listens to as well, goes the usual way."""
    order: list[str] = []

    def around(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if kwargs:
            return NOT_TAKEN
        order.append("around")
        return original(instance, *args)

    alone = listen(Base, "greet", before=lambda *_: order.append("before"), around=around)
    said = [Base().greet("x"), Base().greet("x", loud=True)]
    other = listen(Base, "greet", before=lambda *_: order.append("other"))
    said.append(Base().greet("x"))
    other.remove()
    said.append(Base().greet("x"))
    alone.remove()
    said.append(Base().greet("x"))

    assert order == ["around", "before", "before", "other", "around"]
    assert said == ["hello x", "HELLO x", *["hello x"] * 3]


def test_the_method_is_restored_with_the_last_listener_only() -> None:
    """Two listeners share one wrapper; the class ends with the very function it had."""
    original = Base.__dict__["greet"]
    first = listen(Base, "greet", before=lambda *_: None)
    second = listen(Base, "greet", before=lambda *_: None)
    first.remove()
    between = Base.__dict__["greet"]
    second.remove()
    second.remove()

    assert between is not original
    assert Base.__dict__["greet"] is original


def test_an_inherited_method_is_tapped_where_it_is_defined() -> None:
    """The subclass gets no method of its own that would stay or be pickled."""
    heard: list[Any] = []
    thing = Derived()
    listener = listen(Derived, "greet", instance=thing, before=lambda *_: heard.append(1))
    thing.greet("x")
    listener.remove()

    assert heard == [1]
    assert "greet" not in vars(Derived)


def test_an_overriding_method_is_heard_once_although_it_calls_the_base() -> None:
    """One call of the user is one call for us."""
    heard: list[Any] = []
    plain, thing = Base(), Overriding()
    listeners = [
        listen(Base, "greet", instance=plain, before=lambda *_: heard.append("plain")),
        listen(Overriding, "greet", instance=thing, before=lambda *_: heard.append("thing")),
    ]

    assert thing.greet("x") == "well, hello x"
    assert heard == ["thing"]
    for listener in listeners:
        listener.remove()


def test_signature_name_and_docstring_stay_visible() -> None:
    """Introspection of a tapped method shows the user's method."""
    before = inspect.signature(Base.greet)
    listener = listen(Base, "greet", before=lambda *_: None)
    seen = (inspect.signature(Base.greet), Base.greet.__name__, Base.greet.__doc__)
    listener.remove()

    assert seen == (before, "greet", "Say hello.")


def test_a_missing_method_is_refused_with_its_name() -> None:
    """The error says which class and which method."""
    with pytest.raises(AttributeError, match=r"method of Base, got 'wave'"):
        listen(Base, "wave")


def test_listening_and_calling_from_two_threads_loses_no_call() -> None:
    """Listeners come and go while another thread is calling."""
    heard: list[int] = []
    thing = Base()
    steady = listen(Base, "greet", instance=thing, before=lambda *_: heard.append(1))

    def call() -> None:
        for _ in range(2000):
            thing.greet("x")

    caller = threading.Thread(target=call)
    caller.start()
    while caller.is_alive():
        listen(Base, "greet", before=lambda *_: None).remove()
    caller.join()
    steady.remove()

    assert len(heard) == 2000


def test_a_compiled_call_is_passed_through_without_a_graph_break() -> None:
    """Inside torch.compile a tapped method is the method itself."""
    heard: list[int] = []

    class Doubler:
        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    doubler = Doubler()
    listener = listen(Doubler, "apply", instance=doubler, before=lambda *_: heard.append(1))
    compiled = torch.compile(lambda x: doubler.apply(x) + 1, backend="eager", fullgraph=True)
    result = compiled(torch.ones(2))
    listener.remove()

    assert result.tolist() == [3.0, 3.0]
    assert heard == []


def test_a_tap_that_somebody_tore_out_is_made_anew() -> None:
    """A tool that restores the method blindly does not blind those who come later."""
    heard: list[int] = []
    original = Base.__dict__["greet"]
    torn = listen(Base, "greet", before=lambda *_: None)
    Base.greet = original  # type: ignore[method-assign]
    listener = listen(Base, "greet", before=lambda *_: heard.append(1))
    Base().greet("x")
    listener.remove()
    torn.remove()

    assert heard == [1]
    assert Base.__dict__["greet"] is original


def test_what_a_method_returns_can_be_heard() -> None:
    """After it has returned, with the very object; not at all when it raises."""
    heard: list[Any] = []
    mine, other = Base(), Base()
    listener = listen(Base, "greet", instance=mine, returned=lambda *a: heard.append(a))
    other.greet("x")
    said = mine.greet("y")
    with pytest.raises(TypeError):
        mine.greet()  # type: ignore[call-arg]
    listener.remove()

    assert heard == [(mine, said, ("y",), {})]
    assert heard[0][1] is said


def _module() -> ModuleType:
    """A module of a function, and one that looks it up when it is called."""
    module = ModuleType("made_up")
    code = """
def inner(x, *, times=1):
    'Multiply.'
    if times < 0:
        raise ValueError(times)
    return x * times

def outer(x):
    return inner(x, times=3) + 1
"""
    exec(code, vars(module))
    return module


def test_a_function_is_heard_wherever_it_is_looked_up() -> None:
    """A caller that was imported by name before looks it up in its module as well."""
    module, heard = _module(), []
    outer = module.outer
    listener = listen_to_function(
        module,
        "inner",
        before=lambda args, kwargs: heard.append(("before", args, kwargs)),
        after=lambda args, kwargs: heard.append(("after", args, kwargs)),
    )
    result = outer(2)
    with pytest.raises(ValueError, match="-1"):
        module.inner(1, times=-1)
    listener.remove()
    outer(2)

    assert result == 7
    assert heard == [
        ("before", (2,), {"times": 3}),
        ("after", (2,), {"times": 3}),
        ("before", (1,), {"times": -1}),
    ]


def test_a_function_is_restored_with_its_last_listener() -> None:
    """The module ends with the very function it had; meanwhile it looks like that one."""
    module = _module()
    original = module.inner
    first = listen_to_function(module, "inner", before=lambda *_: None)
    second = listen_to_function(module, "inner", after=lambda *_: None)
    seen = (module.inner.__name__, module.inner.__doc__, inspect.signature(module.inner))
    first.remove()
    between = module.inner
    second.remove()

    assert seen == ("inner", "Multiply.", inspect.signature(original))
    assert between is not original
    assert module.inner is original


def test_a_missing_function_is_refused_with_its_name() -> None:
    """The error says which module and which function."""
    with pytest.raises(AttributeError, match=r"function of made_up, got 'outermost'"):
        listen_to_function(_module(), "outermost")
