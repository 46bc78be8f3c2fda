"""Facts of a run, the shapes of its layers, and where a training is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from ampwatch.diagnosis.evidence.ops import LayerShape
from ampwatch.host.metrics.catalog import CATALOG
from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.model.facts import _ask, is_first, layer_shapes, ranks, run_facts
from ampwatch.training.model.home import Home
from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import Trained


def test_ranks_come_from_torchrun_slurm_or_mpi() -> None:
    """The launcher's variables are read; nonsense is not."""
    assert ranks({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}) == (3, 1, 8)
    assert ranks({"SLURM_PROCID": "5", "SLURM_LOCALID": "2", "SLURM_NTASKS": "16"}) == (5, 2, 16)
    assert ranks({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}) == (2, 0, 4)
    assert ranks({"RANK": "three"}) == (0, 0, 1)
    assert ranks({}) == (0, 0, 1)


def test_one_rank_of_a_machine_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its launcher's word; processes that start one another have the numbers of the group alone."""
    assert [is_first(rank, 2) for rank in range(2)] == [True, False]
    assert is_first(3, 1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert is_first(8, 16)


def test_the_scalers_settings_are_facts() -> None:
    """Initial scale, factors and interval, as numbers in words."""
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_factor=3.0, growth_interval=7)
    facts = run_facts(scaler, ["float16"], torch.device("cpu"))

    assert {k: facts[k] for k in ("scaler", "init_scale", "growth_factor", "growth_interval")} == {
        "scaler": "GradScaler",
        "init_scale": "128.0",
        "growth_factor": "3.0",
        "growth_interval": "7",
    }


def test_no_scaler_and_a_disabled_one_are_distinguished() -> None:
    """``none`` and ``disabled`` are different answers to a user's question."""
    disabled = torch.amp.GradScaler("cpu", enabled=False)

    assert run_facts(None, [], None)["scaler"] == "none"
    assert run_facts(disabled, [], None)["scaler"] == "disabled"


def test_backend_flags_follow_the_backends() -> None:
    """A flag that is switched shows up switched."""
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = True
        on = run_facts(None, [], None)["cudnn_benchmark"]
        torch.backends.cudnn.benchmark = False
        off = run_facts(None, [], None)["cudnn_benchmark"]
    finally:
        torch.backends.cudnn.benchmark = before

    assert (on, off) == ("true", "false")


def test_a_flag_that_torch_does_not_have_is_unknown() -> None:
    """Mixed TF32 switches raise in torch; a missing flag does as well."""

    def mixed() -> object:
        msg = "PyTorch is checking whether allow_tf32_new is enabled"
        raise RuntimeError(msg)

    assert _ask(mixed) == "unknown"
    assert _ask(lambda: torch.backends.no_such_flag) == "unknown"


def test_every_fact_is_a_short_string_that_the_catalogue_knows() -> None:
    """A fact without a label would be lost on its way."""
    labels = next(m for m in CATALOG if m.name == "ampwatch_run_info").labels
    scaler = torch.amp.GradScaler("cpu")
    facts = run_facts(scaler, ["float16", "bfloat16"], torch.device("cpu"))

    assert set(facts) <= set(labels)
    assert all(isinstance(v, str) and len(v) < 64 for v in facts.values())
    assert facts["autocast_dtype"] == "bfloat16,float16"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, groups=2), nn.BatchNorm2d(8))
        self.head = nn.Linear(5, 7, dtype=torch.bfloat16)
        self.lazy = nn.LazyLinear(3)


def test_linear_and_convolutional_layers_are_listed_with_the_channels_of_a_group() -> None:
    """Norms are not, nor layers without a weight yet."""
    model = Net()  # names hold it weakly

    shapes = layer_shapes(Names([model]))

    assert shapes == [
        LayerShape("body.0", OpKind.CONVOLUTION, (3, 4), 8 * 3 * 9, "float32", "cpu"),
        LayerShape("head", OpKind.MATMUL, (5, 7), 35, "bfloat16", "cpu"),
    ]


def test_a_model_on_the_meta_device_has_shapes_all_the_same() -> None:
    """A model that does not fit this machine can be examined."""
    with torch.device("meta"):
        model = nn.Linear(770, 50257)

    (shape,) = layer_shapes(Names([model]))

    assert (shape.module, shape.dims, shape.device_type) == ("", (770, 50257), "meta")


def test_a_layer_whose_weight_is_computed_is_left_out() -> None:
    """Quantized layers keep it behind a method."""
    model = nn.Linear(4, 4)
    del model.weight
    model.weight = lambda: None  # type: ignore[assignment]

    assert layer_shapes(Names([model])) == []


def test_the_shape_of_a_weight_that_is_computed_is_known_and_the_weight_is_not_computed() -> None:
    """A spectral norm takes a step of its power iteration each time somebody asks for the weight."""
    norm = parametrizations.spectral_norm(nn.Linear(6, 4))
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    (shape,) = layer_shapes(Names([norm]))

    assert (shape.dims, shape.numel, shape.dtype) == ((6, 4), 24, "float32")
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


class Placed(nn.Parameter):
    """A parameter that says it is on another device."""

    where: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override] # PyTorch's is no property of Python
        return self.where


def _model(*devices: str) -> nn.Module:
    model = nn.Module()
    for index, device in enumerate(devices):
        parameter = Placed(torch.zeros(1))
        parameter.where = torch.device(device)
        model.register_parameter(f"p{index}", parameter)
    return model


def _home(model: nn.Module | None) -> Home:
    names = Names([] if model is None else [model])
    return Home(names, Trained(names))


def test_the_first_accelerator_counts_and_else_the_host() -> None:
    """An embedding that was left on the host is not where the model computes."""
    mixed, on_host = _home(_model("cpu", "cuda:1", "cuda:0")), _home(_model("cpu"))

    assert mixed.device == torch.device("cuda:1")
    assert mixed.devices == tuple(map(torch.device, ("cpu", "cuda:1", "cuda:0")))
    assert on_host.device == torch.device("cpu")


def test_a_model_that_is_yet_to_be_made_is_nowhere() -> None:
    """As sharded models are, which get their memory after ``monitor()``."""
    model = _model("meta", "meta")
    home = _home(model)
    before = home.device
    for parameter in model.parameters():
        parameter.where = torch.device("cuda:0")

    assert before is None
    assert home.update()
    assert home.device == torch.device("cuda:0")
    assert not home.update()


def test_without_a_model_the_optimizers_that_were_met_say_where() -> None:
    """Nothing is known before one steps."""
    names = Names([])
    trained = Trained(names)
    home = Home(names, trained)
    before = home.device
    optimizer = torch.optim.SGD(_model("cuda:3").parameters(), lr=0.1)
    trained.meet(optimizer)

    assert before is None
    assert home.update()
    assert home.device == torch.device("cuda:3")
