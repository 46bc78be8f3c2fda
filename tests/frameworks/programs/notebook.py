"""Runs a notebook without a browser, some cells twice, and writes down what then stands below each cell.

``python notebook.py``; the training is that of ``log_to.py``, with ampwatch as a notebook has it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELLS = {
    "set up": """
import json, os, torch, ampwatch
from log_to import written
from shared import Course, Net, batches, loss_of, new_scaler, settle

settle()
model, scaler = Net(), new_scaler()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
course = Course(model)
watch = ampwatch.monitor(model, scaler, level="deep", serve=False)
""",
    "live": "watch.live(every_seconds=0.5)",
    "train": """
for x, y in batches():
    course.begins()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_of(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    course.ended(scaler.get_scale())
watch.close()
""",
    "watch": "watch",
    "finding": "next(finding for finding in watch.findings if finding.kind == 'forward_overflow')",
    "written": 'with open(os.environ["PROGRAM_WRITTEN"], "w") as file: json.dump(written(model, course), file)',
}
ORDER = ("set up", "live", "live", "train", "watch", "watch", "finding", "written")
"""The cells in the order in which they are run."""

if __name__ == "__main__":
    out = Path(os.environ["PROGRAM_OUT"])
    weights = out.with_name("weights.json")
    os.environ["PROGRAM_WRITTEN"] = str(weights)
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(Path(__file__).parent)}}
    )
    names = list(CELLS)
    with client.setup_kernel():
        for name in ORDER:
            client.execute_cell(cells[names.index(name)], names.index(name))
    shown = {name: cell.outputs for name, cell in zip(names, cells, strict=True)}
    result = {"shown": shown} | json.loads(weights.read_text(encoding="utf-8"))
    out.write_text(json.dumps(result), encoding="utf-8")
