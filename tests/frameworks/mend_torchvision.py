"""Makes torchvision importable beside a build of torch for which its compiled ops are not made.

Its wheel on PyPI is built for CUDA. Beside torch for the CPU its ops do not load, which it takes
calmly, until it declares their shapes, which fails. Lightning, timm, transformers and fastai
import it and need none of the ops here, so that the declarations are emptied. Run once, by the
Python of the environment; changes nothing where torchvision can be imported, or is missing.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Empty the declarations, if the import fails for want of an op."""
    tried = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False
    )
    spec = importlib.util.find_spec("torchvision")
    if "operator torchvision::" not in tried.stderr or spec is None or spec.origin is None:
        return
    declarations = Path(spec.origin).with_name("_meta_registrations.py")
    declarations.write_text("# Emptied: the ops that were declared here are not in this build.\n")
    sys.stdout.write(f"Emptied {declarations}: torchvision's ops are built for another torch\n")


if __name__ == "__main__":
    main()
