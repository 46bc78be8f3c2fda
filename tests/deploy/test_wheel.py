"""A package installed from the wheel can deploy as a checkout can."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from ampwatch.operate.deploy.options import DeployOptions
from ampwatch.operate.deploy.tree import tree
from tests.deploy.parts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

PRINT_THE_TREE = """
import json, ampwatch
from ampwatch.operate.deploy.options import DeployOptions
from ampwatch.operate.deploy.tree import tree
print(json.dumps({"from": ampwatch.__file__, "files": tree(DeployOptions())}))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built without a network and unpacked as an installer does."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site-packages")
    return directory / "site-packages"


def test_the_installed_package_deploys_the_same_tree(unpacked: Path, tmp_path: Path) -> None:
    """File for file as the checkout does."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_THE_TREE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
    )
    answer = json.loads(done.stdout)

    assert answer["from"].startswith(str(unpacked))
    assert answer["files"] == tree(DeployOptions())
