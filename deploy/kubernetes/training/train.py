"""Data-parallel training in float16 with a GradScaler; on GPUs if there are any, else on the CPU.

Started by torchrun, one process a GPU. The line of ampwatch is ``ampwatch.monitor``.
"""

from __future__ import annotations

import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

import ampwatch

STEPS = int(os.environ.get("STEPS", "2000"))
WIDTH = 256


def main() -> None:
    """Train."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(int(os.environ["RANK"]))

    network = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
    )
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type)

    with ampwatch.monitor(model, scaler) as watch:  # this line is all
        for _ in range(STEPS):
            inputs = torch.randn(64, WIDTH, device=device)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.float16):
                loss = torch.nn.functional.mse_loss(model(inputs), inputs)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if int(os.environ["RANK"]) == 0:
            print(watch.report())
    destroy_process_group()


if __name__ == "__main__":
    main()
