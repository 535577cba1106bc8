"""Custom loops of torch: backward passes exchange gradients, and optimizers step when an update is complete."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MethodType
from typing import Any, ClassVar, cast
from weakref import WeakSet, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from anyaccel.containers import map_leaves
from anyaccel.errors import ConfigError, DataError
from anyaccel.rng import key
from anyaccel.user_level import user_level
from anyaccel_distributed.own_loop import Loop, LoopLoader, OwnLoops, Share
from anyaccel_distributed.own_loop.loader import Window, bounds, digest, rows_of
from anyaccel_distributed.own_loop.loop_folder import check_counts, check_same
from anyaccel_distributed.own_loop.processes import LoopProcesses
from anyaccel_torch.gradient_buckets import exchanged_bytes
from anyaccel_torch.module_traits import batch_coupling
from anyaccel_torch.program import Roots, has_sparse_gradients
from anyaccel_torch.synchronized_norm import SynchronizedNorm, is_synchronizable

_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset)|\bpeer\b|ProcessGroup", re.IGNORECASE)
_MIXED = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
_BY_SCHEDULE = "_wrapped_by_lr_sched"
_prepared: WeakSet[nn.Module] = WeakSet()


class TorchLoops(OwnLoops):
    """The custom loops of torch."""

    @property
    def loop(self) -> type[Loop]:
        return TorchLoop


class TorchLoop(Loop):
    """A loop of torch, on torch's own engines: DistributedDataParallel, FSDP2, autocast, GradScaler.

    `prepare` returns the same modules, optimizers and schedules. You can train a module through any of its methods.
    With the last batch of an update, `backward` exchanges the gradients.
    """

    framework: ClassVar[str] = "torch"
    attribute_hints: ClassVar[Mapping[str, str]] = {
        "clip_gradients": "write loop.clip_grad_norm_(net, 1.0), or loop.clip_grad_value_(net, 1.0)",
        "unscale_gradients": "write loop.clip_grad_norm_(net, 1.0), which unscales",
        "load_raw": "write net.load_state_dict(torch.load('net.pt')) before loop.prepare(net)",
        "init_module init_tensor": "write with torch.device(loop.device):",
        "torch_device_mesh": "a Loop does not support it",
        **Loop.attribute_hints,
    }

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._models: list[_Model] = []
        self._optimizers: list[_PreparedOptimizer] = []
        self._others: list[Any] = []
        self._renewed: dict[Tensor, Tensor] = {}  # sharded parameters, by their original parameters
        self._norms: list[SynchronizedNorm] = []
        self._named: tuple[nn.Module, ...] = ()
        self._is_within = False  # `accumulate`
        self._is_loss_checked = self._is_share_checked = self._is_saving_checked = False
        self.scaler: Any = None
        super().__init__(*args, **settings)
        self.device = torch.device(self.accelerator.device_string("torch"))
        if self.num_processes > 1:
            self._processes.group.separate_messages()
        if self.precision not in (None, "float32", *_MIXED):
            dtype = {"bf16": "torch.bfloat16", "float64": "torch.float64"}.get(self.precision or "", "torch.float32")
            raise ConfigError(
                f"Loop: precision={self.precision!r} changes the dtype of a model's parameters",
                available="'float32', 'bf16-mixed', 'fp16-mixed'",
                hint=f"write precision='bf16-mixed', or net.to({dtype}) before prepare()",
            )
        self._autocast_dtype = _MIXED.get(self.precision or "")
        device_type = self.device.type
        if self.precision == "fp16-mixed":
            self.scaler = torch.amp.GradScaler(device_type)
        self._accumulation_changed()

    def _accumulation_changed(self) -> None:
        self._updates = _Updates(self._processes, self.accumulation_steps, self.scaler, self._count_step)

    def _check_exchanges_apart(self) -> None:
        if self.sharding == "full":
            raise ConfigError(
                "find_batch_size() with sharding='full' in several processes: the parts of parameters are exchanged "
                "within a pass, so that the others would wait for a process that ran out of memory",
                hint="start with a size that fits, and use Loop(accumulate=2) for batches of half the size",
            )
        if any(model.ddp is not None for model in self._models):
            raise ConfigError(
                "find_batch_size() in several processes, but a model was prepared before it",
                hint="create and prepare the model within the function of the batch size",
            )

    def _meet(self, what: str) -> None:
        if self.num_processes > 1:
            self._processes.check_memory()
            self._processes.group.meet(what)

    def _count_step(self) -> None:
        self.step += 1

    def _seed_framework(self, seed: int) -> None:
        torch.manual_seed(seed)

    # -- prepare ---------------------------------------------------------------------------------------------------

    def _is_loader(self, candidate: Any) -> bool:
        return isinstance(candidate, DataLoader) or super()._is_loader(candidate)

    def _make_loader(self, loader: Any, *settings: Any) -> LoopLoader:
        return (TorchLoader if isinstance(loader, DataLoader) else TensorLoader)(loader, *settings)

    def _prepare(self, objects: Sequence[Any], frozen: bool) -> list[Any]:
        for value in objects:
            if isinstance(value, (DistributedDataParallel, DataParallel)):
                raise ConfigError(
                    f"the model is already in a {type(value).__name__}", hint="prepare the wrapped module: net.module"
                )
            if isinstance(value, type) or not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise _unprepared(value)
        for value in objects:
            if isinstance(value, nn.Module) and not isinstance(value, AveragedModel):
                self._add_model(value, frozen)
        for value in objects:
            if isinstance(value, AveragedModel):
                self.accelerator.place(value)
                self._gate(value, "update_parameters", self._optimizers)
                self._add_other(value)
            elif isinstance(value, Optimizer):
                self._add_optimizer(value)
        for value in objects:
            if isinstance(value, LRScheduler) and not isinstance(value, ReduceLROnPlateau):
                prepared = next(
                    (prepared for prepared in self._optimizers if prepared.optimizer is value.optimizer), None
                )
                if prepared is None:
                    raise ConfigError(
                        "a schedule was prepared without its optimizer",
                        hint="write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)",
                    )
                self._gate(value, "step", [prepared])
            if not isinstance(value, (nn.Module, Optimizer)):
                self._add_other(value)
        if self._models and self.num_processes > 1:
            self._processes.part()
        return list(objects)

    def _add_other(self, value: Any) -> None:
        self._others.append(value)
        self._undo.append(self._others.pop)

    def _add_model(self, module: nn.Module, frozen: bool) -> None:
        if module in _prepared:
            raise ConfigError(
                f"this {type(module).__name__} is prepared already",
                hint="prepare each model once, and use the result of prepare(); call loop.close() before you use it "
                "in another Loop",
            )
        trained = [] if frozen else [parameter for parameter in module.parameters() if parameter.requires_grad]
        if self.num_processes > 1 and next(module.parameters(), None) is not None:
            self._check_alike(module)
        if trained and self.num_processes > 1:
            self._check_norms(module)
        placed = self.accelerator.place(module)
        assert placed is module
        if trained and self.sharding == "full" and self.num_processes > 1:
            from torch.distributed.fsdp import fully_shard

            names = dict(module.named_parameters())
            for part in module.modules():  # members of lists of layers are sharded one by one
                if part is module or not isinstance(part, (nn.ModuleList, nn.Sequential)):
                    continue
                for block in part:
                    if next(block.parameters(), None) is not None:
                        fully_shard(block, **self.options)
            fully_shard(module, **self.options)
            for name, parameter in module.named_parameters():
                self._renewed[names[name]] = parameter
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if self._autocast_dtype is not None:
            self._autocast_calls(module)
        _prepared.add(module)
        model = _Model(
            module,
            trained,
            self._processes,
            self.options,
            is_divided=self.sharding == "full" and self.num_processes > 1,
            # other collectives within the pass would mix with those of gradients; and nobody may wait within a pass for
            # a process that is out of memory
            overlaps=not (self._norms or self._processes.is_trying),
        )
        self._models.append(model)
        self._undo.append(lambda: self._models.remove(model))
        if not model.is_divided:  # a sharded module no longer has its original parameters
            self._undo.append(lambda: _prepared.discard(module))
        if trained and not model.is_divided and not self._updates.is_plain:
            self._watch_first_gradient(model)

    def _watch_first_gradient(self, model: _Model) -> None:
        """Warn if the first gradient is not from `backward`; with a prepared optimizer, its step is an error."""

        held = ref(self._updates), ref(model)  # the garbage collector does not see through hooks of parameters

        def check(_: Tensor) -> None:
            watch.remove()
            updates, own = held[0](), held[1]()
            if updates is not None and own is not None and own.is_unowned and not updates.is_passing:
                warnings.warn(
                    f"{type(own.module).__name__} has gradients of loss.backward(), without accumulation, loss scale "
                    "and the gradients of other processes. Hint: to train it, write net, optimizer = "
                    "loop.prepare(net, optimizer), and loop.backward(loss)",
                    UserWarning,
                    stacklevel=user_level(),
                )

        watch = model.parameters[0].register_post_accumulate_grad_hook(check)  # type: ignore[no-untyped-call]
        self._undo.append(watch.remove)

    def _check_alike(self, module: nn.Module) -> None:
        own: dict[str, str] = {}
        for name, tensor in module.state_dict().items():
            if isinstance(tensor, Tensor):
                values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
                own[name] = hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()
        difference = self._processes.first_difference(own, "in loop.prepare()")
        if difference is not None:
            name, rank = difference
            raise DataError(
                f"the processes have different {type(module).__name__} models: {name!r} of process {rank} differs "
                "from process 0",
                hint="create the model after the Loop, which seeds all processes "
                "equally, or seed them yourself: torch.manual_seed(0)",
            )

    def _check_norms(self, module: nn.Module) -> None:
        name = batch_coupling(module)
        if not name:
            return
        if self.sync_batchnorm is None:
            raise ConfigError(
                f"{name} normalizes over the rows of a batch, but each of {self.num_processes} processes has only a "
                "part",
                hint="write Loop(sync_batchnorm=True) for statistics over all rows, or sync_batchnorm=False for those "
                "of each process",
            )

        def sum_in_place(tensor: Tensor) -> None:
            self._processes.check_memory()
            self._processes.group.sum_in_place(tensor)

        def has_rows() -> bool:
            share = self._iterations.share
            return share is None or share.rows != 0

        if self.sync_batchnorm:
            for layer in [layer for layer in module.modules() if is_synchronizable(layer)]:
                norm = SynchronizedNorm(
                    layer,
                    self.process_index,
                    self.num_processes,
                    sum_in_place,
                    by_rows=False,
                    counts=has_rows,
                )
                self._norms.append(norm)
                self._undo += [partial(self._norms.remove, norm), norm.restore]

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        self._check_groups(optimizer)
        if self.num_processes > 1 and isinstance(optimizer, torch.optim.SparseAdam):
            raise ConfigError(
                "SparseAdam takes sparse gradients only, but they are dense after their exchange between processes",
                hint="use torch.optim.Adam, or run in one process",
            )
        self.accelerator.place(optimizer)
        prepared = _PreparedOptimizer(
            self._updates, optimizer, self._models, self._check_groups, is_first=not self._optimizers
        )
        self._optimizers.append(prepared)
        self._undo += [partial(self._optimizers.remove, prepared), prepared.restore]

    def _check_groups(self, optimizer: Optimizer) -> None:
        """Give an optimizer the parameters that sharding has replaced, and check that prepared models have all."""
        for group in optimizer.param_groups:
            group["params"] = [self._renewed.get(parameter, parameter) for parameter in group["params"]]
        of_models_trained = {parameter for model in self._models for parameter in model.parameters}
        of_models = {parameter for model in self._models for parameter in model.module.parameters()}
        of_models_trained |= {parameter for parameter in of_models if not parameter.requires_grad}
        if any(parameter not in of_models_trained for group in optimizer.param_groups for parameter in group["params"]):
            raise ConfigError(
                f"{type(optimizer).__name__} has parameters that do not belong to a prepared and trained model",
                hint="prepare the model with its optimizer: net, optimizer = loop.prepare(net, optimizer); a parameter "
                "outside of a model as extra = nn.ParameterList([parameter]), with loop.prepare(net, extra, optimizer)",
            )

    def _gate(self, target: Any, name: str, optimizers: Sequence[_PreparedOptimizer]) -> None:
        """Make a method of an object a no-op while an update is accumulated, or after a skipped update.

        It is open again after a step that has updated parameters, even if later steps have not: a schedule that is
        stepped once an epoch follows epochs.
        """
        if self._updates.is_plain:
            return
        kind = type(target)
        inner = getattr(kind, name)

        n_calls = n_steps = 0

        def gated(self: Any, *args: Any, **settings: Any) -> Any:
            nonlocal n_calls, n_steps
            calls = steps = 0
            for own in optimizers:
                calls, steps = calls + own.n_calls, steps + own.n_steps
            if calls != n_calls and steps == n_steps:
                return None
            n_calls, n_steps = calls, steps
            return inner(self, *args, **settings)

        # of a class: methods of an object are in the state of a schedule
        target.__class__ = type(kind.__name__, (kind,), {name: gated, "__module__": kind.__module__})
        self._undo.append(partial(setattr, target, "__class__", kind))

    # -- autocast --------------------------------------------------------------------------------------------------

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context that computes in the loop's precision outside of prepared models, such as in a loss."""
        dtype = self._autocast_dtype
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _autocast_calls(self, module: nn.Module) -> None:
        """Run the model within autocast when it, or a part of it, is called from outside, and return float32.

        A loss of outputs in half precision would be computed in it, which autocast avoids.
        """

        def in_float32(output: Any) -> Any:
            return output.float() if isinstance(output, Tensor) and output.dtype == self._autocast_dtype else output

        for part in (module, *module.children()):
            replaced = vars(part).get("forward")

            def cast(part: Any, *args: Any, own: Any = replaced, **settings: Any) -> Any:
                is_inner = torch.is_autocast_enabled(self.device.type)
                with self.autocast():
                    outputs = type(part).forward(part, *args, **settings) if own is None else own(*args, **settings)
                return outputs if is_inner else map_leaves(outputs, in_float32, lambda leaf: False)

            cast.__name__ = "forward"  # pickle writes a method by its name, and torch.save(net) must find the class's
            part.forward = MethodType(cast, part)  # bound, so that a copy of the model calls its own
            undo = (
                partial(delattr, part, "forward") if replaced is None else partial(setattr, part, "forward", replaced)
            )
            self._undo.append(undo)

    # -- backward and updates --------------------------------------------------------------------------------------

    @property
    def is_update(self) -> bool:
        window, share = self._updates.window, self._iterations.training_share
        return (
            window.is_closing
            if window.is_current(share, within=self._is_within)
            else window.will_close(share, self.accumulation_steps)
        )

    @property
    def _is_whole(self) -> bool:
        updates = self._updates
        return (updates.window.is_closing or updates.window.n_batches == 0) and not (
            updates.awaits_step and self._optimizers
        )

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Mark the code for one batch of an update; needed if the batch comes from no prepared loader.

        Args:
            models: Models whose gradients `backward` computes; by default all trained models.
        """
        share = self._iterations.training_share
        if not self._updates.is_plain and not self._updates.window.is_current(share, within=False):
            self._updates.begin(share)
        before = self._named, self._is_within
        self._named, self._is_within = models, True
        try:
            yield
        finally:
            self._named, self._is_within = before

    def backward(self, loss: Tensor, *models: nn.Module, count: Any = None, retain_graph: bool = False) -> None:
        """Compute gradients like `loss.backward()`; with the last batch of an update, they include all processes.

        ```python
        loop.backward(loss)  # a mean over the rows of the batch
        loop.backward(total, count=n_tokens)  # a sum over tokens
        ```

        Args:
            loss: A mean over the rows of the last batch; with `count`, a sum.
            models: Models whose gradients are computed; by default all trained models, or those passed to `accumulate`.
            count: Number of terms in the sum. The sums of all batches of the update and all processes are added and
                divided by the total of the counts.
            retain_graph: See `torch.Tensor.backward`.

        Raises:
            ConfigError: The loss belongs to no batch of a prepared loader and has no count; or several optimizers
                accumulate, and no model is named; or the loss is not a tensor.
            FrameworkError: Another process has ended, or does not answer.
        """
        if not isinstance(loss, Tensor):
            hint = "pass the loss as the model computed it, not loss.item()"
            if hasattr(loss, "loss"):
                hint = "pass its loss: loop.backward(outputs.loss)"
            elif isinstance(loss, Mapping):
                hint = "pass its loss: loop.backward(outputs['loss'])"
            elif isinstance(loss, (list, tuple)):
                hint = "pass one loss: loop.backward(losses[0]), or their sum: loop.backward(sum(losses))"
            raise ConfigError(f"loop.backward() needs the loss as a tensor, not as {type(loss).__name__}", hint=hint)
        models = models or self._named
        if self._updates.is_plain and not models:
            if count is not None:
                loss = loss / (count + (count == 0))
            loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
            self._updates.awaits_step = True
            return
        window, share = self._updates.window, self._iterations.training_share
        if not window.is_current(share, within=self._is_within):
            self._updates.begin(share)
        chosen = self._chosen(models)
        if self.accumulation_steps > 1 and window.n_batches > 1:
            window.check_unchanged(chosen)
        if count is None and not self._is_loss_checked and share is not None and share.rows:
            self._is_loss_checked = True  # only once: it waits for the device
            if self.accumulation_steps > 1 or self.scaler is not None:
                _warn_of_factors(loss, self.accumulation_steps)
            _warn_of_other_mean(loss, share.rows)
        if count is None and not self._is_share_checked and share is not None and share.is_uneven:
            self._is_share_checked = True
            warnings.warn(
                "the loop reads several loaders at once, of whose batches this process has different fractions, but "
                "backward() weights the loss by the rows of the last one. Hint: pass each part of the loss as a sum "
                "and its count: loop.backward(total, count=n)",
                UserWarning,
                stacklevel=user_level(),
            )
        weight = self._weight(share, count)
        factor = self.num_processes * weight / window.unit
        vars(loss)["anyaccel_share"] = share  # for `reduce`, if other batches follow
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        has_rows = share is None or share.rows != 0
        if not has_rows:  # it must take part if the backward pass itself has collectives
            roots = [loss * 0.0] if self.sharding == "full" or self._norms else []
        else:
            roots = [loss if factor == 1.0 else loss * factor]
        left_out = [model for model in self._models if model.parameters and model not in chosen]
        inputs: list[Tensor] | None = None
        if left_out and not any(model.is_divided for model in self._models):  # leaves are created for them in each pass
            inputs = [parameter for model in chosen for parameter in model.parameters if parameter.requires_grad]
        kept = [(parameter, parameter.grad) for model in left_out for parameter in model.parameters]
        for model in chosen:
            model.set_exchanging(window.is_closing)
        self._updates.is_passing = True
        try:
            if window.is_closing and self.num_processes > 1:
                self._exchange(chosen, roots, inputs, retain_graph)
            elif roots:
                torch.autograd.backward(roots, inputs=inputs, retain_graph=retain_graph)
        finally:
            self._updates.is_passing = False
        for parameter, gradient in kept:
            parameter.grad = gradient
        self._iterations.weigh()
        window.add(chosen, share, None if self.accumulation_steps == 1 else count)
        if self.accumulation_steps > 1 or (self.scaler is not None and self.step == 0):
            window.remember(chosen)
        self._updates.awaits_step = window.is_closing
        for prepared in self._optimizers:
            prepared.backward_done(chosen)

    def _chosen(self, models: Sequence[nn.Module]) -> list[_Model]:
        trained = [model for model in self._models if model.parameters]
        if not models:
            if self.accumulation_steps > 1 and len(self._optimizers) > 1:
                raise ConfigError(
                    f"{len(self._optimizers)} optimizers accumulate gradients, but backward() does not name the model",
                    hint="name it: loop.backward(loss, net)",
                )
            return trained
        chosen = [model for model in trained if any(model.module is chosen_module for chosen_module in models)]
        if len(chosen) != len(models):
            raise ConfigError(
                "backward() received a model that is not prepared, or not trained",
                hint="prepare it: net, optimizer = loop.prepare(net, optimizer)"
                if all(isinstance(module, nn.Module) for module in models)
                else "after the loss, name models: loop.backward(loss, net)",
            )
        return chosen

    def _weight(self, share: Share | None, count: Any) -> float:
        """Return the factor of a loss."""
        if count is not None:
            if self.accumulation_steps > 1:  # divided after all batches
                return 1.0
            # Now, as a model may have several losses with different counts.
            own = 0.0 if share is not None and share.rows == 0 else float(count)
            return self._updates.window.unit / (sum(self._processes.gather_plain(own, "in loop.backward()")) or 1.0)
        if share is None or share.rows is None or share.total is None:
            raise ConfigError(
                "backward() does not know the number of rows in the mean of the loss",
                hint="prepare the loader, or pass the number: loop.backward(loss * len(x), count=len(x))",
            )
        return float(share.rows)

    def _exchange(
        self, models: Sequence[_Model], roots: list[Tensor], inputs: list[Tensor] | None, retain_graph: bool
    ) -> None:
        large = [model for model in models if model.ddp is not None]
        try:
            outputs: Sequence[Tensor] = roots
            extra: list[Tensor] = []
            for model in large:
                module = model.ddp.module  # type: ignore[union-attr]
                module.use_the_last()
                with torch.enable_grad():
                    outputs = model.ddp(*outputs)  # type: ignore[misc]
                extra.append(module.held[-2])
            if outputs:
                own_inputs = None if inputs is None else [*inputs, *extra]
                torch.autograd.backward(outputs, inputs=own_inputs, retain_graph=retain_graph)
        except RuntimeError as error:
            if _LOST.search(str(error)) is None:
                raise
            self._processes.group.attempt("average the gradients", partial(_raise, error))
        messages = [message for model in models for message in model.messages]
        if messages:
            self._processes.group.average(messages, self._processes.check_memory if self._processes.is_trying else None)

    def clip_grad_norm_(self, target: Any, max_norm: float, norm_type: float = 2.0) -> Tensor | None:
        """Clip gradients by global norm like `torch.nn.utils.clip_grad_norm_`; a no-op until an update is complete.

        Args:
            target: A model or parameters.
            max_norm, norm_type: See `torch.nn.utils.clip_grad_norm_`.

        Returns:
            The norm over all processes, of gradients without the loss scale; None if the update is not complete.
        """
        return self._clipped(target, lambda p: torch.nn.utils.clip_grad_norm_(p, max_norm, norm_type))

    def clip_grad_value_(self, target: Any, clip_value: float) -> None:
        """Clip gradients by value like `torch.nn.utils.clip_grad_value_`; a no-op until an update is complete."""
        self._clipped(target, lambda p: torch.nn.utils.clip_grad_value_(p, clip_value))

    def _clipped(self, target: Any, clip: Callable[[list[Tensor]], Tensor | None]) -> Tensor | None:
        if isinstance(target, Tensor):
            target = [target]
        parameters = list(target.parameters()) if isinstance(target, nn.Module) else list(target)
        if not self._updates.is_plain:
            if not self._updates.window.is_closing:
                return None
            for prepared in self._optimizers:
                if not prepared.parameters.isdisjoint(parameters):
                    self._updates.finish(prepared)
        norm = clip(parameters)
        return None if norm is None else _whole(norm)

    # -- state -----------------------------------------------------------------------------------------------------

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the prepared module, without the wrapper of `torch.compile`."""
        return getattr(model, "_orig_mod", model)

    def _optimizers_of(self, model: _Model) -> list[Any]:
        """Return the prepared optimizers that train parameters of a model."""
        return [held for held in self._optimizers if not held.parameters.isdisjoint(model.parameters)]

    def _state(self) -> dict[str, Any]:
        states: dict[str, list[Any]] = {"models": [], "optimizers": []}
        if self.sharding == "full" and self.num_processes > 1:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict

            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            for model in self._models:
                states["models"].append(_plain(get_model_state_dict(model.module, options=options)))
                for prepared in self._optimizers_of(model):
                    with prepared.apart():
                        state = get_state_dict(model.module, prepared.optimizer, options=options)[1]
                    states["optimizers"].append(_plain(state))
        else:
            states = {
                "models": [_plain(self.unwrap(model.module).state_dict()) for model in self._models],
                "optimizers": [_plain(prepared.optimizer.state_dict()) for prepared in self._optimizers],
            }
        self._updates.update_scale()
        others = [_plain(other.state_dict()) for other in self._others]
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return {**states, "others": others, "scaler": scaler}

    def _warn_of_unsaved(self, saved: Sequence[Any]) -> None:
        if self._is_saving_checked:
            return
        self._is_saving_checked = True
        if any(isinstance(value, Mapping) for value in saved):  # a state, perhaps of a schedule
            return
        known = [*self._others, *saved]
        missing = [
            f"a schedule of {type(prepared.optimizer).__name__}"
            for prepared in self._optimizers
            if hasattr(prepared.optimizer.step, _BY_SCHEDULE)
            and not any(getattr(value, "optimizer", None) is prepared.optimizer for value in known)
        ]
        is_trained = self._updates.awaits_step and not self._optimizers
        if is_trained and not any(isinstance(value, Optimizer) for value in known):
            missing += [f"the optimizer of {type(model.module).__name__}" for model in self._models if model.parameters]
        if missing:
            warnings.warn(
                f"{missing[0]} was not prepared, so that no checkpoint has its state, and a run that resumes differs. "
                "Hint: write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)",
                UserWarning,
                stacklevel=user_level(),
            )

    def _load(self, state: Mapping[str, Any]) -> None:
        check_counts(state, models=self._models, optimizers=self._optimizers, others=self._others)
        for saved, model in zip(state["models"], self._models, strict=True):
            check_same("model", "has shape", _shapes(self.unwrap(model.module).state_dict()), _shapes(saved))
        if self.sharding == "full" and self.num_processes > 1:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_state_dict

            options = StateDictOptions(full_state_dict=True)
            optimizers = iter(state["optimizers"])
            for saved, model in zip(state["models"], self._models, strict=True):
                set_model_state_dict(model.module, _tensors(saved), options=options)
                for prepared in self._optimizers_of(model):
                    named = _by_names(next(optimizers), prepared.optimizer, model.module)
                    with prepared.apart():
                        set_state_dict(
                            model.module,
                            prepared.optimizer,
                            model_state_dict=_tensors(saved),
                            optim_state_dict=_tensors(named),
                            options=options,
                        )
        else:
            for saved, model in zip(state["models"], self._models, strict=True):
                self.unwrap(model.module).load_state_dict(_tensors(saved))
            for saved, prepared in zip(state["optimizers"], self._optimizers, strict=True):
                prepared.optimizer.load_state_dict(_tensors(saved))
        for saved, other in zip(state["others"], self._others, strict=True):
            other.load_state_dict(_tensors(saved))
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(dict(state["scaler"]))
        self._drop_update()

    def _named_models(self) -> dict[str, Any]:
        return {f"{type(model.module).__name__} {i}": model.module for i, model in enumerate(self._models)}

    def _marks(self) -> dict[str, list[float]]:
        marks: dict[str, list[float]] = {}
        for model in self._models:
            if model.parameters and not model.is_divided:
                device, norms = model.parameters[0].device, []
                for parameter in model.parameters:
                    # in 16 bits, norms that differ in their last bit would differ by more than `order` accepts
                    dtype = torch.promote_types(parameter.dtype, torch.float32)
                    norm = torch.linalg.vector_norm(parameter.detach(), dtype=dtype)
                    norms.append(norm.to(device, torch.float32))
                found = torch.stack(norms).tolist()
                marks.setdefault(f"weights of {type(model.module).__name__}", []).extend(found)
        for prepared in self._optimizers:
            rates = [float(group.get("lr") or 0.0) for group in prepared.optimizer.param_groups]
            marks.setdefault(f"learning rates of {type(prepared.optimizer).__name__}", []).extend(rates)
        return marks

    def _drop_update(self) -> None:
        self._updates.window, self._updates.awaits_step = _Window(), False

    # -- values ----------------------------------------------------------------------------------------------------

    def _to_numpy(self, tensor: Any) -> np.ndarray | None:
        if not isinstance(tensor, Tensor):
            return None
        tensor = tensor.detach()
        tensor = _whole(tensor)
        if tensor.dtype == torch.bfloat16:
            import ml_dtypes

            tensor = tensor.cpu().contiguous()
            return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
        return np.asarray(tensor.cpu().numpy())

    def _concatenated(self, rows: Sequence[np.ndarray]) -> Any:
        return torch.cat([_tensor(array) for array in rows]) if rows[0].ndim else _tensor(rows[0])


