"""The three promises while steps are recorded for `ampwatch lab diff`."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import ampwatch
from ampwatch.lab.tape import files
from ampwatch.lab.tape.files import TapeWriter, find_tapes, read_tape
from ampwatch.lab.tape.rows import TapeRecord
from ampwatch.lab.training.taping import TapeSensor
from ampwatch.training.monitor import Monitor
from tests.promises.conftest import ahead, each_recipe
from tests.promises.faults import Fault
from tests.trainings import Run, build

pytestmark = ahead


def watched(run: Run, directory: Path, **settings: object) -> Monitor:
    """Return a monitor that records."""
    return ampwatch.monitor(
        run.models,
        run.scaler,
        optimizer=run.optimizers,
        serve=False,
        lab=True,
        record_dir=str(directory),
        **settings,
    )


@each_recipe
def test_losses_scales_weights_and_random_state_are_the_same(recipe: str, tmp_path: Path) -> None:
    """Every recipe that is recorded ends in the same bits as without ampwatch."""
    bare = build(recipe)
    bare.loop()

    run = build(recipe)
    with watched(run, tmp_path) as watch:
        run.loop()

    assert run.digest() == bare.digest()
    assert "sensor tape failed and was switched off" not in watch.report()


def test_a_disk_that_fills_up_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on to the same bits; the log and the report say it once."""
    bare = build("fp16-foreach")
    bare.loop()
    put = TapeWriter.put

    def full(self: TapeWriter, record: TapeRecord) -> bool:
        if self.nbytes > 2000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(self, record)

    monkeypatch.setattr(TapeWriter, "put", full)
    run = build("fp16-foreach")
    with watched(run, tmp_path) as watch:
        run.loop()

    assert run.digest() == bare.digest()
    said = [r.getMessage() for r in caplog.records if "not recorded any more" in r.getMessage()]
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "steps are not recorded any more" in " ".join(watch.report().split())


@pytest.mark.parametrize(
    "method",
    [
        "_gradient_came",
        pytest.param("op", marks=pytest.mark.nightly),
        pytest.param("iteration_closing", marks=pytest.mark.nightly),
        pytest.param("iteration_arrived", marks=pytest.mark.nightly),
    ],
)
def test_a_fault_while_a_step_is_recorded_leaves_training_as_it_was(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sensor is switched off, and says so once; the bits stay the same."""
    bare = build("fp16-foreach")
    bare.loop()
    fault = Fault(getattr(TapeSensor, method), 2, RuntimeError)
    monkeypatch.setattr(TapeSensor, method, fault.bound_to())

    run = build("fp16-foreach")
    with watched(run, tmp_path) as watch:
        run.loop()
        report = watch.report()

    assert fault.calls >= 2
    assert run.digest() == bare.digest()
    assert len([r for r in caplog.records if "failed and is switched off" in r.message]) == 1
    assert "sensor tape failed and was switched off" in " ".join(report.split())


def test_a_tape_at_its_limit_ends_and_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is left out; what is there stays whole."""
    monkeypatch.setattr(files, "MAX_FILE", 120_000)
    run = build("fp16-foreach")
    with watched(run, tmp_path):
        run.loop()

    tape = read_tape(find_tapes(tmp_path)[0])
    assert 0 < len(tape.steps) < run.steps
    assert tape.path.stat().st_size <= 120_000


def test_a_directory_that_cannot_be_written_is_an_error_at_set_up(tmp_path: Path) -> None:
    """Nothing is watched, and the message says which setting it is."""
    (tmp_path / "taken").write_text("a file")
    run = build("fp16-foreach")

    with pytest.raises(ampwatch.SettingsError, match="record_dir"):
        watched(run, tmp_path / "taken")


def test_a_light_level_records_nothing_and_says_so(tmp_path: Path) -> None:
    """Tensors are not seen there: an error at once, not an empty tape later."""
    with pytest.raises(ampwatch.SettingsError, match="level standard or deep"):
        watched(build("fp16-foreach"), tmp_path, level="light")


def test_a_training_that_never_stepped_leaves_no_file(tmp_path: Path) -> None:
    """A tape without a step could be held against nothing."""
    directory = tmp_path / "tapes"
    watched(build("fp16-foreach"), directory).close()

    assert list(directory.iterdir()) == []
