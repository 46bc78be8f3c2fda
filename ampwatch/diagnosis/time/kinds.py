"""Kinds of findings about where time goes."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, after, certain, likely, very_likely
from ampwatch.wire.records import Finding, Severity

INPUT_BOUND = Kind(
    slug="input_bound",
    number=56,
    family=KindFamily.TIME,
    meaning="steps wait for the next batch",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=certain("each wait for a batch was timed"),
    advice=(
        "Prepare batches in other processes (DataLoader(num_workers=..., pin_memory=True,"
        " persistent_workers=True, prefetch_factor=4)). Make a batch cheaper: decode and augment"
        " ahead of the training, keep the data on a local disk, do without Python in __getitem__."
    ),
)


def _waits_for_data(symptom: Finding, _cause: Finding) -> bool:
    return symptom.evidence.get("data_share", 0.0) >= MAIN_SHARE


STEP_SLOWER = Kind(
    slug="step_slower",
    number=57,
    family=KindFamily.TIME,
    meaning="steps take longer than before",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=likely("the medians of many steps before and after were compared"),
    advice=(
        "Find what changed in the phase that has grown. For data: the loader and the disk; for forward and"
        " backward: a graph that grows from step to step (a hidden state that is not"
        " detached), recompilation (TORCH_LOGS=recompiles), lower clocks of the GPU; for the rest: logging,"
        " checkpoints and lists that grow. Where the thread had no core, something else runs on this host."
    ),
    explained_by=after("input_bound", fits=_waits_for_data),
)

MAIN_SHARE = 0.5
"""Share of the growth from which on a phase, or a lack of cores, is named as what it is due to."""


STRAGGLER = Kind(
    slug="straggler",
    number=58,
    family=KindFamily.TIME,
    meaning="one rank makes the others wait",
    severities=(Severity.WARNING,),
    certainty=very_likely("the phases of the same steps were compared between ranks"),
    advice=(
        "Examine that rank alone. For data its shard, its disk and its workers; for compute whether it gets"
        " longer inputs (sort by length, or cut) and whether its GPU is held down (power, heat:"
        " nvidia-smi -q -d PERFORMANCE); without a core what else runs on its host, and to which cores its"
        " process is bound; for a wait locks, checkpoints and network file systems. Move it to another"
        " machine to see whether the delay moves with it."
    ),
)
