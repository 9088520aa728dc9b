"""Weights into vLLM out of the trainer's GPU memory, by its routes for weight transfer with the backend `ipc`.

Trainer and server share one GPU. The server gets handles of the trainer's tensors, opens them and copies; nothing
goes over a disk. vLLM reads the handles as a pickle, so it must be told to trust its clients:

    VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_INSECURE_SERIALIZATION=1 \\
        vllm serve MODEL --weight-transfer-config '{"backend": "ipc"}'
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from polar.trainers.weights.base import WeightError, WeightOptions, Weights
from polar.trainers.weights.checkpoint import to_send
from polar.trainers.weights.vllm import VllmTarget

INIT = "/init_weight_transfer_engine"
START = "/start_weight_update"
UPDATE = "/update_weights"
FINISH = "/finish_weight_update"

Handle = dict[str, tuple[Any, ...]]
"""The arguments with which another process opens a tensor, by the id of its GPU."""


class VllmIpcTarget(VllmTarget):
    advice = (
        "start it with VLLM_SERVER_DEV_MODE=1 and VLLM_ALLOW_INSECURE_SERIALIZATION=1 in its environment, and "
        """--weight-transfer-config '{"backend": "ipc"}'"""
    )

    def __init__(self, engine_options: Mapping[str, Any], model: Path, options: WeightOptions) -> None:
        super().__init__(engine_options, model, options)
        self._initialised = False

    async def _load(self, weights: Weights) -> None:
        tensors = await asyncio.to_thread(to_send, self.model.whole(weights), self.options.dtype)
        with shared(tensors) as handles:
            try:
                await self._transfer(tensors, handles)
            except WeightError as error:
                raise WeightError(f"{error}; for transfer by IPC {self.advice}") from error

    async def _transfer(self, tensors: Weights, handles: list[Handle]) -> None:
        if not self._initialised:
            await self.command(INIT, {"init_info": {}})
            self._initialised = True
        info = {
            "names": list(tensors),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
        }
        await self.command(START)
        await self.command(UPDATE, {"update_info": info})
        await self.command(FINISH)


@contextmanager
def shared(tensors: Weights) -> Generator[list[Handle]]:
    """Handles of tensors on the GPU, which must stay in memory until the server has finished."""
    if not all(tensor.is_cuda for tensor in tensors.values()):
        raise WeightError("IPC shares GPU memory, and the weights are not all on a GPU: use the transfer `disk`")
    handles = [{_gpu_id(tensor): reduce_tensor(tensor)[1]} for tensor in tensors.values()]
    torch.cuda.synchronize()  # the server does not wait for conversions that are still running here
    try:
        yield handles
    finally:
        torch.cuda.ipc_collect()  # frees what the server has closed


def _gpu_id(tensor: torch.Tensor) -> str:
    return str(torch.cuda.get_device_properties(tensor.device).uuid)