class _Updates:
    """The current update: its batches, the loss scale, and the divisor of its gradients.

    Args:
        processes: Processes that share it.
        steps: Number of batches.
        scaler: Scaler of losses, or None.
        count_step: Called after an update of the first optimizer.

    Attributes:
        window: Its batches.
        is_plain: Whether an update is only a backward pass and a step.
        awaits_step: Whether no optimizer has stepped since the gradients of the last batch.
        is_passing: Whether `backward` computes gradients.
    """

    def __init__(self, processes: LoopProcesses, steps: int, scaler: Any, count_step: Callable[[], object]) -> None:
        self.window = _Window()
        self.steps, self.scaler, self.count_step = steps, scaler, count_step
        self.is_plain = processes.size == 1 and steps == 1 and scaler is None
        self.has_stepped = False  # with the scaler, which is updated when all optimizers have
        self.awaits_step = self.is_passing = False
        self._processes = processes

    def begin(self, share: Share | None) -> None:
        """Begin a batch."""
        self.update_scale()
        self.window.begin(share, self.steps)

    def update_scale(self) -> None:
        """Update the loss scale after all optimizers have stepped."""
        if self.has_stepped:
            self.has_stepped = False
            self.scaler.update()

    def finish(self, own: _PreparedOptimizer) -> None:
        """Divide sums by the count of the window, and undo the loss scale; once for each update."""
        if own.is_finished:
            return
        own.is_finished = True
        if any(parameter.grad is not None for parameter in own.frozen):
            raise ConfigError(
                f"a parameter of {type(own.optimizer).__name__} is trained now, but was frozen in prepare(): "
                "the loop does not exchange its gradients",
                hint="freeze it after loop.prepare(...): parameter.requires_grad_(False)",
            )
        if self.scaler is not None:
            self.window.check_unchanged(own.models)
            self.scaler.unscale_(own.optimizer)
        for model in own.models:
            factor = self.window.factor(model, self._processes)
            if factor == 1.0:
                continue
            self.window.check_unchanged([model])
            gradients = [p.grad for p in model.parameters if p in own.parameters and p.grad is not None]
            if gradients:
                torch._foreach_mul_(gradients, factor)


