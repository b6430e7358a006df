"""Part ``machine``: versions, and the rates of the device by itself."""

import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from gpu.job import Job
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PACKAGES = ("torch", "triton", "numpy", "tensordict", "torchrl", "hydra", "gymnasium")
PRODUCTS = {
    "float32": ("highest", torch.float32),
    "TF32": ("high", torch.float32),
    "bfloat16": ("high", torch.bfloat16),
}
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def run(job: Job) -> None:
    """Measure, the most important first."""
    job.note("python", platform.python_version(), cores=os.cpu_count())
    for name in PACKAGES:
        with job.attempt(name):
            if importlib.util.find_spec(name):
                job.note(name, getattr(importlib.import_module(name), "__version__", "installed"))
    if job.cuda:
        with job.attempt("gpu"):
            gpu(job)
    for group in (products, copies, launches, recurrent, attention):
        if job.chosen(group.__name__):
            with job.attempt(group.__name__):
                group(job)


def gpu(job: Job) -> None:
    """Write the name of the GPU, its size, and the versions below PyTorch."""
    properties = torch.cuda.get_device_properties(0)
    job.note(
        "gpu",
        torch.cuda.get_device_name(),
        memory_gb=round(getattr(properties, "total_memory", 0) / 2**30),
        multiprocessors=getattr(properties, "multi_processor_count", None),
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        driver=driver_version(),
    )


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None without ``nvidia-smi``."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return done.stdout.strip()


def products(job: Job) -> None:
    """Measure square matrix products in each precision."""
    size = 256 if job.tiny else 8192
    before = torch.get_float32_matmul_precision()
    for name, (precision, dtype) in PRODUCTS.items():
        torch.set_float32_matmul_precision(precision)
        a, b = (torch.randn(size, size, device=job.device, dtype=dtype) for _ in range(2))
        seconds = job.seconds(lambda a=a, b=b: a @ b, 10)
        job.note(f"product in {name}", round(2 * size**3 / seconds / 1e12, 2), unit="TFLOP/s")
    torch.set_float32_matmul_precision(before)


def copies(job: Job) -> None:
    """Measure copies within the device's memory: bytes read and bytes written."""
    source = torch.randn(2**20 if job.tiny else 2**28, device=job.device)
    target = torch.empty_like(source)
    seconds = job.seconds(lambda: target.copy_(source), 10)
    job.note("copy", round(2 * 4 * source.numel() / seconds / 1e12, 3), unit="TB/s")


def launches(job: Job) -> None:
    """Measure kernels without work, launched one by one and by a CUDA graph."""
    x = torch.zeros(8, device=job.device)

    def chain() -> None:
        for _ in range(500):
            x.add_(1)

    job.note("launch of a kernel", round(job.seconds(chain, 5) / 500 * 1e6, 2), unit="us")
    if job.cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        job.note("kernel in a graph", round(job.seconds(graph.replay, 5) / 500 * 1e6, 2), unit="us")


def recurrent(job: Job) -> None:
    """Measure the precision of recurrent layers under autocast.

    In float16 they would lose small gradients.

    The gradients of a loss times a power of two are those of the loss times it, unless they
    underflow.
    """
    from yamame.trajectory import GRUEncoder

    torch.manual_seed(0)
    layers = torch.nn.GRU(64, 64, batch_first=True).to(job.device)
    encoder = GRUEncoder(64, hidden_size=64, out_features=64, num_layers=2).to(job.device)
    x = torch.randn(8, 33 if job.tiny else 501, 64, device=job.device)
    step_index = torch.arange(x.shape[1], device=job.device).expand(x.shape[:2])
    with torch.autocast(job.device, torch.bfloat16):
        job.note("dtype of torch.nn.GRU under autocast to bfloat16", str(layers(x)[0].dtype))

    def gradients(factor: float) -> torch.Tensor:
        encoder.zero_grad()
        with torch.autocast(job.device, torch.bfloat16):
            out = encoder.parallel(x, step_index, step_index == 0)
        (out.float().square().mean() * factor).backward()
        return torch.cat(
            [p.grad.flatten() for p in encoder.layers.parameters() if p.grad is not None]
        ).double()

    small, large = gradients(2.0**-20) * 2.0**20, gradients(1.0)
    error = float((small - large).norm() / large.norm())
    name = "GRU encoder under autocast, error of small gradients"
    job.note(name, round(error, 5), wrong=not error < 0.01)


def attention(job: Job) -> None:
    """Measure forward and backward passes of attention for both kinds of mask and each backend."""
    rows, heads, width = (2, 2, 8) if job.tiny else (24, 8, 32)
    for length in (33,) if job.tiny else (501, 512, 1024):
        causal = torch.ones(length, length, device=job.device, dtype=torch.bool).tril()
        segment = (torch.arange(length, device=job.device) > length // 2).expand(rows, length)
        same = segment.unsqueeze(2) == segment.unsqueeze(1)
        masks = {"causal": None, "packed": (causal & same).unsqueeze(1)}
        for dtype in (torch.bfloat16, torch.float32):
            shape = rows, heads, length, width
            q, k, v = (
                torch.randn(shape, device=job.device, dtype=dtype, requires_grad=True)
                for _ in range(3)
            )
            for kind, mask in masks.items():

                def both(q=q, k=k, v=v, mask=mask) -> None:  # type: ignore[no-untyped-def]
                    out = F.scaled_dot_product_attention(
                        q, k, v, attn_mask=mask, is_causal=mask is None
                    )
                    out.sum().backward()

                name = f"attention {rows} x {heads} x {length} x {width}, {kind}, {str(dtype)[6:]}"
                with job.attempt(name):
                    alone = backends(job, both)
                    job.note(name, round(1e3 * job.seconds(both, 10), 3), unit="ms", alone=alone)


def backends(job: Job, call: Callable[[], Any]) -> dict[str, float]:
    """Return the milliseconds of a call with each backend of attention that supports it."""
    found = {}
    for backend in BACKENDS:
        with sdpa_kernel([backend]):
            try:
                found[backend.name] = round(1e3 * job.seconds(call, 10), 3)
            except RuntimeError:  # it does not support this mask or precision
                continue
    return found
