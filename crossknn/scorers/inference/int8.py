"""Linear layers of a transformer in 8-bit whole numbers, on a CPU.

Weights are rounded once, with a step for each output; inputs as they come, with a step for each token, so that the
pairs of a batch do not change each other's scores. A step follows the largest value, and a channel that is always
large would cost all others their precision: so each channel is centred and divided by a factor that its weights are
multiplied with (as in SmoothQuant, Xiao et al. 2023), chosen by what the layer gets for a few sentences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from crossknn._imports import import_extra
from crossknn.errors import InputError

ENGINE = "fbgemm"  # oneDNN, the other one, may use instructions that a virtual machine announces and forbids
MULTIPLY = "linear_with_input_q_dq_qweight_dq_output_fp32"  # takes floats and gives floats, rounds between
SMALLEST = 1e-6  # in place of a step or a deviation of zero
QUERIES_AND_ITEMS = (
    ("how do rivers freeze", "Rivers freeze from the top down: ice is lighter than water, so it floats."),
    ("capital of France", "Paris has been the capital since 987, with interruptions; 2.1 million people live there."),
    ("Does aspirin lower the risk of stroke?", "In a trial of 19,934 patients aspirin reduced stroke by 18% (9-26)."),
    ("python list vs tuple", "A tuple cannot be changed: t = (1, 2); t[0] = 3 raises TypeError. Lists can grow."),
    ("he sat on the [bank] of the river", "bank: sloping land beside a body of water; they pulled the canoe up"),
    ("fix crash when the config is empty", "parser: return early if buf == NULL\n\nFound with valgrind. Fixes 3f2a91c"),
    ("hotels near the station", "We stayed two nights in March. The room was clean, and the train leaves next door!"),
    ("Who wrote War and Peace?", "The Treaty of Versailles was signed on 28 June 1919 in the Hall of Mirrors."),
)


def round_to_int8(linears: list[Any], read: Callable[[Any], object], tokenizer: Any, *, max_length: int) -> None:
    """Make linear layers multiply in int8; `read` runs what the tokenizer gives for a pair through their model."""
    torch = import_extra("torch", extra="models")
    check_int8(torch)
    with torch.inference_mode():
        seen = _watch_inputs(linears, read, _sentences(tokenizer, max_length))
        for linear, inputs in zip(linears, seen, strict=True):
            if inputs:
                bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias
                linear.forward = int8_linear(torch, linear.weight, bias, torch.cat(inputs))


def linears_of(model: Any) -> list[Any]:
    """The linear layers below the model's head."""
    kind = import_extra("torch", extra="models").nn.Linear
    return [part for name, part in model.base_model.named_modules() if isinstance(part, kind) and "pooler" not in name]


def check_int8(torch: Any) -> None:
    """Refuse a processor that cannot multiply in int8, or whose sums overflow: older ones keep them in 16 bits."""
    if ENGINE not in torch.backends.quantized.supported_engines or not hasattr(torch.ops.quantized, MULTIPLY):
        raise InputError(f"dtype='int8' needs torch with {ENGINE}, for x86 processors. Use 'float32' instead.")
    largest_sums = _one_sided(torch, torch.ones(16, 64), torch.zeros(16), 0.0)(torch.ones(1, 64))
    if not torch.allclose(largest_sums, torch.full((1, 16), 64.0), rtol=0.01):
        raise InputError("dtype='int8' needs a processor with AVX-512 VNNI. Use 'float32' instead.")


def int8_linear(torch: Any, weight: Any, bias: Any, seen: Any) -> Callable[[Any], Any]:
    """The function from inputs to `weight @ inputs + bias`, in int8; `seen` (rows, inputs) is an example of them."""
    least = float(seen.min())
    behind_activation = least > -0.25 * float(seen.amax(0).median())  # as GELU leaves them: no channel far below zero
    if behind_activation:
        return _one_sided(torch, weight, bias, least)
    return _two_sided(torch, weight, bias, *_balance(torch, seen, weight))


def _one_sided(torch: Any, weight: Any, bias: Any, least: float) -> Callable[[Any], Any]:
    """For inputs with a floor, as activation functions give them: no level is spent on what lies below it."""
    packed = _pack(torch, weight)
    raised_bias = bias + least * weight.sum(1)

    def forward(inputs: Any) -> Any:
        largest = (inputs.amax(-1, keepdim=True) - least).clamp_(min=SMALLEST)
        raised = torch.addcmul(-least / largest, inputs, 1 / largest)
        return _multiply(torch, raised, largest, packed, raised_bias, levels=(255, 0))

    return forward


def _two_sided(torch: Any, weight: Any, bias: Any, centre: Any, factor: Any) -> Callable[[Any], Any]:
    packed = _pack(torch, weight / factor)
    centred_bias = bias + weight @ centre
    shift = -centre * factor

    def forward(inputs: Any) -> Any:
        balanced = torch.addcmul(shift, inputs, factor)
        largest = torch.maximum(balanced.amax(-1, keepdim=True), -balanced.amin(-1, keepdim=True))
        largest.clamp_(min=SMALLEST)
        return _multiply(torch, balanced.div_(largest), largest, packed, centred_bias, levels=(127, 128))

    return forward


def _multiply(torch: Any, inputs: Any, scale: Any, packed: Any, bias: Any, *, levels: tuple[int, int]) -> Any:
    """(…, outputs) of inputs between -1 and 1, which are rounded to `levels`: how many from 0 to 1, and where 0 is."""
    to_one, zero = levels
    products = getattr(torch.ops.quantized, MULTIPLY)(inputs, 1 / to_one, zero, packed)
    return torch.addcmul(bias, products, scale, out=products)


def _balance(torch: Any, seen: Any, weight: Any) -> tuple[Any, Any]:
    """(centre, factor) of each channel, so that inputs and weights deviate alike."""
    deviation = seen.std(0, correction=0).clamp(min=SMALLEST)
    size = weight.square().mean(0).sqrt().clamp(min=SMALLEST)
    return seen.mean(0), torch.sqrt(size / deviation)


def _pack(torch: Any, weight: Any) -> Any:
    steps = (weight.abs().amax(1) / 127).clamp(min=SMALLEST).double()
    zeros = torch.zeros(len(steps), dtype=torch.int64)
    with _engine(torch), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to replace its quantized tensors some day
        rounded = torch.quantize_per_channel(weight, steps, zeros, axis=0, dtype=torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, None)


@contextmanager
def _engine(torch: Any) -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def _sentences(tokenizer: Any, max_length: int) -> list[Any]:
    """Each query with its own item and with the next one's."""
    queries, items = zip(*QUERIES_AND_ITEMS, strict=True)
    pairs = [*zip(queries, items, strict=True), *zip(queries, (*items[1:], items[0]), strict=True)]
    return [
        tokenizer([query], [item], truncation=True, max_length=max_length, return_tensors="pt") for query, item in pairs
    ]


def _watch_inputs(linears: list[Any], read: Callable[[Any], object], examples: list[Any]) -> list[list[Any]]:
    """For each layer what it gets while the model reads the examples, (tokens, inputs) each time."""
    seen: list[list[Any]] = [[] for _ in linears]

    def watch(own: list[Any]) -> Callable[..., None]:
        return lambda _, given: own.append(given[0].reshape(-1, given[0].shape[-1]))

    hooks = [linear.register_forward_pre_hook(watch(own)) for linear, own in zip(linears, seen, strict=True)]
    try:
        for example in examples:
            read(example)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
