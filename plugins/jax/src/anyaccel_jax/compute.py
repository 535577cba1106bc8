"""Shapes, states and programs of models."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyaccel.adapter.keyword_compute import KeywordCompute
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.output_activations import warn_of_activations
from anyaccel.adapter.state_check import check_state, not_built_error, state_names
from anyaccel.backend import Program
from anyaccel.device import Device
from anyaccel.errors import CapabilityError
from anyaccel.precision import PRECISIONS, ComputesPrecision
from anyaccel.segment import OutputSpec, Path, Segment, TensorSpec
from anyaccel.specs import Loss, LossTargets, Optimizer
from anyaccel_jax.array_trees import keras_backend
from anyaccel_jax.placement import JaxPlacement
from anyaccel_jax.runtime_config import setting

if TYPE_CHECKING:
    from anyaccel_jax.mesh_program import DeviceMesh, MeshOps
    from anyaccel_jax.models.base import Model
    from anyaccel_jax.ops import JaxOps

# Parameters of at least so many bytes are donated to each step, so that memory need not hold them (and the optimizer's
# slots) twice; if a step fails then, its state is gone.
DONATED_BYTES = 256 * 2**20


class JaxCompute(JaxPlacement, KeywordCompute):
    """Compute this package's models, modules of Flax (Linen and NNX) and Equinox, and of Keras where it runs on JAX.

    They return an array, or a tuple, list or dict of arrays.
    """

    parameter_groups = True
    custom_steps = True

    def wrap(self, model: Any) -> Any:
        """Modules of Linen and Equinox are put into `Linen` and `Equinox`, which hold values."""
        from anyaccel_jax.models.dispatch import wrap

        return wrap(model)

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()) -> bool:
        """Never, arrays are immutable."""
        return False

    def data_format(self, model: Any) -> tuple[str, str]:
        """Return the format of single layers and plain sequences of them."""
        return _model(model).data_format

    def batch_coupling(self, model: Any) -> str:
        """Return the coupling in layers of Flax, Equinox and Keras; for a `Function` it is unknown."""
        return _model(model).batch_coupling

    def untrainable_reason(self, model: Any) -> str:
        """Return a reason for models of Keras."""
        return _model(model).untrainable_reason

    def infer_outputs(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
    ) -> tuple[OutputSpec, ...]:
        """Infer the outputs from shapes only, in evaluation mode."""
        from anyaccel_jax.shape_inference import infer_outputs

        return infer_outputs(_model(model), inputs, arguments, seed)

    def signature(self, model: Any) -> inspect.Signature | None:
        return _model(model).signature

    def infer_training(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()
    ) -> tuple[OutputSpec, ...]:
        """Infer the outputs from shapes only, in training mode."""
        from anyaccel_jax.shape_inference import infer_training

        return infer_training(_model(model), inputs, arguments)

    def dtype_of(self, model: Any) -> str | None:
        """Return the dtype of the first floating parameter, or the one that an unbuilt model will have."""
        return _model(model).dtype

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the specs of the parameters by name.

        Raises:
            StateError: the model is not built yet.
        """
        return _specs(_built(model).parameters)

    def build(self, segment: Segment) -> Program:
        """Return the adapter's program, compiled as a whole where the segment is on one device."""
        from anyaccel_jax.losses import keras_library
        from anyaccel_jax.program import JaxProgram

        warn_of_activations(keras_library(), segment)
        return JaxProgram(segment, self.ops_for(segment))

    def ops_for(self, segment: Segment) -> JaxOps:
        """Return the operations of a program: they donate the state of large models."""
        from anyaccel_jax.ops import DonatingOps, JaxOps

        return (DonatingOps if self._is_large(segment) else JaxOps)(self._move_array)

    def build_mesh(
        self, segment: Segment, devices: Sequence[Device], *, divided: bool, whole: Collection[str] = ()
    ) -> Program:
        from anyaccel_jax.losses import keras_library
        from anyaccel_jax.mesh_program import DeviceMesh, MeshProgram

        warn_of_activations(keras_library(), segment)
        mesh = DeviceMesh([self.jax_device(device) for device in devices], divides=divided, whole=whole)
        return MeshProgram(segment, self._mesh_ops(segment, mesh), mesh)

    def build_over_processes(
        self, segment: Segment, group: Any, *, divided: bool, whole: Collection[str] = ()
    ) -> Program:
        """Build a sharded program for a group of JAX, or one with whole parameters; see
        `ShardParameters.build_sharded`.
        """
        from anyaccel_jax.losses import keras_library
        from anyaccel_jax.process_mesh import ProcessMesh, ProcessMeshProgram
        from anyaccel_jax.replica_group import corresponding_devices

        warn_of_activations(keras_library(), segment)
        device = self.jax_device(segment.operations[0].device)
        mesh = ProcessMesh(corresponding_devices(device, group.size), device, divides=divided, whole=whole)
        return ProcessMeshProgram(segment, self._mesh_ops(segment, mesh), mesh, group.attempt)

    def _mesh_ops(self, segment: Segment, mesh: DeviceMesh) -> MeshOps:
        from anyaccel_jax.mesh_program import DonatingMeshOps, MeshOps

        kept = [op.model for op in segment.operations if op.label in mesh.whole and op.model is not None]
        return (DonatingMeshOps if self._is_large(segment) else MeshOps)(self._move_array, mesh, kept)

    def _is_large(self, segment: Segment) -> bool:
        """Whether the state is to be destroyed by each step."""
        models = {id(op.model): op.model for op in segment.operations if op.model is not None}
        arrays = (array for model in models.values() for array in _model(model).parameters.values())
        size: int = sum(array.nbytes for array in arrays)
        return size >= DONATED_BYTES

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Return copies of the model's arrays in host memory.

        Raises:
            StateError: the model is not built yet.
        """
        return {name: np.array(array) for name, array in self.live_state(model).items()}

    def live_state(self, model: Any) -> dict[str, np.ndarray]:
        """Return arrays on the memory of those on the CPU, and copies of others."""
        built = _built(model)
        return {name: np.asarray(array) for name, array in state_names(built.parameters, built.buffers).items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """Nothing is written if anything does not fit."""
        import jax

        from anyaccel_jax.host_transfer import copy_on_host

        built = _built(model)
        named = state_names(built.parameters, built.buffers)
        check_state(state, _specs(named))
        values = {
            name: jax.device_put(copy_on_host(np.asarray(state[name])), array.sharding) for name, array in named.items()
        }
        parameters = {name: values[f"parameters/{name}"] for name in built.parameters}
        built.write(parameters, {name: values[f"buffers/{name}"] for name in built.buffers})

    def models(self) -> Mapping[str, type]:
        """Return SequentialMLP, SequentialCNN and TabularMLP."""
        from anyaccel_jax.models.builtin import SequentialCNN, SequentialMLP, TabularMLP

        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN, "TabularMLP": TabularMLP}

    def loss_targets(self, loss: Loss) -> LossTargets | None:
        """Return the targets of losses of Keras."""
        from anyaccel_jax.losses import keras_library

        return keras_library().loss_targets(loss)

    def unsupported_reason(self, spec: Optimizer | Loss) -> str:
        """Return why an optimizer or loss is not supported; Optax's transformations, their factories, and Keras's
        losses are.
        """
        custom = spec.own
        is_like_optax = (callable(custom) or hasattr(custom, "init")) and not isinstance(custom, type)
        if isinstance(spec, Optimizer) and is_like_optax:
            return ""
        reason = super().unsupported_reason(spec)
        defined = custom if isinstance(custom, (type, FunctionType)) else type(custom)
        if not reason and custom is not None and defined.__module__.startswith("keras.") and keras_backend() != "jax":
            return f"Keras runs on {keras_backend()}, not on JAX"
        return reason


class JaxPrecision(ComputesPrecision):
    """Dtypes of JAX, policies of Keras, and settings of products."""

    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    matmul_precisions: ClassVar[tuple[Any, ...]] = (
        *("default", "high", "highest", "bfloat16", "tensorfloat32", "float32"),
        *("ANY_F8_ANY_F8_F32", "ANY_F8_ANY_F8_F32_FAST_ACCUM", "ANY_F8_ANY_F8_ANY", "F16_F16_F16", "F16_F16_F32"),
        *("BF16_BF16_BF16", "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9"),
        *("TF32_TF32_F32", "TF32_TF32_F32_X3", "F32_F32_F32", "F64_F64_F64"),
    )

    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """Return why a precision is not possible: float64 is a setting of JAX, and Keras has its own policies."""
        import jax

        if precision == "float64" and jax.dtypes.canonicalize_dtype("float64") != "float64":
            return "JAX has float64 only after jax.config.update('jax_enable_x64', True)"
        return _model(model).precision_reason(precision)

    def matmul_precision(self, value: Any) -> AbstractContextManager[Any]:
        """Set the precision with `jax.default_matmul_precision`, inside a context."""
        import jax

        context: AbstractContextManager[Any] = jax.default_matmul_precision(value)
        return context

    def float32_note(self, model: Any, device: Device) -> str:
        """Return a note on matrix multiplications in TF32, which is JAX's default on GPUs that have it."""
        if device.kind != "gpu" or setting("jax_default_matmul_precision") not in (None, "default"):
            return ""
        return (
            f"JAX multiplies float32 in TF32 on {device} by default, with three digits, if the GPU supports "
            "it: set matmul_precision='highest' for full precision"
        )

    def remat_blocks(self, model: Any, remat: str) -> Sequence[str]:
        """Return the whole model for `jax.checkpoint`, because it has no named parts."""
        return ("",) if remat == "blocks" else ()


