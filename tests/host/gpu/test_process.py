"""The daemon as a process, with a driver that is a stand-in, with none, and with synthetic GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampwatch.host.gpu import pids
from ampwatch.wire.ring import RingReader
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.host.gpu.standin import directory_of_library, write


def driver(tmp_path: Path, **settings: object) -> dict[str, str]:
    """Return the environment in which the stand-in is the driver."""
    write(tmp_path / "driver", settings)
    library = str(directory_of_library())
    return {"NVML_STANDIN": str(tmp_path / "driver"), "LD_LIBRARY_PATH": library}


def metrics(daemon: Daemon, wanted: str) -> str:
    """Wait for ``wanted`` in a scrape; return the scrape."""

    def scrape() -> str:
        text = daemon.ask("/metrics").text
        return text if wanted in text else ""

    return eventually(scrape, wanted)


@pytest.mark.rotating
def test_a_driver_is_found_and_read(place: Place, tmp_path: Path) -> None:
    """By the loader of the system, with an XID error that comes later and a rank that computes."""
    environment = driver(tmp_path, gpus=8)
    with place.daemon(**environment) as daemon, place.writer("gpt") as writer:
        writer.do("step")
        text = metrics(daemon, "ampwatch_gpu_tensor_active_ratio{")
        write(
            tmp_path / "driver",
            {"gpus": 8, "xids": "5:79", "pid": writer.process.pid},
        )
        later = metrics(daemon, 'ampwatch_gpu_xid_last_timestamp_seconds{gpu="5"')
        if pids.is_of_the_host():  # else nobody believes a pid of the stand-in
            metrics(
                daemon,
                'gpu_process_info{gpu="0",gpu_instance="",rank="0",run="gpt",uuid="GPU-00000000"} 1.0',
            )
        state = daemon.ask("/state.json").json["gpus"]

    assert 'ampwatch_gpu_up{gpu="7",uuid="GPU-00000007"} 1.0' in text
    assert 'ampwatch_collector_success{collector="gpu"} 1.0' in text
    assert 'ampwatch_gpu_xid_errors_total{gpu="5",uuid="GPU-00000005",xid="79"} 1.0' in later
    assert len(state["gpus"]) == 8


def test_the_writer_of_a_ring_is_known_by_its_pid(place: Place) -> None:
    """The kernel says the pid as this process sees it; the writer's own word is not needed."""
    with place.writer("gpt") as writer:
        writer.do("step")
        reader = RingReader(writer.path)
        before = reader.writer_pid
        reader.writer_alive()
        alive = reader.writer_pid
        writer.kill()
        reader.writer_alive()

    assert (before, alive, reader.writer_pid) == (0, writer.process.pid, 0)
    reader.close()


@pytest.mark.rotating
def test_a_driver_that_hangs_stalls_no_scrape(place: Place, tmp_path: Path) -> None:
    """The rings are read and the page is served while NVML does not answer."""
    environment = driver(tmp_path, hang=600)
    with place.daemon(**environment) as daemon, place.writer("gpt") as writer:
        writer.do("step")
        text = metrics(daemon, 'ampwatch_steps_total{rank="0",run="gpt"} 1.0')

    assert 'feature="nvml",gpu="",reason="waiting"' in text
    assert 'collector="gpu"' not in text


def test_gpus_can_be_left_alone(place: Place, tmp_path: Path) -> None:
    """Where dcgm-exporter reads them; nothing of NVIDIA's is loaded then."""
    with place.daemon("--no-gpu", **driver(tmp_path)) as daemon:
        text = metrics(daemon, "switched_off")
        loaded = Path(f"/proc/{daemon.process.pid}/maps").read_text(encoding="utf-8")

    assert "ampwatch_gpu_up{" not in text
    assert "libnvidia-ml" not in loaded


def test_synthetic_gpus_are_shown_on_request(place: Place) -> None:
    """Synthetic GPUs are marked as what they are."""
    with place.daemon("--demo-gpu") as daemon:
        text = metrics(daemon, "ampwatch_gpu_up{")

    assert text.count("ampwatch_gpu_up{") == text.count('synthetic="true"') == 4
