"""`vlbatch doctor`: what this machine has for captioning, found out by trying."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from vlbatch.demo import IMAGES_DIR, samples
from vlbatch.plan import versions

_HUB_TIMEOUT = 5.0  # seconds
_NUM_SAMPLES = 2
_KERNEL = 'extern "C" __global__ void touch(float* x) { x[threadIdx.x] = 1.0f; }'


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. state: ok, note (something is missing that not everybody needs), fail."""

    name: str
    state: Literal["ok", "note", "fail"]
    detail: str


def run_checks() -> Iterator[Check]:
    """The checks one by one, as they are done. Nothing raises: a failed check says why."""
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("versions", _versions),
        ("memory", _memory),
        ("devices", _devices),
        ("kernels", _kernels),
        ("model hub", _hub),
        ("demo model", _demo),
    ]
    for name, check in checks:
        try:
            yield check()
        except Exception as error:  # a broken installation can raise anything; say it, go on
            yield Check(name, "fail", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _versions() -> Check:
    found = ", ".join(f"{name} {number}" for name, number in versions().items())
    return Check("versions", "ok", f"{found}, {platform.system()} {platform.machine()}")


def _memory() -> Check:
    from vlbatch.host import usable_cores

    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Check("memory", "ok", f"{pages / 2**30:.1f} GiB of RAM, {usable_cores()} usable cores")


def _devices() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("devices", "note", "no GPU that torch can use; captioning runs on the CPU")
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        capability = ".".join(map(str, torch.cuda.get_device_capability(index)))
        found.append(
            f"cuda:{index} {name} (compute {capability}), "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        )
    return Check("devices", "ok", "; ".join(found))


def _kernels() -> Check:
    """Whether NVRTC, which comes with torch's CUDA build, compiles a kernel here."""
    if sys.platform != "linux":
        return Check("kernels", "note", "CUDA kernels are compiled on Linux only")
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        return Check("kernels", "note", f"can't be compiled: {error}; models run without")
    start = time.monotonic()
    try:
        Program(_KERNEL, "c++", ProgramOptions(arch="sm_90")).compile("cubin")
    except Exception as error:  # cuda.core raises its own errors where NVRTC is not there
        return Check("kernels", "note", f"can't be compiled: {error}; models run without")
    return Check("kernels", "ok", f"NVRTC compiles (sm_90, {time.monotonic() - start:.2f} s)")


def _hub() -> Check:
    import requests
    from huggingface_hub import constants

    cache = f"cache: {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        return Check("model hub", "note", f"HF_HUB_OFFLINE is set; {cache}")
    try:
        answer = requests.head(constants.ENDPOINT, timeout=_HUB_TIMEOUT)
    except requests.RequestException as error:
        reason = type(error).__name__
        return Check(
            "model hub", "note",
            f"{constants.ENDPOINT} does not answer ({reason}); give -m a folder; {cache}",
        )  # fmt: skip
    return Check("model hub", "ok", f"{constants.ENDPOINT} answers ({answer.status_code}); {cache}")


def _demo() -> Check:
    """Two sample images must get their two right captions."""
    from vlbatch.captioner import Captioner

    right = dict(list(samples().items())[:_NUM_SAMPLES])
    start = time.monotonic()
    with Captioner(device="cpu") as captioner:
        records = list(captioner([IMAGES_DIR / name for name in right]))
    captions: dict[int, Any] = {record.index: record.caption for record in records}
    seconds = time.monotonic() - start
    for index, (name, caption) in enumerate(right.items()):
        if captions.get(index) != caption:
            detail = f"{name}: said {captions.get(index)!r}, right is {caption!r}"
            return Check("demo model", "fail", detail)
    return Check("demo model", "ok", f"{len(right)} sample captions right ({seconds:.1f} s)")
