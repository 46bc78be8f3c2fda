"""``torch.compile`` beside the op census: what is compiled stays compiled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ampwatch.training.hooks import compiling
from ampwatch.training.private import NOT_TRACED, TRACED_AS
from tests.workshop.alone import python

HERE = Path(__file__).resolve().parents[3]

PROGRAM = """
import json, os, sys, warnings
warnings.simplefilter("error")
# The compiler's own behind a graph break; it hides it, unless it is an error.
warnings.filterwarnings("ignore", message="The .grad attribute")
import torch
from torch import nn
import ampwatch
# Once for all that are forked; it does not import the compiler.
import ampwatch.training.monitor

assert "torch._dynamo" not in sys.modules
torch.set_num_threads(1)

class Part(nn.Linear):
    def forward(self, x):
        return torch.tanh(super().forward(x))

class Net(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.a, self.b = Part(8, 16), nn.Linear(16, 4)
        self.breaks = breaks
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.a(x)
        if self.breaks:
            torch._dynamo.graph_break()
            with torch.autocast("cpu", enabled=False):
                x = x.float().sin()
        return self.b(torch.relu(x))

def counted():
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    return {
        name: sum(utils.counters[name].values()) for name in ("frames", "graph_break", "stats")
    }

def train(when, watched):
    level = watched or "standard"
    calls = []
    def backend(graph, inputs):
        calls.append(1)
        def compiled(*args):
            calls.append(2)
            return graph.forward(*args)
        return compiled

    torch.manual_seed(0)
    model = Net(when == "breaks")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = model
    if when == "before":
        run = torch.compile(model, backend=backend)
    watch = ampwatch.monitor(model, scaler, serve=False, level=level) if watched else None
    if when == "unused":
        torch.compile(Net(False), backend=backend)
    if when == "inside":
        model.a.compile(backend=backend)
    if when in ("after", "breaks"):
        run = torch.compile(model, backend=backend)
    if when == "unheard":
        def broken(x):
            torch._dynamo.graph_break()
            return model(x)
        run = torch._dynamo.optimize(backend)(broken)
    if when == "optimizer":
        optimizer.step = torch.compile(optimizer.step, backend=backend)
    losses = []
    def whole(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()
    iteration = torch.compile(whole, backend=backend) if when == "whole" else whole
    for step in range(6):
        optimizer.zero_grad()
        x = torch.randn(4, 8)
        if when == "middle" and step == 0:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model(x).float().sum().backward()
            run = torch.compile(model, backend=backend)
            optimizer.zero_grad()
        losses.append(iteration(x).item())
    said, last = "", 5
    if watch is not None:
        said, last = watch.report(), watch.last_step.step
        errors = watch._session.cost().sensor_errors
        assert not errors, errors
        watch.close()
        asked = getattr(torch.nn.modules.module, "_has_any_global_hook", bool)
        assert not asked()
    return {
        "compiled": calls.count(1), "runs": calls.count(2), "losses": losses,
        "weights": [p.detach().double().sum().item() for p in model.parameters()],
        "counted": counted(), "modes": torch._C._len_torch_dispatch_stack(), "said": said,
        "last": last,
    }

# Each in a process where nothing has been compiled.
for what, when in json.loads(sys.argv[1]):
    if what == "import":
        import torch._dynamo
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The compiler asks it about gradients of optimizers.
            import torch._inductor.cudagraph_trees
        continue
    child = os.fork()
    if child == 0:
        print(json.dumps([what, when, train(when, "" if what == "bare" else what)]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, (what, when)
"""

MODELS = ("before", "after", "middle", "breaks", "inside", "unused")
WHEN = (*MODELS, "whole", "optimizer", "unheard")
WATCHED = [
    *((level, when) for level in ("standard", "deep") for when in MODELS),
    *((level, "whole") for level in ("light", "standard", "deep")),
    ("standard", "optimizer"),
    ("standard", "unheard"),
]
EARLY = [("standard", "after"), ("deep", "middle")]
RUNS = [
    *EARLY,
    ("import", ""),
    *(run for run in WATCHED if run not in EARLY),
    *(("bare", when) for when in WHEN),
]
"""Importing the compiler takes seconds. Those that begin without it come first: one of
each kind, and one at each level that observes ops."""


@pytest.fixture(scope="module")
def trained() -> dict[tuple[str, str], Any]:
    """Outcomes of trainings, each in a process of its own that was forked from one."""
    said = python("-c", PROGRAM, json.dumps(RUNS)).stdout
    told = [json.loads(line) for line in said.splitlines()]
    return {(what, when): result for what, when, result in told}


@pytest.mark.nightly
@pytest.mark.parametrize(("level", "when"), WATCHED)
def test_a_compiled_model_is_compiled_and_run_as_without_ampwatch(
    when: str, level: str, trained: dict[tuple[str, str], Any]
) -> None:
    """Compiled before ``monitor``, after it, in the middle of a counted iteration, with a graph break, unheard.

    The frames that were captured, the graphs and the breaks are as many; of a step of the optimizer
    a frame less is told: what is left of it after its graph does nothing, unless hooks are called. Each iteration
    is heard. Nobody is warned of hooks, either: warnings are errors in that program.
    """
    bare, watched = trained["bare", when], trained[level, when]
    frames, own = (run["counted"].get("frames", 0) for run in (watched, bare))
    watched, bare = ({**run, "counted": {**run["counted"], "frames": 0}} for run in (watched, bare))

    assert (bare["compiled"] >= 1) is (when != "unused")
    assert {**watched, "said": ""} == bare
    assert (
        own - 2 * (when in ("whole", "optimizer")) <= frames <= own
    )  # counted as begun and as done
    if level != "light":
        assert ("compiled code runs" in " ".join(watched["said"].split())) is (when != "unused")


class Frames:
    """A stand-in for ``torch._dynamo.eval_frame``."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Counters:
    """A stand-in for ``torch._dynamo.utils``."""

    def __init__(self, frames: dict[str, int]) -> None:
        self.counters = {"frames": frames}


@pytest.mark.parametrize(
    ("frames", "counters", "may"),
    [
        (None, None, False),
        (Frames(cached_backends={}), Counters({}), False),
        (Frames(cached_backends={1: False}), Counters({}), False),
        (Frames(cached_backends={1: print}), Counters({}), True),
        (Frames(cached_backends={}), Counters({"total": 1}), True),
        (Frames(), Counters({}), True),
    ],
    ids=["not loaded", "loaded", "disabled", "called", "has compiled", "kept elsewhere"],
)
def test_whether_anything_may_be_compiled(
    frames: Any, counters: Any, monkeypatch: pytest.MonkeyPatch, *, may: bool
) -> None:
    """From what PyTorch keeps of the backends that it was called with."""
    for name, module in (("eval_frame", frames), ("utils", counters)):
        if module is None:
            monkeypatch.delitem(sys.modules, f"torch._dynamo.{name}", raising=False)
        else:
            monkeypatch.setitem(sys.modules, f"torch._dynamo.{name}", module)

    assert compiling.may_compile() is may


def test_the_compiler_is_asked_once_what_it_does_with_a_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as it is there: of what stood in place of it before then, when next there is an occasion."""
    monkeypatch.setattr(compiling, "_stand_ins", WeakKeyDictionary())
    asked = []

    def check(function: Any, *, is_inlined_call: bool) -> bool:
        asked.append((function, is_inlined_call))
        return function is int

    rules = "torch._dynamo.trace_rules"
    monkeypatch.delitem(sys.modules, rules, raising=False)
    early = compiling.as_stand_in(lambda: 1, int)
    compiling.keep_from_compiler()
    assert not hasattr(early, NOT_TRACED)
    monkeypatch.setitem(sys.modules, rules, SimpleNamespace(**{TRACED_AS: check}))
    late = compiling.as_stand_in(lambda: 2, float)
    for _ in range(2):
        compiling.keep_from_compiler()

    assert asked == [(float, True), (int, True)]
    assert (getattr(early, NOT_TRACED), hasattr(late, NOT_TRACED)) == (True, False)
