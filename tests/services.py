"""Real parts from the system that some tests need."""

import os
import shutil

import pytest

PACKAGES = "apt-get install prometheus prometheus-alertmanager chromium chromium-driver openssl openssh-client systemd g++"


def require(program: str) -> str:
    """Return the path of ``program``; without it, skip the test or, where they are required, fail."""
    path = shutil.which(program)
    if path is None:
        outcome = pytest.fail if os.environ.get("AMPWATCH_REQUIRE_SERVICES") == "1" else pytest.skip
        outcome(f"{program} is not installed; on Debian: {PACKAGES}")
    return path
