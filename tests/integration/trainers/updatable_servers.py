"""The fake servers of the engine tests, with the routes of weight updates.

Their toy model has one weight: a shift of the ids that it predicts from. vLLM's routes answer as 0.32 was seen to;
those for weight transfer, and SGLang's, are written from their sources."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from fake_sglang import FakeSglang
from fake_vllm import FakeVllm
from toy_model import ShiftedToy

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def model_folder(folder: Path, *, tied: bool) -> Path:
    """A checkpoint of the toy model whose shift is 0."""
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    save_file(weights(0, tied=tied), folder / "model.safetensors")
    return folder


def weights(shift: int, *, tied: bool = False) -> dict[str, Any]:
    import torch

    tensors = {EMBEDDING: torch.tensor([float(shift)]), HEAD: torch.tensor([float(shift)])}
    return {EMBEDDING: tensors[EMBEDDING]} if tied else tensors


class Gate:
    """Lets replies go on, one token at a time if a test wants that."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    @property
    def held(self) -> bool:
        return not self.open.is_set()


@dataclass
class UpdatableVllm(FakeVllm):
    served: Path = Path("/weights/toy")
    release_number: str = "0.32.0"
    dev_mode: bool = True
    names_versions: bool = True
    transfers: bool = True
    deaf: bool = False
    """Answers every update with success and keeps its weights."""
    model: ShiftedToy = field(default_factory=ShiftedToy)
    version: str = "default"
    calls: list[tuple[str, Any]] = field(default_factory=list)
    sampled_by: list[str] = field(default_factory=list)
    """The version of each token of the reply under way."""
    gate: Gate = field(default_factory=Gate)

    def app(self) -> web.Application:
        self.models = [{"id": "toy", "root": str(self.served), "parent": None, "max_model_len": 768}]
        app = super().app()
        if self.dev_mode:
            for path in ("/pause", "/resume", "/collective_rpc", "/reset_prefix_cache"):
                app.router.add_post(path, self._command)
        if self.dev_mode and self.names_versions:
            app.router.add_post("/update_weight_version", self._command)
        if self.dev_mode and self.transfers:
            for path in ("init_weight_transfer_engine", "start_weight_update", "update_weights"):
                app.router.add_post(f"/{path}", self._command)
            app.router.add_post("/finish_weight_update", self._command)
        return app

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.release_number})

    async def _command(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path_qs, body))
        action = getattr(self, "_" + request.path.strip("/"))
        problem = action(request, body)
        return web.json_response({"error": problem}, status=500) if problem else web.Response()

    def _pause(self, request: web.Request, _: Any) -> None:
        assert request.query["mode"] == "keep", "the default aborts replies"
        self.gate.open.clear()

    def _resume(self, *_: Any) -> None:
        self.gate.open.set()

    def _collective_rpc(self, _: web.Request, body: Any) -> None:
        from safetensors.torch import load_file

        assert body["method"] == "reload_weights"
        self._take(load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors"))

    def _take(self, tensors: dict[str, Any]) -> None:
        assert tensors.keys() == {EMBEDDING, HEAD}, "a head that is missing stays as it was"
        if not self.deaf:
            self.model.shift = int(tensors[HEAD].item())

    def _reset_prefix_cache(self, request: web.Request, _: Any) -> None:
        assert request.query["reset_running_requests"] == "true", "else it fails if a request runs"
        self.model.held.clear()

    def _update_weight_version(self, _: web.Request, body: Any) -> None:
        self.version = body["new_version"]

    def _init_weight_transfer_engine(self, _: web.Request, body: Any) -> None:
        assert body["init_info"] == {}

    def _start_weight_update(self, *_: Any) -> None:
        self.receiving: dict[str, Any] = {}

    def _update_weights(self, _: web.Request, body: Any) -> str:
        info = body["update_info"]
        assert info.keys() == {"names", "dtype_names", "shapes", "ipc_handles_pickled"}
        handles = pickle.loads(base64.b64decode(info["ipc_handles_pickled"]))
        assert len(info["names"]) == len(info["dtype_names"]) == len(info["shapes"]) == len(handles)
        if any(list(handle) != ["GPU-1"] for handle in handles):
            return "IPC handle not found for GPU UUID GPU-1"
        self.receiving |= {
            name: OPENED[handle["GPU-1"]] for name, handle in zip(info["names"], handles, strict=True)
        }
        return ""

    def _finish_weight_update(self, *_: Any) -> None:
        self._take(self.receiving)

    async def step(self) -> None:
        self.sampled_by.append(self.version)
        await super().step()
        await self.gate.open.wait()

    def _weight_versions(self, count: int) -> list[dict[str, Any]]:
        versions = [*self.sampled_by, self.version][-count:]
        return [{"version": name, "start": n, "end": n + 1} for n, name in enumerate(versions)]


OPENED: dict[Any, Any] = {}
"""Tensors that the trainer shares, by the arguments with which another process opens them."""


@dataclass
class UpdatableSglang(FakeSglang):
    model: ShiftedToy = field(default_factory=ShiftedToy)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    busy: bool = False
    """Requests are under way or wait."""
    refuses: str = ""
    gate: Gate = field(default_factory=Gate)

    def app(self) -> web.Application:
        app = super().app()
        for path in ("pause_generation", "continue_generation", "update_weights_from_disk", "flush_cache"):
            app.router.add_post(f"/{path}", self._command)
        app.router.add_post("/update_weight_version", self._command)
        return app

    async def _command(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body))
        return getattr(self, "_" + request.path.strip("/"))(body)

    def _pause_generation(self, body: Any) -> web.Response:
        assert body["mode"] in ("in_place", "retract"), "the default aborts replies"
        self.gate.open.clear()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    def _continue_generation(self, _: Any) -> web.Response:
        self.gate.open.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    def _update_weights_from_disk(self, body: Any) -> web.Response:
        from safetensors.torch import load_file

        assert body["flush_cache"] is False, "its own flush is an assertion"
        if self.refuses:
            return web.json_response({"success": False, "message": self.refuses}, status=400)
        self.model.shift = int(load_file(Path(body["model_path"]) / "model.safetensors")[HEAD].item())
        return web.json_response({"success": True, "message": "Succeeded.", "num_paused_requests": 0})

    def _flush_cache(self, _: Any) -> web.Response:
        if self.busy:
            return web.Response(text="Flush cache failed.\n", status=400)
        self.model.held.clear()
        return web.Response(text="Cache flushed.\n")

    def _update_weight_version(self, body: Any) -> web.Response:
        assert body["abort_all_requests"] is False, "the default aborts replies"
        self.weight_version = body["new_version"]
        return web.json_response({"success": True, "new_version": body["new_version"]})

    async def step(self) -> None:
        await super().step()
        await self.gate.open.wait()
