"""Graphs that the user captures: nothing of ampwatch is in them, and no capture breaks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from tests.played.machine import Graph, Machine
from tests.played.trainings import DEVICE, Training

# What PyTorch says of warm-ups on a side stream, with and without ampwatch.
pytestmark = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")

LEVELS = ("light", "standard", "deep")
played: Any = getattr(torch, DEVICE)


def graphed(training: Training, *, on_one_stream: bool = False) -> list[Graph]:
    """As ``torch.cuda.make_graphed_callables`` does: warm up, capture forward and backward."""
    parameters = list(training.model.parameters())
    side = played.Stream()
    side.wait_stream(played.current_stream())
    with played.stream(side):
        for _ in range(3):
            outputs = training.model(training.batch)
            torch.autograd.grad(outputs.sum(), parameters)
    played.current_stream().wait_stream(side)
    forward, backward = Graph(), Graph()
    on = side if on_one_stream else None
    with played.graph(forward, on=on):
        outputs = training.model(training.batch)
    with played.graph(backward, on=on):
        torch.autograd.grad(outputs.sum(), parameters)
    return [forward, backward]


def graphed_where_it_warmed_up(training: Training) -> list[Graph]:
    """On the stream whose ops were traced just before."""
    return graphed(training, on_one_stream=True)


def whole(training: Training) -> list[Graph]:
    """A whole step, after warm-ups that are no iterations: no optimizer of theirs steps."""
    for _ in range(3):
        with torch.autocast(DEVICE, dtype=torch.float16):
            training.model(training.batch).float().square().mean().backward()
    training.optimizer.zero_grad(set_to_none=True)
    graph = Graph()
    with played.graph(graph), torch.autocast(DEVICE, dtype=torch.float16):
        loss = training.model(training.batch).float().square().mean()
        training.scaler.scale(loss).backward()
        training.scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0, foreach=True)
        training.scaler.step(training.optimizer)
        training.scaler.update()
    return [graph]


def unscaled(training: Training) -> list[Graph]:
    """A step without a scaler, in the middle of an iteration that has begun eagerly."""
    training.model(training.batch).square().mean().backward()
    training.optimizer.zero_grad(set_to_none=True)
    graph = Graph()
    with played.graph(graph):
        training.model(training.batch).square().mean().backward()
        training.optimizer.step()
    return [graph]


CAPTURES = (graphed, graphed_where_it_warmed_up, whole, unscaled)

TELLING = (
    (graphed_where_it_warmed_up, "deep", False, False),
    (unscaled, "standard", False, True),
    (whole, "light", True, True),
    (whole, "standard", True, False),
)
"""Captures in which the defects of ``test_planted.py`` are found; others are left to the night."""


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("capture", "level", "scaled", "has_stepped"),
    [
        pytest.param(*case, marks=[] if case in TELLING else pytest.mark.nightly)
        for case in itertools.product(CAPTURES, LEVELS, (False, True), (False, True))
    ],
)
def test_a_capture_has_the_nodes_that_it_has_without_us(
    device: Machine,
    capture: Callable[[Training], list[Graph]],
    level: str,
    *,
    scaled: bool,
    has_stepped: bool,
) -> None:
    """Also replays after ``close()`` touch no memory of ours: the device would punish it."""
    nodes, bits = [], []
    for watched in (False, True):
        training = Training("fused")
        scaler = training.scaler if scaled else None
        watch = (
            ampwatch.monitor(
                training.model, scaler, optimizer=training.optimizer, level=level, serve=False
            )
            if watched
            else nullcontext()
        )
        with watch:
            if has_stepped:
                training.run([1.0] * 3)
            graphs = capture(training)
            for graph in graphs:
                graph.replay()
            training.step()
        for graph in graphs:
            graph.replay()
        device.finish()
        nodes.append([graph.nodes for graph in graphs])
        bits.append(training.bits())
        if watched:
            report = watch.report()

    assert nodes[1] == nodes[0]
    assert bits[1] == bits[0]
    assert "switched off" not in report


@pytest.mark.nightly
@pytest.mark.parametrize("level", LEVELS)
def test_a_backward_is_captured_without_what_hooks_of_its_forward_would_measure(level: str) -> None:
    """Its forward ran eagerly, and left hooks in the iterations whose gradients are measured."""
    nodes = []
    for watched in (False, True):
        training = Training("fused")
        settings: dict[str, Any] = {"level": level, "sample_every": 1, "serve": False}
        watch = (
            ampwatch.monitor(training.model, training.scaler, **settings)
            if watched
            else nullcontext()
        )
        with watch:
            training.run([1.0] * 5)
            side = played.Stream()
            side.wait_stream(played.current_stream())
            graphs = [Graph() for _ in range(6)]
            for graph in graphs:
                with played.stream(side), torch.autocast(DEVICE, dtype=torch.float16):
                    loss = training.model(training.batch).float().square().mean()
                with played.graph(graph, on=side):
                    loss.backward()
                played.current_stream().wait_stream(side)
                training.step()
        nodes.append([graph.nodes for graph in graphs])

    assert nodes[1] == nodes[0]


def test_events_are_not_asked_while_a_graph_is_captured(device: Machine) -> None:
    """Values on their way stay there; asking an event would end the capture."""
    training = Training("fused")
    device.lag = 10**9
    with ampwatch.monitor(training.model, training.scaler, level="deep", serve=False) as watch:
        training.run([1.0] * 3)
        with played.graph(Graph()):
            before = watch.last_step
            watch.report()
        device.finish()
        after = watch.last_step

    assert before.skipped is None
    assert after.skipped is False


def test_a_monitor_that_is_closed_in_a_capture_leaves_it_alone() -> None:
    """A callback may close it anywhere."""
    training = Training("fused")
    watch = ampwatch.monitor(training.model, training.scaler, level="deep", serve=False)
    training.run([1.0] * 3)
    training.model(training.batch).sum().backward()
    graph = Graph()
    with played.graph(graph):
        training.model(training.batch)
        names = list(graph.nodes)
        watch.close()

    assert graph.nodes == names


def test_a_run_whose_steps_are_all_captured_is_told_that_none_is_seen() -> None:
    """And why."""
    training = Training("fused")
    with ampwatch.monitor(training.model, training.scaler, serve=False) as watch:
        (graph,) = whole(training)
        for _ in range(5):
            graph.replay()
        report = " ".join(watch.report().split())

    assert "no step has been seen" in report
    assert "captured graphs" in report