def _unprepared(value: Any) -> DataError:
    """Create the error for an object that cannot be prepared."""
    cause = "it is not a module, optimizer, schedule or loader, and has no state_dict() and load_state_dict()"
    hint = "write net, optimizer, loader = loop.prepare(net, optimizer, loader)"
    what = f"a {type(value).__name__}"
    if isinstance(value, type):
        what, cause = f"the class {value.__name__}", "an object of it is needed"
    elif isinstance(value, nn.Parameter):
        hint = "write extra = nn.ParameterList([parameter]), and prepare extra"
    elif isinstance(value, Tensor):
        hint = "prepare a list of batches as another iterable: loop.prepare(net, collections.deque(batches))"
    elif isinstance(value, Dataset) or (hasattr(value, "__getitem__") and hasattr(value, "__len__")):
        hint = "write loader = loop.prepare(DataLoader(dataset, batch_size=32))"
    return DataError(f"prepare() cannot prepare {what}", cause=cause, hint=hint)


def _warn_of_factors(loss: Tensor, n_batches: int) -> None:
    """Warn if a loss has a factor that the loop adds: a loss scale, or the number of batches of an update."""
    node: Any = loss.grad_fn
    if node is None or node.name() not in ("MulBackward0", "DivBackward0"):
        return
    factor = node._saved_other  # noqa: SLF001
    if factor is None or factor.ndim or factor.requires_grad:
        return
    if node.name() == "MulBackward0":
        # a scale is a power of two in a tensor of float32; numbers of Python are in float64 or int64
        if factor.dtype == torch.float32 and factor >= 1024 and math.frexp(float(factor))[0] == 0.5:
            warnings.warn(
                f"the loss is multiplied by {factor:g}, as by a GradScaler, whose step comes before the loop has "
                "divided the gradients, or adds to its own loss scale. "
                "Hint: leave your GradScaler out, and write Loop(precision='fp16-mixed') and loop.backward(loss)",
                UserWarning,
                stacklevel=user_level(),
            )
        return
    term = node.next_functions[0][0]
    is_sum = term is None or term.name().startswith(("Sum", "Add", "Sub"))
    if n_batches > 1 and factor == n_batches and not is_sum:
        warnings.warn(
            f"the loss is divided by {n_batches}, the number of batches of an update, which backward() does, too. "
            "Hint: pass the mean over the rows of the batch: loop.backward(loss); a factor of the loss itself as "
            f"loop.backward(loss * (1 / {n_batches}))",
            UserWarning,
            stacklevel=user_level(),
        )


