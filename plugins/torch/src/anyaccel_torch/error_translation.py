"""torch's errors as anyaccel's: out of memory, tensors on several devices, and tensors without data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from anyaccel.adapter.mixed_tensors import MixedTensors
from anyaccel.adapter.mixed_tensors import mixed_tensors as read_mixed_tensors
from anyaccel.adapter.out_of_memory import out_of_memory
from anyaccel.errors import DeviceMismatchError, FrameworkError, MoveError, PhaseError, SpecError

_KERAS_FRAME = re.compile(r"^Exception encountered when calling [^\n]*\n+")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "std::bad_alloc")
# torch words it differently in most operators, in indexing, in recurrent layers and in convolutions.
_DEVICE_MISMATCH = (
    *("on the same device", "at the same device", "on a different device"),
    *("but expected on ", "but expected it to be on ", "has not been allocated on MPS"),
)
_NEEDS_GRADIENTS = re.compile(r"does not require grad|do not require grad|does not have a grad_fn")
_SINGLE_ROW = re.compile(r"Expected more than 1 value per channel when training[^\n]*")
_NOT_IMPLEMENTED = re.compile(r"\"(\w+)\" not implemented for '(Bool|Byte|Char|Short|Int|Long)'")
_TYPES = re.compile(r"\((torch\.(?:\w+\.)?)\w+Tensor\) and \w+ type \((torch\.(?:\w+\.)?)\w+Tensor\)")


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn torch's `RuntimeError`s into anyaccel's errors inside this context, if the cause is known.

    Args:
        what: The operation or object, such as `"a tensor of 8 bytes on gpu:0"`.

    Raises:
        OutOfMemoryError: torch ran out of memory.
        DeviceMismatchError: an operation received tensors on several devices.
        MoveError: a tensor on torch's `meta` device has no data.
        FrameworkError: recomputed values in the backward pass (`remat`) differ.
        SpecError: an optimizer or a loss does not accept sparse gradients or integers.
    """
    try:
        yield
    except RuntimeError as error:
        raise_translated(error, what)


def raise_translated(error: RuntimeError, what: str) -> NoReturn:
    """Raise anyaccel's error for an error of torch, or that itself; see `translate_errors`. Call it in `except`."""
    text = str(error)
    if any(mark in text for mark in _OUT_OF_MEMORY):
        raise out_of_memory(what, first_line(error)) from error
    if _is_device_mismatch(text):
        raise DeviceMismatchError(
            f"{what}: an operation received tensors on several devices: {first_line(error)}{mixed_tensors(error)}",
            hint="move them to one device; create tensors on the device of the inputs",
        ) from error
    if type(error).__name__ == "CheckpointError":  # of torch.utils.checkpoint: this file imports no torch
        raise FrameworkError(
            f"{what}: values recomputed in the backward pass differ from the forward pass: {first_line(error)}",
            hint="turn off state that the model keeps between calls, such as its key-value cache "
            "(model.config.use_cache = False); or leave remat out",
        ) from error
    if "does not support sparse gradients" in text:
        raise SpecError(
            f"{what}: {first_line(error)}",
            hint="use dense gradients, nn.Embedding(..., sparse=False), or train it with Optimizer('sgd', lr=0.1)",
        ) from error
    if (missing := _NOT_IMPLEMENTED.search(text)) is not None:
        raise SpecError(
            f"{what}: torch does not compute {missing[1]} of {missing[2].lower()} values",
            hint="return floating values from the model: output.float()",
        ) from error
    if "meta tensor" in text or "expected device meta" in text:
        raise MoveError(
            f"{what}: a tensor on torch's meta device has no values to move",
            hint="create it on a real device, without torch.device('meta'); or load it with "
            "load_checkpoint_and_dispatch(model, 'model.safetensors', device_map={'': 'cpu'}) of "
            "anyaccel_torch.big_models; model.to_empty() leaves random values in buffers that are not in the file",
        ) from error
    raise error


def needs_gradients(error: Exception) -> bool:
    """Return whether a model failed because it computes gradients itself, as for forces, of a value without any."""
    return isinstance(error, RuntimeError) and _NEEDS_GRADIENTS.search(str(error)) is not None


def single_row_message(error: Exception) -> str:
    """Return torch's message if it refuses to normalize one value per channel, as in a batch of one row; otherwise
    `""`.
    """
    match = _SINGLE_ROW.search(str(error))
    return "" if match is None else match[0]


def raise_if_single_row(error: Exception, who: str, n_rows: int) -> None:
    """Raise an error that names a node if torch refused to normalize one value for each channel.

    Raises:
        PhaseError: that is the cause.
    """
    message = single_row_message(error)
    if message:
        raise PhaseError(
            f"{who} cannot be trained with a batch of {n_rows} row{'s' * (n_rows != 1)}: {message}",
            hint="leave the batch out, DataLoader(..., drop_last=True), or use another batch size",
        ) from error


def raise_if_device_mismatch(error: Exception, who: str, inputs: Mapping[str, Any]) -> None:
    """Raise an error that names a node or loss and its inputs if torch refused tensors on several devices.

    Args:
        error: Torch's error.
        who: The node or loss, and its device.
        inputs: Its inputs, by name.

    Raises:
        DeviceMismatchError: that is the cause.
    """
    if not _is_device_mismatch(str(error)):
        return
    places = ", ".join(f"{name} on {getattr(tensor, 'device', 'no device')}" for name, tensor in inputs.items())
    raise DeviceMismatchError(
        f"{who} computes with tensors on several devices: its inputs are {places or 'none'}; "
        f"torch says: {first_line(error)}{mixed_tensors(error)}",
        hint="create tensors on the device of the inputs, for example torch.zeros(3, device=x.device), and register "
        "constant tensors with register_buffer",
    ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without the frame that Keras puts around it."""
    text = _ESCAPES.sub("", _KERAS_FRAME.sub("", str(error)))
    return text.strip().partition("\n")[0]


def _is_device_mismatch(text: str) -> bool:
    types = _TYPES.search(text)
    return any(mark in text for mark in _DEVICE_MISMATCH) or (types is not None and types[1] != types[2])


def mixed_tensors(error: BaseException) -> MixedTensors:
    """Return the line of the user's code that raised an error, the tensors in it with their devices, and the node."""

    def device_of(value: Any) -> str | None:
        return str(value.device) if hasattr(value, "is_leaf") and hasattr(value, "device") else None

    return read_mixed_tensors(error, device_of, ("torch", "keras"))
