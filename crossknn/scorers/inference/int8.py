"""Dynamic int8 quantization of a transformer's linear layers, on a CPU.

Weights are quantized once, with a scale per output channel; inputs at run time, with a scale per token, so that the
pairs of a batch do not change each other's scores. A scale follows the largest value, and a channel that is always
large would cost all others their precision: so each channel is centered and divided by a factor that its weights are
multiplied with (as in SmoothQuant, Xiao et al. 2023), calibrated on the layer's inputs for a few sentences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from crossknn._imports import import_extra
from crossknn.errors import InputError

ENGINE = "fbgemm"  # oneDNN, the other one, may use instructions that a virtual machine announces and forbids
LINEAR_OP = "linear_with_input_q_dq_qweight_dq_output_fp32"  # float inputs and outputs, int8 between
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
    if ENGINE not in torch.backends.quantized.supported_engines or not hasattr(torch.ops.quantized, LINEAR_OP):
        raise InputError(f"`dtype` 'int8' needs torch with {ENGINE}, for x86 processors. Use 'float32' instead.")
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
    packed = _pack(torch, weight)
    shifted_bias = bias + minimum * weight.sum(1)

    def forward(inputs: Any) -> Any:
        scale = (inputs.amax(-1, keepdim=True) - minimum).clamp_(min=MIN_SCALE)
        shifted = torch.addcmul(-minimum / scale, inputs, 1 / scale)
        return _multiply(torch, shifted, scale, packed, shifted_bias, levels=255, zero_point=0)

    return forward


def _symmetric_linear(torch: Any, weight: Any, bias: Any, calibration: Any) -> Callable[[Any], Any]:
    """For inputs around a center: 127 levels on either side; factors balance the deviations of inputs and weights."""
    deviation = calibration.std(0, correction=0).clamp(min=MIN_SCALE)
    size = weight.square().mean(0).sqrt().clamp(min=MIN_SCALE)
    center, factor = calibration.mean(0), torch.sqrt(size / deviation)
    packed = _pack(torch, weight / factor)
    centered_bias = bias + weight @ center
    shift = -center * factor

    def forward(inputs: Any) -> Any:
        smoothed = torch.addcmul(shift, inputs, factor)
        scale = torch.maximum(smoothed.amax(-1, keepdim=True), -smoothed.amin(-1, keepdim=True))
        scale.clamp_(min=MIN_SCALE)
        return _multiply(torch, smoothed.div_(scale), scale, packed, centered_bias, levels=127, zero_point=128)

    return forward


def _multiply(torch: Any, inputs: Any, scale: Any, packed: Any, bias: Any, *, levels: int, zero_point: int) -> Any:
    """(…, outputs) of inputs between -1 and 1, quantized with a step of 1 / `levels`."""
    products = getattr(torch.ops.quantized, LINEAR_OP)(inputs, 1 / levels, zero_point, packed)
    return torch.addcmul(bias, products, scale, out=products)


def _pack(torch: Any, weight: Any) -> Any:
    scales = (weight.abs().amax(1) / 127).clamp(min=MIN_SCALE).double()
    zero_points = torch.zeros(len(scales), dtype=torch.int64)
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch plans to replace its quantized tensors
            quantized = torch.quantize_per_channel(weight, scales, zero_points, axis=0, dtype=torch.qint8)
            return torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = engine


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
