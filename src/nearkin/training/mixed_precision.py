"""Mixed precision: the network's forward pass in steps runs in 16 bits, everything else in float32.

What is scored is what remains: validation, thresholds and the test run in float32, as a loaded model does.

On a processor two things decide whether ``bf16`` is faster. It needs the instructions
(:func:`steps_are_faster_in_bf16`). And the backward pass of a depthwise convolution, which oneDNN has in
float32, falls back to a slow path in bf16: so :class:`DepthwiseInFloat32` computes that one in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from nearkin.networks.splitting import device_of
from nearkin.processor import has_bf16
from nearkin.training.settings import Precision

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def steps_are_faster_in_bf16() -> bool:
    """Whether the GPU, or without one the processor, has instructions for bf16."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return has_bf16()


class MixedPrecision(nn.Module):
    """A network as steps run it: in a precision, its output in float32.

    Args:
        network: It is shared, not copied.
        precision: ``fp32``, ``bf16`` or ``fp16``.
    """

    def __init__(self, network: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.network = network
        self._precision: Precision = precision

    def forward(self, inputs: Any) -> Tensor:
        """A batch of inputs to ``(B, D)``."""
        with autocast(self._precision, device_of(self.network)):
            rows: Tensor = self.network(inputs)
        return rows.float()


@contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Inside the block networks on a device run in a precision; nothing changes in float32."""
    if precision == "fp32":
        yield
        return
    depthwise = DepthwiseInFloat32() if device.type == "cpu" else nullcontext()
    with torch.autocast(device.type, _DTYPES[precision]), depthwise:
        yield


class DepthwiseInFloat32(TorchFunctionMode):
    """Inside the block depthwise convolutions under bf16 autocast have their backward pass in float32."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        in_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
        if func is torch.conv2d and in_bf16:
            found = _depthwise(*args, **(kwargs or {}))
            if found is not None:
                return found
        return func(*args, **(kwargs or {}))


def _depthwise(  # noqa: PLR0917 (torch's own arguments)
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """A depthwise convolution on the processor; ``None`` for any other."""
    is_depthwise = groups == weight.shape[0] > 1 and weight.shape[1] == 1
    if not is_depthwise or isinstance(padding, str) or input.device.type != "cpu" or input.dim() != 4:
        return None
    steps = [_pair(one) for one in (stride, padding, dilation)]
    rows: Tensor = _Depthwise.apply(input, weight, steps)  # type: ignore[no-untyped-call]
    return rows if bias is None else rows + bias.to(rows.dtype)[:, None, None]


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value) * (2 // len(value))


class _Depthwise(Function):
    """Forward in bf16, backward in float32; the weight's gradient is not rounded."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, steps: list[list[int]]) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.steps = steps
        stride, padding, dilation = steps
        half = (inputs.to(torch.bfloat16), weight.to(torch.bfloat16))
        return torch.conv2d(*half, None, stride, padding, dilation, weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        inputs, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
        stride, padding, dilation = ctx.steps
        of_inputs, of_weight, _ = torch.ops.aten.convolution_backward(
            gradients[0].float(),
            inputs.float(),
            weight.float(),
            None,
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            weight.shape[0],
            wanted,
        )
        return (
            of_inputs.to(inputs.dtype) if wanted[0] else None,
            of_weight.to(weight.dtype) if wanted[1] else None,
            None,
        )
