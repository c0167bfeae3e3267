"""Closed gRPC load by grpc.aio: USERS coroutines on one channel, each with one request in flight.

    python rival_grpc_aio.py ADDRESS REQUEST_FILE USERS SECONDS

REQUEST_FILE is JSON: model, version, id, inputs (name, datatype, shape, hex). The message is serialised once and
replies are not parsed. Prints one JSON object; times in us. A status other than OK ends it with a traceback.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

METHOD = "/inference.GRPCInferenceService/ModelInfer"


def encode(request: dict[str, Any]) -> bytes:
    message = service_pb2.ModelInferRequest(
        model_name=request["model"], model_version=request["version"], id=request["id"]
    )
    for tensor in request["inputs"]:
        message.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        message.raw_input_contents.append(bytes.fromhex(tensor["hex"]))
    return bytes(message.SerializeToString())


async def run(address: str, body: bytes, users: int, seconds: float) -> dict[str, Any]:
    service_s: list[float] = []

    async def user(infer: Any, end: float) -> None:
        now = time.perf_counter()
        while now < end:
            sent = now
            await infer(body)
            now = time.perf_counter()
            service_s.append(now - sent)

    async with grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary(METHOD)  # without serialisers: bytes in, bytes out
        await infer(body)  # connects
        start = time.perf_counter()
        await asyncio.gather(*(user(infer, start + seconds) for _ in range(users)))
        elapsed_s = time.perf_counter() - start
    service_s.sort()
    n = len(service_s)
    return {
        "version": grpc.__version__,
        "n_ok": n,
        "n_failed": 0,
        "elapsed_s": elapsed_s,
        "service_us": {f"p{q}": round(service_s[q * n // 100] * 1e6, 1) for q in (50, 95, 99)},
    }


def main() -> None:
    address, request_file, users, seconds = sys.argv[1:]
    body = encode(json.loads(Path(request_file).read_text()))
    print(json.dumps(asyncio.run(run(address, body, int(users), float(seconds)))))


main()