def _is_sum(loss: Any, rows: int) -> bool:
    """Return whether a loss, or a term of it, is a sum over rows as it was computed, apart from sums over parameters.

    Args:
        loss: Node of the loss in the graph of autograd.
        rows: Number of rows.
    """
    terms, seen = [loss], set()
    while terms:
        term = terms.pop()
        if term is None or term in seen:
            continue
        seen.add(term)
        first = _first_of(term)
        if term.name() in ("AddBackward0", "SubBackward0"):
            terms += [part for part, _ in term.next_functions]
        elif getattr(term, "_saved_reduction", None) == 2:
            if not hasattr(first, "variable"):
                return True
        elif term.name() == "SumBackward0":
            shape = tuple(term._saved_self_sym_sizes)  # noqa: SLF001
            while first is not None and not hasattr(first, "variable"):
                first = _first_of(first)
            if shape[:1] == (rows,) and (first is None or first.variable.shape != shape):
                return True
    return False


def _first_of(node: Any) -> Any:
    """Return the first node that a node passes gradients to; None if there is none."""
    return next((other for other, _ in node.next_functions if other is not None), None)


def _warn_of_other_mean(loss: Tensor, rows: int) -> None:
    """Warn if a loss is a sum, or a cross entropy is a mean over weights, or over targets that are not ignored."""
    node: Any = loss.grad_fn
    if node is not None and rows > 1 and _is_sum(node, rows):
        warnings.warn(
            "the loss is a sum over rows, but backward() takes it for a mean over the rows of the batch. "
            "Hint: pass the sum and its divisor: loop.backward(total, count=n)",
            UserWarning,
            stacklevel=user_level(),
        )
        return
    if node is None or not node.name().startswith("NllLoss") or node._saved_reduction != 1:  # noqa: SLF001
        return
    weighted = node._saved_weight is not None  # noqa: SLF001
    if not weighted:
        counted = node._saved_target != node._saved_ignore_index  # noqa: SLF001
        by_row = counted.reshape(rows, -1).sum(1) if counted.numel() % rows == 0 else counted
        if bool((by_row == by_row[0]).all()):
            return
    divisor = "the sum of class weights" if weighted else "the number of targets that are not ignored"
    warnings.warn(
        f"the loss is divided by {divisor}, but backward() combines batches by their rows. "
        "Hint: pass the sum and its divisor: loop.backward(total, count=n)",
        UserWarning,
        stacklevel=user_level(),
    )


