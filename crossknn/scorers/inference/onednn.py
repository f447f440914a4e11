"""Linear layers in float32 by oneDNN, on processors for which MKL has slow kernels.

On x86 torch multiplies float32 matrices by MKL, which uses AVX-512 on Intel's processors only. oneDNN, which comes with
torch as well, uses it on all: on an AMD EPYC it is twice as fast.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from crossknn._imports import import_extra

AMD = "AuthenticAMD"


def use_onednn(linears: list[Any]) -> None:
    """Make linear layers of torch in float32 on a CPU multiply by oneDNN, if that is faster here."""
    if not mkl_is_slow():
        return
    multiply = import_extra("torch", extra="models").ops.mkldnn._linear_pointwise
    for linear in linears:
        linear.forward = _forward(multiply, linear.weight, linear.bias)


def _forward(multiply: Any, weight: Any, bias: Any) -> Any:
    return lambda inputs: multiply(inputs, weight, bias, "none", [], "")


@cache
def mkl_is_slow() -> bool:
    """Whether torch has both MKL and oneDNN, and the processor is not Intel's."""
    backends, ops = (getattr(import_extra("torch", extra="models"), name) for name in ("backends", "ops"))
    both = backends.mkl.is_available() and backends.mkldnn.is_available()
    return both and hasattr(ops.mkldnn, "_linear_pointwise") and AMD in processor_vendor()


def processor_vendor() -> str:
    """What the system says of the processor's maker; empty if it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return os.environ.get("PROCESSOR_IDENTIFIER", "")  # Windows
    return next((line for line in lines if line.startswith("vendor_id")), "")
