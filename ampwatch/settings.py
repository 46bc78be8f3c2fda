"""Settings of ampwatch, each once: its default, its environment variable, its limits.

A setting is taken from the keyword argument, else from the environment variable
``AMPWATCH_<NAME>``, else from the default below. All of them are checked together,
before anything is attached or started. ``docs/settings.md`` is printed from here
(``python -m ampwatch.settings > docs/settings.md``).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ampwatch.errors import SettingsError, did_you_mean
from ampwatch.numerics.units.kernels.kernel_patterns import parse_patterns
from ampwatch.numerics.units.peaks import parse_override

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_PORT = 10917
"""The daemon's port. Outside 9100-9999, which is allocated in full; not registered yet."""

REQUIRE_SERVICES = "AMPWATCH_REQUIRE_SERVICES"
"""Variable of the tests, and no setting: with it a service that is missing fails them."""

ATTACH = "AMPWATCH_ATTACH"
"""Variable in which `ampwatch run` asks the program's processes to attach by themselves; no setting."""

SERVE, FINDINGS_ONLY = "serve", "findings-only"
"""Values of ``ATTACH``: with a daemon, or without."""

LEVELS = ("off", "light", "standard", "deep")
OP_CENSUSES = ("auto", "window")
COMPILED_CENSUSES = ("window", "force_eager")
GPU_SOURCES = ("auto", "off", "demo")
READERS = ("auto", "token", "all")
SWITCH = ("off", "on")
REPLAYS = ("off", "on", "sampled")
MODULE_SERIES_RANKS = ("host", "all", "run")
_WORDS = {
    "level": LEVELS,
    "gpu": GPU_SOURCES,
    "readers": READERS,
    "lab": SWITCH,
    "replay": REPLAYS,
    "op_census": OP_CENSUSES,
    "compiled_census": COMPILED_CENSUSES,
    "module_series_ranks": MODULE_SERIES_RANKS,
}
"""Words that are allowed in settings of a single word."""

_SWITCHED = {
    **dict.fromkeys((False, "0", "false"), "off"),
    **dict.fromkeys((True, "1", "true"), "on"),
}
"""What else turns something off or on, in the program and in a variable."""

ENVIRONMENT_PREFIX = "AMPWATCH_"
ALL_LISTED = "docs/settings.md lists them all, and so does `python -m ampwatch.settings`"
ADDRESSES = ("external_url", "grafana_url", "alertmanager_url")
DIRECTORIES = ("runtime_dir", "ring_dir", "report_dir", "record_dir")
MAX_NAME_LENGTH = 64

logger = logging.getLogger("ampwatch")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