class _Window(Window):
    """The batches of one update, and the divisor of their gradient sums.

    Attributes:
        unit: Divisor of the sums during accumulation, so that they have the size of means.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unit = 1.0
        self._rows: dict[_Model, float] = {}
        self._counts: dict[_Model, Any] = {}  # of this process, by the user
        self._added: set[_Model] = set()  # models with a loss of the current batch
        self._factors: dict[_Model, float] = {}
        self._versions: dict[_Model, tuple[Tensor | None, int]] = {}  # of a gradient after the last pass
        self._has_warned = False

    def remember(self, models: Iterable[_Model]) -> None:
        """Remember the gradients after a backward pass, by the first of each model."""
        for model in models:
            gradient = model.parameters[0].grad
            self._versions[model] = (gradient, 0 if gradient is None else gradient._version)  # noqa: SLF001
            if model.is_unowned and gradient is not None:
                model.is_unowned = False  # it is said once
                warnings.warn(
                    f"{type(model.module).__name__} has gradients, but no optimizer of its parameters was prepared: "
                    "nothing divides the gradients before its step. "
                    "Hint: write net, optimizer = loop.prepare(net, optimizer); for a model that is not trained, "
                    "loop.prepare(net, frozen=True)",
                    UserWarning,
                    stacklevel=user_level(),
                )

    def check_unchanged(self, models: Iterable[_Model]) -> None:
        """Warn once if gradients were changed while they are not divided by their rows, or by the loss scale."""
        for model in models:
            before, version = self._versions.pop(model, (None, 0))
            gradient = model.parameters[0].grad
            if before is None or self._has_warned or (gradient is before and before._version == version):  # noqa: SLF001
                continue
            self._has_warned = True
            warnings.warn(
                "gradients were changed or removed before the loop has divided them by the rows of the update or the "
                "loss scale, as torch.nn.utils.clip_grad_norm_ and net.zero_grad() do. "
                "Hint: use loop.clip_grad_norm_(net, 1.0) and optimizer.zero_grad()",
                UserWarning,
                stacklevel=user_level(),
            )

    def begin(self, share: Share | None, steps: int) -> None:
        super().begin(share, steps)
        if self.n_batches == 1:
            self.unit = float(steps * (share.total or 1)) if share is not None else 1.0
            self._rows, self._counts, self._factors, self._versions = {}, {}, {}, {}
        self._added.clear()

    def add(self, models: Iterable[_Model], share: Share | None, count: Any) -> None:
        """Add the finished backward pass of a batch.

        Args:
            models: Models with gradients of the batch.
            share: `Share` of the batch.
            count: Number of terms in its loss, for sums normalized by the counts of the window.
        """
        for model in models:
            is_first = model not in self._added
            if model in (self._counts if count is None else self._rows):
                raise ConfigError(
                    "an update has losses with and without count=",
                    hint="pass count= for each loss of the update, or for none",
                )
            if count is None:
                if is_first and share is not None:
                    self._rows[model] = self._rows.get(model, 0.0) + (share.total or 0)
            elif is_first:
                has_rows = share is None or share.rows != 0
                self._counts[model] = self._counts.get(model, 0.0) + (count if has_rows else 0.0)
            else:
                raise ConfigError(
                    "a model has two losses with count= in one batch of an accumulation",
                    hint="add the losses, if they are sums over the same terms",
                )
            self._added.add(model)
            self._factors.pop(model, None)

    def factor(self, model: _Model, processes: LoopProcesses) -> float:
        """Return the factor of a model's gradients after all batches: equal in all processes."""
        if model not in self._factors:
            total = self._rows.get(model, 0.0)
            if model in self._counts:
                total = sum(processes.gather_plain(float(self._counts[model]), "after the batches of an update"))
            self._factors[model] = self.unit / (total or 1.0)
        return self._factors[model]


