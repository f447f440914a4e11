"""Whether this machine's CPU can run a model in half precision at all."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from crossknn.errors import InputError

PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.{dtype}); torch.nn.functional.linear(x, x)"


@cache
def check_half_precision(dtype: str) -> None:
    """Refuse a precision whose matrix products end the process, as another process finds out, once.

    Virtual machines may announce instructions (AMX) that they then forbid; torch believes them.
    """
    if not sys.executable:
        return
    probe = subprocess.run([sys.executable, "-c", PROBE.format(dtype=dtype)], capture_output=True, check=False)  # noqa: S603
    if probe.returncode < 0:
        raise InputError(
            f"dtype={dtype!r} would end this process: torch multiplies with an instruction that this machine announces "
            f"and forbids (signal {-probe.returncode}). Use 'float32' or 'int8', or set the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts."
        )