class JaxMemoryFigures(MemoryFigures):
    """Report buffers, and the memory of a step by the analysis of XLA's compiler."""

    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the specs of the buffers of a built model; otherwise raise a StateError."""
        return _specs(_built(model).buffers)

    def step_memory(
        self, segment: Segment, batch_size: int, n_microbatches: int = 1, n_steps: int = 2
    ) -> dict[Device, int]:
        """Compile a step, and take what it needs from XLA; nothing is computed.

        Raises:
            CapabilityError: nothing is compiled as a whole, or the device is not on this machine.
        """
        devices = {operation.device for operation in segment.operations}
        if len(devices) > 1:
            raise CapabilityError("a step on several devices is not compiled as a whole")
        if segment.compile == "off":
            raise CapabilityError("a step that is not compiled has no analysis of a compiler")
        (device,) = devices
        if device not in self.backend.devices():
            raise CapabilityError(f"XLA compiles a step for {device} only on a machine that has it")
        from anyaccel_jax.step_memory import PlannedProgram

        program = PlannedProgram(replace(segment, states={}), self.backend.ops_for(segment))
        jax_device = self.backend.jax_device(device)
        if not segment.groups:
            return {device: program.forward_memory(jax_device, batch_size)}
        return {device: program.training_memory(jax_device, batch_size, n_microbatches, n_steps)}


def _model(model: Any) -> Model:
    from anyaccel_jax.models.dispatch import as_model, wrap

    return as_model(wrap(model))


def _built(model: Any) -> Model:
    from anyaccel_jax.models.dispatch import as_model

    functional = as_model(model)
    if not functional.is_built:
        raise not_built_error(model, "build the graph that contains it")
    return functional


def _specs(named: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(tuple(array.shape), array.dtype.name) for name, array in named.items()}
