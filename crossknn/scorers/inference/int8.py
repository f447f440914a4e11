"""Dynamic int8 quantization of a transformer's linear layers, on a CPU.

Weights are quantized once, with a scale per output channel; inputs at run time, with a scale per token, so that the
pairs of a batch do not change each other's scores. A scale follows the largest value, and a channel that is always
large would cost all others their precision: so each channel is centered and divided by a factor that its weights are
multiplied with (as in SmoothQuant, Xiao et al. 2023), calibrated on the layer's inputs for a few sentences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.scorers.inference.loading import check_half_precision

FBGEMM = "fbgemm"
FBGEMM_LINEAR = "linear_with_input_q_dq_qweight_dq_output_fp32"  # float inputs and outputs, int8 between
MIN_SCALE = 1e-6  # in place of a scale or a deviation of zero
CALIBRATION_PAIRS = (
    ("how do rivers freeze", "Rivers freeze from the top down: ice is lighter than water, so it floats."),
    ("capital of France", "Paris has been the capital since 987, with interruptions; 2.1 million people live there."),
    ("Does aspirin lower the risk of stroke?", "In a trial of 19,934 patients aspirin reduced stroke by 18% (9-26)."),
    ("python list vs tuple", "A tuple cannot be changed: t = (1, 2); t[0] = 3 raises TypeError. Lists can grow."),
    ("he sat on the [bank] of the river", "bank: sloping land beside a body of water; they pulled the canoe up"),
    ("fix crash when the config is empty", "parser: return early if buf == NULL\n\nFound with valgrind. Fixes 3f2a91c"),
    ("hotels near the station", "We stayed two nights in March. The room was clean, and the train leaves next door!"),
    ("Who wrote War and Peace?", "The Treaty of Versailles was signed on 28 June 1919 in the Hall of Mirrors."),
)


def quantize_linears(linears: list[Any], forward: Callable[[Any], object], tokenizer: Any, *, max_length: int) -> None:
    """Make linear layers multiply in int8.

    Args:
        linears: The layers, changed in place.
        forward: Runs a tokenizer's encoding of a pair through their model.
        tokenizer: Encodes the calibration pairs.
        max_length: Their maximum length.
    """
    torch = import_extra("torch", extra="models")
    check_int8(torch)
    with torch.inference_mode():
        recorded = _record_inputs(linears, forward, _encode_calibration_pairs(tokenizer, max_length))
        for linear, inputs in zip(linears, recorded, strict=True):
            if inputs:
                bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias
                linear.forward = int8_linear(torch, linear.weight, bias, torch.cat(inputs))


def encoder_linears(model: Any) -> list[Any]:
    """The linear layers below the model's head."""
    linear = import_extra("torch", extra="models").nn.Linear
    modules = model.base_model.named_modules()
    return [module for name, module in modules if isinstance(module, linear) and "pooler" not in name]


def check_int8(torch: Any) -> None:
    """Raise `InputError` for a processor without int8 products, or with 16-bit sums that overflow (older ones)."""
    if product_class(torch) is None:
        raise InputError(f"`dtype` 'int8' needs torch with {FBGEMM}, for x86 processors. Use 'float32' instead.")
    largest_sums = _nonnegative_linear(torch, torch.ones(16, 64), torch.zeros(16), 0.0)(torch.ones(1, 64))
    if not torch.allclose(largest_sums, torch.full((1, 16), 64.0), rtol=0.01):
        raise InputError("`dtype` 'int8' needs a processor with AVX-512 VNNI. Use 'float32' instead.")


def int8_linear(torch: Any, weight: Any, bias: Any, calibration: Any) -> Callable[[Any], Any]:
    """A function from inputs to `weight @ inputs + bias` in int8; `calibration` (rows, inputs) is a sample of them."""
    minimum = float(calibration.min())
    after_activation = minimum > -0.25 * float(calibration.amax(0).median())  # as after GELU: no channel far below zero
    if after_activation:
        return _nonnegative_linear(torch, weight, bias, minimum)
    return _symmetric_linear(torch, weight, bias, calibration)


def _nonnegative_linear(torch: Any, weight: Any, bias: Any, minimum: float) -> Callable[[Any], Any]:
    """For inputs with a lower bound, as after an activation: all 256 levels lie above it."""
    product = product_class(torch)(torch, weight)
    shifted_bias = bias + minimum * weight.sum(1)

    def forward(inputs: Any) -> Any:
        step = (inputs.amax(-1, keepdim=True) - minimum).div_(255).clamp_(min=MIN_SCALE)
        per_step = step.reciprocal()
        levels = (inputs * per_step).sub_(128 + minimum * per_step)  # `addcmul` is slow with two operands per token
        products = product(levels.clamp_(min=-128), zero=-128)
        return torch.addcmul(shifted_bias, products, step, out=products)

    return forward


