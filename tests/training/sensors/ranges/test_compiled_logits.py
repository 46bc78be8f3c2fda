"""What is seen of the logits of compiled attention is what docs/diagnoses/logit_growth.md says."""

from __future__ import annotations

import json
import shutil

import pytest

from ampwatch.training.private import SEES_COMPILED
from tests.workshop.alone import python

pytestmark = pytest.mark.skipif(not SEES_COMPILED, reason="before PyTorch 2.10 nothing is seen")

# A process of its own: in one in which compiled code has run, other tests would be seen differently.
PROGRAM = """
import json, math, sys
import torch
from torch import nn
import ampwatch
from ampwatch.diagnosis.forward.logits import LogitGrowth

seen, observe = set(), LogitGrowth.observe
def note(growth, read):
    seen.add((read.where, read.is_bound, read.op.startswith("_scaled_dot_product")))
    observe(growth, read)
LogitGrowth.observe = note

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if sys.argv[2] == "fused":
            return nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v

torch.set_num_threads(1)
model = nn.Sequential(Attention(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ampwatch.monitor(model, optimizer=optimizer, serve=False):
    compiled = torch.compile(model, backend=sys.argv[1])
    for _ in range(12):
        compiled(torch.randn(2, 8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(json.dumps(sorted(seen)))
"""

NEEDS_COMPILER = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles for a CPU with g++"),
]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("backend", "attention", "expected"),
    [
        ("aot_eager", "op by op", [["0", False, False]]),
        pytest.param("eager", "op by op", [["0", False, False]], marks=pytest.mark.nightly),
        pytest.param("eager", "fused", [["0", True, True]], marks=pytest.mark.nightly),
        pytest.param("inductor", "fused", [["0", True, True]], marks=NEEDS_COMPILER),
        pytest.param("inductor", "op by op", [], marks=NEEDS_COMPILER),
    ],
)
def test_logits_of_compiled_attention_are_seen_where_its_ops_are_called(
    backend: str, attention: str, expected: list[list[object]]
) -> None:
    """With inductor fused attention and products are called; it makes a kernel of its own of a softmax."""
    said = python("-W", "ignore", "-c", PROGRAM, backend, attention).stdout
    assert json.loads(said.splitlines()[-1]) == expected