def _knob(default: Any, text: str, *, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"help": text, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings of one process.

    Attributes are documented where they are declared; ``docs/settings.md`` is
    generated from the same lines.
    """

    level: str = _knob(
        "standard",
        "How much is watched: off, light (scaler, steps, loss, schedulers), standard (also ranges and ops in some steps, kernels in profiler windows) or deep (every op of every step, the rest more often).",
    )
    run: str = _knob("", "Name of the run, stable between restarts; the script's name if empty.")
    runtime_dir: str = _knob(
        "", "Directory of the daemon's lock and log; chosen by the system if empty."
    )
    ring_dir: str = _knob("", "Directory of the ring files; shared memory if empty.")
    ring_slots: int = _knob(
        8192,
        "Slots of a ring; 256 bytes each, two or more a training step; fewer on a file system under 256 MiB.",
        low=64,
        high=262144,
    )
    host: str = _knob("127.0.0.1", "Address the daemon listens on.")
    port: int = _knob(DEFAULT_PORT, "Port the daemon listens on.", low=0, high=65535)
    readers: str = _knob(
        "auto",
        "Who may read the page and the metrics: auto (a user's daemon asks for the user's token, or for what the web-config file says; the daemon of a machine answers all who can connect), token (always ask for it) or all (all who can connect).",
    )
    external_url: str = _knob(
        "",
        "Address by which others open the page, as `https://train.example.com/node-a/` behind a reverse proxy: logs and alerts link to it. Empty: logs have the address that the daemon listens on, and alerts name the host.",
    )
    grafana_url: str = _knob(
        "",
        "Address of the Grafana that has the dashboards: the page and `ampwatch top` link to the one of a run. Empty: no link.",
    )
    alertmanager_url: str = _knob(
        "",
        "Address of Alertmanager: the page and `ampwatch top` link to a new silence for the alerts of a run. Empty: no link.",
    )
    poll_seconds: float = _knob(
        0.5, "Time between two reads of the rings by the daemon.", low=0.05, high=60.0
    )
    stale_seconds: float = _knob(
        120.0,
        "Time without a step after which a live rank is stale, if it is also ten of its usual steps.",
        low=1.0,
    )
    grace_seconds: float = _knob(
        600.0,
        "Time for which the daemon shows a run that has ended. A daemon that `monitor()` started ends when it has had nothing to show for a tenth of it, at least a second.",
        low=0.0,
    )
    gpu: str = _knob(
        "auto",
        "What the daemon reads of GPUs: auto (all that NVML reports), off (nothing, where another exporter does) or demo (GPUs that do not exist, to try the page and dashboards).",
    )
    sample_every: int = _knob(
        0,
        "Steps from one sample to the next; 0: as often as the overhead budget allows. A sample that would take more than an eighth of a step is spread over several.",
        low=0,
    )
    report_dir: str = _knob(
        "",
        "Directory of reports; `~/.local/state/ampwatch/runs` if empty. If it is set, reports are written with `serve=False` as well.",
    )
    report_files: int = _knob(
        64,
        "Number of reports that are kept of all runs of one name, one per rank; 0: none are written.",
        low=0,
    )
    lab: str = _knob(
        "off",
        "The laboratory, off or on (also True, and 1 in the variable): error budgets, precision plans, tapes, and what MXFP8, MXFP6, MXFP4 and NVFP4 would do to a tensor, for which blocks of 16 and 32 elements are measured, at most every five seconds, and of large tensors of one element in 32. At `standard` and `deep`.",
    )
    record_dir: str = _knob(
        "",
        "Directory of tapes: what each recorded step computes, tensor by tensor, for `ampwatch lab diff`; empty: nothing is recorded. With `lab`.",
    )
    record_first: int = _knob(
        8, "Number of steps at the start that are recorded.", low=0, high=100000
    )
    record_every: int = _knob(
        0, "After these, steps from one recorded step to the next; 0: none is recorded.", low=0
    )
    overhead_budget: float = _knob(
        0.01, "Share of the step time that ampwatch may cost.", low=0.0001, high=1.0
    )
    op_census: str = _knob(
        "auto",
        "How ops are observed while nothing is wrong: auto (one by one, at `standard` in some steps) or window (at `standard` from profiler windows only, without modules, reasons and values).",
    )
    compiled_census: str = _knob(
        "window",
        "How the ops of compiled code are counted: window (from profiler windows) or force_eager (one by one where `op_census` says so, in steps in which torch.compile is disabled, which round differently from compiled ones).",
    )
    replay: str = _knob(
        "on",
        "Replay failed steps: on (the forward pass once more on a replica of the model that shares its weights, with remedies tried on the batch that failed), sampled (where compiled code runs, sampled steps as well, to measure outputs of modules) or off.",
    )
    memory_bytes: int = _knob(
        0,
        "Memory that ampwatch may hold, on the host and again on devices: ring, evidence, samples, and inputs of the model that only replays still need; what does not fit is not kept. Bytes; 0: 1 % of the model's, at least 64 MiB.",
        low=0,
    )
    peak_flops: str = _knob(
        "",
        "Peak of the GPU, where it is not known or wrong: `float16=989e12,float32=67e12`, in FLOP/s.",
    )
    kernel_patterns: str = _knob(
        "",
        "Kernels of your own, for the share of tensor cores: `my_gemm_.*=tensor:bfloat16`, several separated by semicolons.",
    )
    window_seconds: float = _knob(
        -1.0,
        "Least time from one profiler window to the next; 0: only for `ampwatch trace`; -1: 600 on a GPU and where torch.compile is used, else 0.",
        low=-1.0,
    )
    max_modules: int = _knob(
        128,
        "Modules whose ranges are recorded in a sampled step; those with the most trouble come first.",
        low=0,
        high=512,
    )
    module_series: int = _knob(
        32,
        "Modules of a rank that have series of their own in Prometheus; the daemon counts the others.",
        low=0,
        high=256,
    )
    module_series_ranks: str = _knob(
        "host",
        "Which ranks of a run have series per module: host (of the ranks that measure a module, the lowest on each machine, and others while only they have trouble with it), all, or run (rank 0 only).",
    )

    @classmethod
    def resolve(
        cls,
        given: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        beside: Iterable[str] = (),
        warns: bool = True,
    ) -> Settings:
        """Return the settings of this process: ``given`` over the environment over the defaults.

        Args:
            given: Settings by name; ``None`` values count as not given.
            environ: Environment to read; the process's own if ``None``.
            beside: Names that the caller takes besides settings, and that may have been meant.
            warns: Whether to warn of variables ``AMPWATCH_*`` that are no settings, which have no effect.

        Raises:
            SettingsError: If a name is unknown, or a value has the wrong type or range.
        """
        given = {} if given is None else {k: v for k, v in given.items() if v is not None}
        environ = os.environ if environ is None else environ
        known = {f.name: f for f in fields(cls)}
        if unknown := sorted(set(given) - set(known)):
            there = [*known, *beside]
            got = ", ".join(f"{name!r}{did_you_mean(name, there, most=3)}" for name in unknown)
            msg = f"expected names of settings, got {got}; {ALL_LISTED}"
            raise SettingsError(msg)
        values = {}
        for name, spec in known.items():
            label, value = f"`{name}`", given.get(name)
            if value is None:
                label = ENVIRONMENT_PREFIX + name.upper()
                value = environ.get(label) or None
            if value is not None:
                if _WORDS.get(name) is SWITCH and isinstance(value, (int, str)):
                    value = _SWITCHED.get(value, value)
                values[name] = _checked(label, value, spec.default, spec.metadata)
                if name in ADDRESSES and values[name]:
                    values[name] = checked_base(label, values[name])
        for name in DIRECTORIES:
            # A program that changes its directory later has one place for its reports, anyway.
            values[name] = os.path.abspath(values[name]) if values.get(name) else ""  # noqa: PTH100 - text, as given
        settings = cls(**values)
        _check_words(settings)
        for sentence in unknown_variables(environ) if warns else ():
            logger.warning("%s", sentence)
        return settings

    @property
    def run_name(self) -> str:
        """The name of the run: as given, else the stem of the running script."""
        if self.run:
            return self.run
        script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
        return (re.sub(r"[^A-Za-z0-9._-]", "-", script).strip("-._") or "python")[:MAX_NAME_LENGTH]


def checked_url(label: str, text: str) -> str:
    """Return an address of HTTP.

    Raises:
        SettingsError: If it is none, or has characters that do not belong there.
    """
    with suppress(ValueError):  # a port that is no number, a bracket that is not closed
        parts = urlsplit(text)
        is_one = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        if is_one and not re.search(r"[^\x21-\x7e]|[\"'\\<>{}]", text):
            return text
    msg = f"{label}: expected an address that begins with http:// or https://, got {text!r}; give the whole of it, as a browser shows it"
    raise SettingsError(msg)


def checked_base(label: str, text: str) -> str:
    """Return an address to which a path can be added, with a slash at its end.

    Raises:
        SettingsError: If it is none.
    """
    url = checked_url(label, text)
    if re.search(r"[?#$]|//[^/]*@", url):
        msg = f"{label}: expected an address to which a path can be added, as https://example.com/a/, got {text!r}; leave out what begins with ? or #, dollar signs, name and password"
        raise SettingsError(msg)
    return url if url.endswith("/") else f"{url}/"


def _checked(label: str, value: Any, default: Any, limits: Mapping[str, Any]) -> Any:
    """Convert ``value`` to the type of ``default`` and hold it against the limits."""
    kind = type(default)
    try:
        if isinstance(value, bool) or (kind is str and not isinstance(value, (str, os.PathLike))):
            raise TypeError  # noqa: TRY301 - one message for every way of being wrong
        converted = os.fspath(value) if kind is str else kind(value)
        if kind is int and isinstance(value, float) and converted != value:
            raise ValueError  # noqa: TRY301 - 2.5 must not silently become 2
    except (TypeError, ValueError, OverflowError):
        msg = f"{label}: expected {kind.__name__}, got {value!r}; leave it out for the default {default!r}"
        raise SettingsError(msg) from None
    low, high = limits["low"], limits["high"]
    if (low is not None and not converted >= low) or (high is not None and not converted <= high):
        bounds = f">= {low}" if high is None else f"from {low} to {high}"
        msg = f"{label}: expected a value {bounds}, got {value!r}; leave it out for the default {default!r}"
        raise SettingsError(msg)
    return converted


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each variable ``AMPWATCH_*`` that is no setting.

    Args:
        environ: Environment to read; the process's own if ``None``.
    """
    prefix = ENVIRONMENT_PREFIX
    known = [prefix + spec.name.upper() for spec in fields(Settings)]
    return [
        f"expected settings in {prefix}* variables, got {name}"
        + did_you_mean(name, known, "see docs/settings.md", prefix=prefix)
        for name in sorted(os.environ if environ is None else environ)
        if name.startswith(prefix) and name not in (*known, REQUIRE_SERVICES, ATTACH)
    ]


def _check_words(settings: Settings) -> None:
    for name, words in _WORDS.items():
        if (given := getattr(settings, name)) not in words:
            msg = f"`{name}`: expected one of {', '.join(words)}, got {given!r}"
            raise SettingsError(msg)
    if settings.record_dir and settings.level == "light":
        msg = "`record_dir`: expected level standard or deep, at which tensors are seen, got level 'light'"
        raise SettingsError(msg)
    if settings.record_dir and settings.lab == "off" and settings.level != "off":
        msg = "`record_dir`: expected `lab=True` with it (AMPWATCH_LAB=1), got a training without"
        raise SettingsError(msg)
    parse_override(settings.peak_flops)
    parse_patterns(settings.kernel_patterns)
    if settings.run and (len(settings.run) > MAX_NAME_LENGTH or not _NAME.fullmatch(settings.run)):
        msg = (
            f"`run`: expected 1 to {MAX_NAME_LENGTH} characters out of A-Z a-z 0-9 . _ : / -, beginning with a letter"
            f" or digit, got {settings.run!r}; it becomes a Prometheus label, so choose a stable name without a time in it"
        )
        raise SettingsError(msg)


_INTRODUCTION = """\
# Settings

Generated from `ampwatch/settings.py`; change that file, then run
`python -m ampwatch.settings > docs/settings.md`.

- In the training script a setting is a keyword: `ampwatch.monitor(model, scaler, ring_slots=16384)`.
- Everywhere it is an environment variable of its name in capitals: `AMPWATCH_RING_SLOTS=16384`. An empty variable counts as not set; a
  keyword wins.
- A value of the wrong type or outside its limits is an error (`ampwatch.SettingsError`), before anything is attached. An unknown keyword
  is an error as well, an unknown variable a warning.
- A daemon that `monitor()` starts gets the settings of that process; one that runs keeps its own.

These five are enough for most trainings:

"""


def markdown() -> str:
    """Return the text of ``docs/settings.md``: five settings, and the others in groups that are folded."""
    groups = {
        "What is measured": "sample_every op_census compiled_census replay memory_bytes window_seconds max_modules peak_flops kernel_patterns",
        "The daemon": "host external_url grafana_url alertmanager_url readers poll_seconds stale_seconds grace_seconds gpu runtime_dir ring_dir ring_slots report_files",
        "Prometheus series of modules": "module_series module_series_ranks",
        "The laboratory": "lab record_dir record_first record_every",
    }
    heads = "| name | default | limits | what it is |\n| --- | --- | --- | --- |\n"
    rows = {spec.name: _row(spec) for spec in fields(Settings)}
    folded = ""
    for title, names in groups.items():
        table = heads + "".join(rows.pop(name) for name in names.split())
        count = f"<summary>{len(names.split())} settings</summary>"
        folded += f"\n## {title}\n\n<details markdown>\n{count}\n\n{table}\n</details>\n"
    return _INTRODUCTION + heads + "".join(rows.values()) + folded


def _row(spec: Field[Any]) -> str:
    cells = (
        f"`{spec.name}`",
        "empty" if spec.default == "" else f"`{spec.default}`",
        _bounds(spec.metadata["low"], spec.metadata["high"]),
        spec.metadata["help"],
    )
    return f"| {' | '.join(cells)} |\n"


def _bounds(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f">= {low}" if high is None else f"{low} to {high}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
