"""The planted fault."""

from __future__ import annotations

import torch

from ampwatch.demo.corpus import VOCABULARY
from ampwatch.demo.model import CharacterGPT
from ampwatch.demo.training import FAULTY_MODULE, drift
from tests.demo.test_model import TINY


def test_finite_inputs_come_out_of_the_faulty_module_as_infinities() -> None:
    """In float16, with finite weights; nowhere before it."""
    torch.manual_seed(0)
    model = CharacterGPT(TINY)
    finite: dict[str, tuple[bool, bool]] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _module, inputs, output, name=name: finite.update(
                {name: (bool(inputs[0].isfinite().all()), bool(output.isfinite().all()))}
            )
        )
    text = torch.randint(VOCABULARY, (2, 8))
    said: list[str] = []

    with torch.autocast("cpu", dtype=torch.float16):
        model(text)
        healthy = dict(finite)
        for _ in range(14):
            drift(model, said.append)
        model(text)

    assert all(all(pair) for pair in healthy.values())
    assert finite[FAULTY_MODULE] == (True, False)
    assert finite[f"{FAULTY_MODULE}.down"] == (True, True)
    assert finite["blocks.1"] == (True, True)
    assert all(p.isfinite().all() for p in model.parameters())


def test_it_is_announced_once() -> None:
    """With its place."""
    model = CharacterGPT(TINY)
    said: list[str] = []

    for _ in range(3):
        drift(model, said.append)

    assert len(said) == 1
    assert FAULTY_MODULE in said[0]