class _Model:
    """A trained module, and how its gradients are exchanged.

    Attributes:
        module: The prepared module.
        parameters: Its trained parameters.
        ddp: Wrapper around them if the gradients take several messages; None if they follow the pass.
        messages: The messages that follow the pass.
        is_divided: Whether the engine exchanges gradients itself, as it shards parameters.
        is_unowned: Whether no prepared optimizer has parameters of it.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        processes: LoopProcesses,
        options: Mapping[str, Any],
        *,
        is_divided: bool,
        overlaps: bool,
    ) -> None:
        self.module, self.parameters, self.is_divided = module, parameters, is_divided
        self.is_unowned = True
        self.ddp: DistributedDataParallel | None = None
        self.messages: list[Any] = []
        if processes.size == 1 or is_divided or not parameters:
            return
        is_large = sum(map(exchanged_bytes, parameters)) > processes.group.bucket_bytes
        one_device = len({parameter.device for parameter in parameters}) == 1
        if overlaps and is_large and one_device and not has_sparse_gradients([module]):
            settings = {"bucket_cap_mb": processes.group.bucket_bytes / 2**20, "find_unused_parameters": True}
            self.ddp = DistributedDataParallel(Roots(parameters), init_sync=False, **{**settings, **options})
        else:
            self.messages = processes.group.gradient_messages(parameters)

    def set_exchanging(self, exchanging: bool) -> None:
        """Set whether the next pass is the last of an update."""
        if self.is_divided:
            self.module.set_requires_gradient_sync(exchanging)  # type: ignore[operator]


class _PreparedOptimizer:
    """An optimizer that steps when the update is complete.

    Attributes:
        parameters: All its parameters.
        models: Models that own them.
        frozen: Parameters that needed no gradients when their models were prepared.
        n_calls: Number of calls of `step`.
        n_steps: Number of them that have changed parameters.
        is_finished: Whether gradients are already averaged and unscaled.
    """

    def __init__(
        self,
        updates: _Updates,
        optimizer: Optimizer,
        models: Sequence[_Model],
        check_groups: Callable[[Optimizer], None],
        *,
        is_first: bool,
    ) -> None:
        self._updates, self.optimizer, self._all_models = updates, optimizer, models
        self._read_groups()
        self.n_calls = self.n_steps = 0
        self.is_finished = False
        self._has_gradients = self._accumulates = self._is_full = self._is_apart = False
        optimizer.was_skipped = False  # type: ignore[attr-defined]
        self._is_first = is_first
        self._hook = optimizer.register_step_post_hook(self._count)
        if updates.is_plain:
            return
        self._inner_step, self._inner_zero = optimizer.step, optimizer.zero_grad
        self._inner_add = optimizer.add_param_group
        self._within = False

        def step(_: Optimizer, closure: Any = None) -> Any:
            return self._step(closure)

        def zero_grad(_: Optimizer, set_to_none: bool = True) -> None:
            if self._is_full or not self._accumulates:
                self._inner_zero(set_to_none)

        def add_param_group(_: Optimizer, param_group: dict[str, Any]) -> None:
            self._inner_add(param_group)
            try:
                check_groups(optimizer)
            except ConfigError:
                del optimizer.param_groups[-1]
                raise
            self._read_groups()

        if hasattr(self._inner_step, _BY_SCHEDULE):  # otherwise an earlier schedule warns of the change
            setattr(step, _BY_SCHEDULE, True)
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.zero_grad = MethodType(zero_grad, optimizer)  # type: ignore[method-assign]
        optimizer.add_param_group = MethodType(add_param_group, optimizer)  # type: ignore[method-assign]

    def _read_groups(self) -> None:
        self.parameters = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        self.models = [model for model in self._all_models if not self.parameters.isdisjoint(model.parameters)]
        trained = {parameter for model in self.models for parameter in model.parameters}
        self.frozen = list(self.parameters - trained)
        for model in self.models:
            model.is_unowned = False

    def restore(self) -> None:
        """Let the optimizer step at each call, as before `prepare`."""
        self._hook.remove()
        if not self._updates.is_plain:
            self.optimizer.step, self.optimizer.zero_grad = self._inner_step, self._inner_zero  # type: ignore[method-assign]
            self.optimizer.add_param_group = self._inner_add  # type: ignore[method-assign]

    def _count(self, *_: Any) -> None:
        if self._is_apart:
            return
        self._updates.awaits_step = False
        if self._is_first:
            self._updates.count_step()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Return a context for calls of torch that step to create the state, which are not updates."""
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False

    def backward_done(self, models: Iterable[_Model]) -> None:
        """Note that gradients of these models were computed."""
        if any(model in self.models for model in models):
            self._has_gradients = self._accumulates = True
            self._is_full, self.is_finished = self._updates.window.is_closing, False

    def _step(self, closure: Any) -> Any:
        updates = self._updates
        if self._within or self._is_apart:  # called by the scaler, or by torch
            self.n_steps += self._within
            return self._inner_step()
        if closure is not None:
            raise ConfigError(
                "optimizer.step() received a closure, which computes gradients outside of loop.backward()",
                hint="use a closure only in a single process, without accumulation and loss scale",
            )
        if not self._has_gradients:
            raise ConfigError(
                "optimizer.step() was called without gradients from loop.backward()",
                hint="use loop.backward(loss) instead of loss.backward()",
            )
        self.n_calls += 1
        if not self._is_full:
            return None
        updates.finish(self)
        before = self.n_steps
        if updates.scaler is None:
            self._inner_step()
            self.n_steps += 1
        else:
            self._within = True
            try:
                updates.scaler.step(self.optimizer)
            finally:
                self._within = False
            updates.has_stepped = True
        self.optimizer.was_skipped = self.n_steps == before  # type: ignore[attr-defined]
        updates.awaits_step = False
        self._has_gradients = self._accumulates = False
        return None


