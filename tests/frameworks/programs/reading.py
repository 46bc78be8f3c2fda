"""Reads back what a logger has kept: numbers as ``{key: {step: value}}``, and texts."""

from __future__ import annotations

import csv
import json
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 32768
"""Bytes of a block in the file of an offline run of W&B."""

HEADER = 7
"""Bytes before the first record of such a file, and before each part of a record."""

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
"""Kinds of parts of a record."""


def read_tensorboard(place: Path) -> dict[str, Any]:
    """Read the event files in a directory as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    events = EventAccumulator(str(place), size_guidance={"tensors": 0, "histograms": 0})
    events.Reload()
    tags = events.Tags()
    return {
        "numbers": {
            tag: {event.step: event.value for event in events.Scalars(tag)}
            for tag in tags["scalars"]
        },
        "texts": {
            tag: [event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)]
            for tag in tags["tensors"]
        },
        "histograms": {
            tag: [
                [
                    event.step,
                    event.histogram_value.bucket_limit,
                    event.histogram_value.bucket,
                ]
                for event in events.Histograms(tag)
            ]
            for tag in tags["histograms"]
        },
        "files": len(list(place.glob("events.*"))),
    }


def read_mlflow(place: Path) -> dict[str, Any]:
    """Read the one run of a store in a file of SQLite."""
    import mlflow  # noqa: PLC0415

    client = mlflow.MlflowClient(f"sqlite:///{place}/mlflow.db")
    (experiment,) = client.search_experiments()
    (run,) = client.search_runs([experiment.experiment_id])
    return {
        "numbers": {
            key: {m.step: m.value for m in client.get_metric_history(run.info.run_id, key)}
            for key in run.data.metrics
        },
        "texts": run.data.tags,
        "found": len(
            client.search_runs(
                [experiment.experiment_id], "tags.`amp/kind/forward_overflow` = 'critical'"
            )
        ),
    }


def read_trackio(_: Path) -> dict[str, Any]:
    """Read the one run of the store that ``TRACKIO_DIR`` names."""
    from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415

    numbers: dict[str, dict[int, float]] = {}
    histograms: dict[str, list[Any]] = {}
    for row in SQLiteStorage.get_logs("p", "r"):
        for key in row.keys() - {"step", "timestamp"}:
            if isinstance(row[key], dict):
                at = row["amp/sample_step"], row[key]["bins"][1:], row[key]["values"]
                histograms.setdefault(key, []).append(at)
            else:
                numbers.setdefault(key, {})[row["step"]] = float(row[key])
    alerts = [(alert["step"], alert["text"]) for alert in SQLiteStorage.get_alerts("p")]
    return {"numbers": numbers, "histograms": histograms, "alerts": alerts}


def read_csv(place: Path) -> dict[str, Any]:
    """Read the rows of Lightning's ``CSVLogger``."""
    numbers: dict[str, dict[int, float]] = {}
    with (place / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for key in row.keys() - {"step"}:
                if row[key]:
                    numbers.setdefault(key, {})[int(row["step"])] = float(row[key])
    return {"numbers": numbers}


def read_wandb(place: Path) -> dict[str, Any]:
    """Read the one offline run below a directory."""
    from wandb.proto import wandb_internal_pb2 as proto  # noqa: PLC0415

    (path,) = place.rglob("*.wandb")
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    alerts: list[list[str]] = []
    axes: dict[str, str] = {}
    for data in records_of(path.read_bytes()):
        record = proto.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append(items_of(record.history.item))
        elif record.HasField("summary"):
            summary |= items_of(record.summary.update)
        elif record.HasField("alert"):
            alerts.append([record.alert.level, record.alert.title, record.alert.text])
        elif record.HasField("metric"):
            metric = record.metric
            axes[metric.name or metric.glob_name] = metric.step_metric
    return {"rows": rows, "summary": summary, "alerts": alerts, "axes": axes}


def items_of(items: Any) -> dict[str, Any]:
    """Return the values of a row or of a summary."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def records_of(data: bytes) -> Iterator[bytes]:
    """Yield the records of the file of an offline run: a log as LevelDB writes it."""
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # too little is left of this block for a part
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part = data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        parts = part if kind in (FULL, FIRST) else parts + part
        if kind in (FULL, LAST):
            yield parts


READERS = {
    "tensorboard": read_tensorboard,
    "tensorboardX": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
    "trackio": read_trackio,
    "lightning_tensorboard": read_tensorboard,
    "lightning_csv": read_csv,
}

if __name__ == "__main__":
    print(json.dumps(READERS[sys.argv[1]](Path(sys.argv[2]))))