def _symmetric_linear(torch: Any, weight: Any, bias: Any, calibration: Any) -> Callable[[Any], Any]:
    """For inputs around a center: 127 levels on either side; factors balance the deviations of inputs and weights."""
    deviation = calibration.std(0, correction=0).clamp(min=MIN_SCALE)
    size = weight.square().mean(0).sqrt().clamp(min=MIN_SCALE)
    center, factor = calibration.mean(0), torch.sqrt(size / deviation)
    product = product_class(torch)(torch, weight / factor)
    centered_bias = bias + weight @ center
    shift = -center * factor

    def forward(inputs: Any) -> Any:
        smoothed = torch.addcmul(shift, inputs, factor)
        largest = torch.maximum(smoothed.amax(-1, keepdim=True), -smoothed.amin(-1, keepdim=True))
        step = largest.div_(127).clamp_(min=MIN_SCALE)
        products = product(smoothed.mul_(step.reciprocal()), zero=0)
        return torch.addcmul(centered_bias, products, step, out=products)

    return forward


class OneDnnProduct:
    """Products with a weight in int8 by oneDNN."""

    def __init__(self, torch: Any, weight: Any) -> None:
        self._torch = torch
        scales = _weight_scales(weight)
        levels = (weight / scales[:, None]).round_().to(torch.int8)
        zero_points = torch.zeros(len(weight), dtype=torch.int64)
        self._weight = (torch.ops.onednn.qlinear_prepack(levels, None), scales, zero_points)

    def __call__(self, levels: Any, *, zero: int) -> Any:
        """(…, outputs) of `levels - zero`; levels are between -128 and 127, and overwritten."""
        torch = self._torch
        # torch converts floats to int8 five times as fast as to uint8, and oneDNN is fast for uint8 only.
        unsigned = levels.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)  # adds 128
        output = (1.0, 0, torch.float32)  # scale and zero point are for int8 outputs
        multiply = torch.ops.onednn.qlinear_pointwise
        return multiply(
            unsigned, 1.0, zero + 128, *self._weight, None, *output, "none", [], ""
        )  # no bias or activation


class FbgemmProduct:
    """The same by FBGEMM, for processors that announce instructions which oneDNN uses and they forbid."""

    def __init__(self, torch: Any, weight: Any) -> None:
        self._multiply = getattr(torch.ops.quantized, FBGEMM_LINEAR)
        zero_points = torch.zeros(len(weight), dtype=torch.int64)
        engine = torch.backends.quantized.engine
        torch.backends.quantized.engine = FBGEMM
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch plans to replace its quantized tensors
                scales = _weight_scales(weight).double()
                quantized = torch.quantize_per_channel(weight, scales, zero_points, axis=0, dtype=torch.qint8)
                self._packed = torch.ops.quantized.linear_prepack(quantized, None)
        finally:
            torch.backends.quantized.engine = engine

    def __call__(self, levels: Any, *, zero: int) -> Any:
        """(…, outputs) of `levels - zero`; levels are between -128 and 127, and overwritten."""
        return self._multiply(levels.sub_(zero), 1.0, zero + 128, self._packed)


@cache
def product_class(torch: Any) -> Any:
    """The class that multiplies in int8 here; None without one."""
    if hasattr(torch.ops.onednn, "qlinear_pointwise") and onednn_runs(torch):
        return OneDnnProduct
    if FBGEMM in torch.backends.quantized.supported_engines and hasattr(torch.ops.quantized, FBGEMM_LINEAR):
        return FbgemmProduct
    return None


@cache
def onednn_runs(torch: Any) -> bool:
    """Whether oneDNN's products in int8 and bfloat16 run here: a virtual machine may announce AMX and forbid it."""
    if "onednn" not in torch.backends.quantized.supported_engines:
        return False
    if not getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)():
        return True
    try:
        check_half_precision("bfloat16")
    except InputError:
        return False
    return True


def _weight_scales(weight: Any) -> Any:
    return (weight.abs().amax(1) / 127).clamp(min=MIN_SCALE)


def _encode_calibration_pairs(tokenizer: Any, max_length: int) -> list[Any]:
    """Each query with its own item and with the next one's."""
    queries, items = zip(*CALIBRATION_PAIRS, strict=True)
    pairs = [*zip(queries, items, strict=True), *zip(queries, (*items[1:], items[0]), strict=True)]
    return [
        tokenizer([query], [item], truncation=True, max_length=max_length, return_tensors="pt") for query, item in pairs
    ]


def _record_inputs(linears: list[Any], forward: Callable[[Any], object], examples: list[Any]) -> list[list[Any]]:
    """The inputs of each layer, (tokens, inputs) per example."""
    recorded: list[list[Any]] = [[] for _ in linears]

    def record(inputs: list[Any]) -> Callable[..., None]:
        return lambda _, args: inputs.append(args[0].reshape(-1, args[0].shape[-1]))

    hooks = [linear.register_forward_pre_hook(record(own)) for linear, own in zip(linears, recorded, strict=True)]
    try:
        for example in examples:
            forward(example)
    finally:
        for hook in hooks:
            hook.remove()
    return recorded