class TensorLoader(LoopLoader):
    """A loader of tensor batches, which need no search; on a CPU they are not moved."""

    def __iter__(self) -> Iterator[Any]:
        # An evaluation counts rows itself, so a process without rows receives none.
        self._stand_in_rows = int(torch.is_grad_enabled())
        return super().__iter__()

    def _take_rows(self, batch: Any, rows: slice, n_rows: int) -> Any:
        if _is_plain(batch) and all(part.size(0) == n_rows for part in batch):
            return type(batch)([part[rows] for part in batch])
        return super()._take_rows(batch, rows, n_rows)

    def _moved(self, batch: Any) -> Any:
        contents, _ = batch
        stays = self.accelerator.device.kind == "cpu" and _is_plain(contents) and all(part.is_cpu for part in contents)
        return batch if stays else super()._moved(batch)


def _is_plain(batch: Any) -> bool:
    """Return whether a batch is a list or tuple of tensors with rows."""
    return type(batch) in (list, tuple) and len(batch) > 0 and all(type(part) is Tensor and part.ndim for part in batch)


class TorchLoader(TensorLoader):
    """A loader for a DataLoader that reads only the rows of this process."""

    def __init__(self, loader: DataLoader[Any], *settings: Any) -> None:
        super().__init__(loader, *settings)
        seed = self.processes.seed
        samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
        if any(isinstance(sampler, DistributedSampler) for sampler in samplers):
            raise ConfigError(
                "the loader has a DistributedSampler, so its rows would be split over the processes twice",
                hint="create it without a DistributedSampler; prepare() splits its batches",
            )
        self._reads_elsewhere = loader.num_workers > 0
        if seed is not None and not self._reads_elsewhere:
            self._in_turn = True  # its rows seed the generators that the loop draws from
        self._own: DataLoader[Any] | None = None
        self._has_workers = False
        self._rows: _OwnRows | None = None
        is_divisible = loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)
        if is_divisible and (self.processes.size > 1 or seed is not None):
            self._rows = _OwnRows(loader.batch_sampler, self)
            dataset = loader.dataset if seed is None else _KeyedDataset(loader.dataset)
            workers = {} if loader.num_workers == 0 else {
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "multiprocessing_context": loader.multiprocessing_context,
            }  # fmt: skip
            self._own = DataLoader(
                dataset,
                batch_sampler=self._rows,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                generator=loader.generator if self.processes.rank == 0 else torch.Generator(),
                **workers,
            )

    @property
    def order_key(self) -> int:
        """Key of the random numbers of this epoch, the same in all processes."""
        return self._order.key or 0

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        batches = self.loader.batch_sampler
        for source in (self.loader.dataset, self.loader.sampler, batches, getattr(batches, "sampler", None)):
            set_epoch = getattr(source, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    @property
    def _draws_alike(self) -> bool:
        batches = self.loader.batch_sampler
        return super()._draws_alike or (batches is not None and not isinstance(self.loader.dataset, IterableDataset))

    def _shared(self) -> Iterator[tuple[Any, Share]]:
        if self._rows is None or self._own is None:
            yield from super()._shared()
            return
        own = self._own
        if self.processes.rank != 0 and not (own.persistent_workers and self._has_workers):
            # the workers draw other numbers than those of the first process, which has the plain loop's
            self._has_workers = True
            own.generator.manual_seed(key(self.order_key, "workers", self.processes.rank))
            # as the first process draws a seed
            torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        for batch in own:
            share = self._rows.shares.popleft()
            if share.rows == 0 and self._stand_in_rows == 0:
                batch = self._take_rows(batch, slice(0, 0), rows_of(batch) or 0)
            yield batch, share

    def check_order(self, first: Any, every: Sequence[Any] | None) -> None:
        """Check that all processes have the same data set and the same order of rows.

        Args:
            first: Indices of the first batch.
            every: Indices of all batches, if they are known.

        Raises:
            DataError: They differ.
        """
        if self.epoch == 0:
            self._check_alike(digest(_identity(self.loader.dataset)), "the data set")
        sizes = np.array([len(batch) for batch in every or ()])
        self._check_alike(digest([sizes, first]), "the order of rows")
        self._knows_rows = every is not None

    def _skip(self, n_batches: int) -> int:
        if self._rows is None or self.processes.seed is None:
            return n_batches
        self._rows.skipped = n_batches
        return 0


_DRAW_AT_ONCE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Samplers that draw from the global generators before their first row, if at all."""


class _OwnRows:
    """The row indices of this process, batch by batch, which also records the `Share` of each batch."""

    def __init__(self, batches: Any, loader: TorchLoader) -> None:
        self._batches, self._loader = batches, loader
        self.shares: deque[Share] = deque()
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[Any]]:
        loader, processes = self._loader, self._loader.processes
        self.shares.clear()
        skipped, self.skipped = self.skipped, 0
        batches, is_alike = self._batches, True
        draws_at_once = type(batches) is BatchSampler and type(batches.sampler) in _DRAW_AT_ONCE
        if not draws_at_once and processes.size > 1:
            is_alike = hasattr(type(batches), "__len__")
            batches = list(batches) if is_alike else batches  # at once, so equal in all processes
        groups = iter(_joined(iter(batches), processes.size if loader.batch == "per_replica" else 1))
        following = next(groups, None)
        if processes.size > 1 and is_alike:
            loader.check_order(following, batches if isinstance(batches, list) else None)
        if processes.rank > 0 and processes.seed is None and is_alike:  # the rows of the first batch draw other numbers
            processes.seed_all(key(loader.order_key, "rows", processes.rank))
        number = -1
        while following is not None:
            indices, number = following, number + 1
            # A sampler of torch is not asked for more than the loop takes, as its generator may draw at its end.
            is_last = number + 1 == len(self) if draws_at_once else (following := next(groups, None)) is None
            if number >= skipped:
                first, after = bounds(len(indices), processes.rank, processes.size)
                self.shares.append(Share(after - first, len(indices), is_last, number))
                own = indices[first:after] or indices[:1]
                if processes.seed is not None:
                    own = _KeyedIndices(own, key(processes.seed, "batch", loader.epoch, number, first))
                yield own
            if draws_at_once:
                following = next(groups, None)


def _identity(data: Any) -> Any:
    """Return what identifies rows in memory; None for those that must be read, which may change them at random."""
    if isinstance(data, TensorDataset):
        return list(data.tensors)
    if isinstance(data, Subset):
        return [_identity(data.dataset), np.asarray(data.indices)]
    if isinstance(data, (np.ndarray, Tensor)):
        return data
    return getattr(data, "_fingerprint", None)  # of Hugging Face's datasets


def _by_names(saved: Mapping[str, Any], optimizer: Optimizer, module: nn.Module) -> Mapping[str, Any]:
    """Return the state of an optimizer by the names of parameters, as that of one process has their numbers."""
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    if not all(isinstance(number, int) for number in numbers):
        return saved
    names = {parameter: name for name, parameter in module.named_parameters()}
    own = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    by_number = dict(zip(numbers, own, strict=True))
    groups = [{**group, "params": [by_number[n] for n in group["params"]]} for group in saved["param_groups"]]
    return {"state": {by_number[n]: value for n, value in saved["state"].items()}, "param_groups": groups}


def _joined(batches: Iterator[Sequence[Any]], size: int) -> Iterator[list[Any]]:
    """Yield `size` batches joined, and finally the remaining ones."""
    together: list[Any] = []
    count = 0
    for batch in batches:
        together.extend(batch)
        count += 1
        if count == size:
            yield together
            together, count = [], 0
    if together:
        yield together


class _KeyedIndices(list[Any]):
    """Indices, and the key of their rows' random numbers."""

    def __init__(self, indices: Iterable[Any], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> Any:
        return _KeyedIndices, (list(self), self.seed)


class _KeyedDataset(Dataset[Any]):
    """A data set whose rows draw random numbers that depend on seed, epoch and batch, but not on the worker."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: _KeyedIndices) -> list[Any]:
        import random

        kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
        torch.default_generator.manual_seed(indices.seed)
        np.random.seed(indices.seed % 2**32)
        random.seed(indices.seed)
        try:
            if hasattr(self._dataset, "__getitems__"):
                return list(self._dataset.__getitems__(list(indices)))
            return [self._dataset[i] for i in indices]
        finally:
            torch.set_rng_state(kept[0])
            np.random.set_state(kept[1])
            random.setstate(kept[2])


def _shapes(state: Mapping[str, Any]) -> dict[str, list[int] | None]:
    return {name: list(value.shape) if hasattr(value, "shape") else None for name, value in state.items()}


def _plain(state: Any) -> Any:
    """Return a state dict as plain dicts."""
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)([_plain(value) for value in state])
    return state


def _tensor(array: Any) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _tensors(state: Any) -> Any:
    """Return a state with tensors instead of arrays."""
    if isinstance(state, Mapping):
        return {name: _tensors(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)([_tensors(value) for value in state])
    return _tensor(state) if isinstance(state, (np.ndarray, np.generic)) else state


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor with the parts of all processes if it is sharded; DTensor is not imported for this."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else cast("Tensor", full())


def _raise(error: BaseException) -> None:
    raise error
