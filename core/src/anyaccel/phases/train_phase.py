"""TrainPhase: epochs of training steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data import Rows, Sampler
from anyaccel.errors import ConfigError, PhaseError, SpecError
from anyaccel.graph import ModelGraph
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.phases.accumulation import check_accumulation
from anyaccel.phases.callbacks import Callback, EarlyStopping, unknown_mode, unknown_value
from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.eval_phase import EvalPhase
from anyaccel.phases.evaluation import trained_as
from anyaccel.phases.learners import learning
from anyaccel.phases.loading.epoch_plan import ZIP_STRICT, EpochPlan, EvaluationRows, SampledBatches, TrainingEpochs
from anyaccel.phases.loop_factory import train_loop
from anyaccel.phases.plateau import ReduceLROnPlateau
from anyaccel.phases.row_alignment import Combination, check_alignment
from anyaccel.phases.run import Run
from anyaccel.phases.runner import Phase, PhasePrograms
from anyaccel.phases.settings import (
    UNCHANGED,
    UNSAVED,
    Data,
    Samplers,
    Setting,
    batch_size,
    check_schedule,
    choice,
    config,
    integer,
    largest_batch,
    offered,
    read,
    same,
    samplers,
    samplers_config,
    samplers_from,
    takes_settings,
    unsaved,
)
from anyaccel.precision import LossScale
from anyaccel.results import TrainResults
from anyaccel.results.records import EvaluationValues

MICROBATCHING = ("exact", "approximate")
ON_NAN = ("warn", "stop", "ignore")


def _checkpoint(phase: Any, name: str, checkpoint: Any) -> Checkpoint:
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    if isinstance(checkpoint, (str, os.PathLike)):
        return Checkpoint(checkpoint)
    problem = f"phase {phase.label!r}: checkpoint must be a Checkpoint or the name of a folder, got {shown(checkpoint)}"
    raise PhaseError(problem, hint="write checkpoint=Checkpoint('runs/a')")


def _loss_scale(phase: Any, name: str, scale: Any) -> LossScale:
    if scale is None or isinstance(scale, LossScale):
        return scale or Phase.loss_scale
    try:
        return LossScale(scale)
    except SpecError:
        problem = f"phase {phase.label!r}: loss_scale must be a LossScale or a positive number, got {shown(scale)}"
        raise PhaseError(problem, hint="write loss_scale=LossScale(initial=1024.0)") from None


def _validation(phase: Any, name: str, validation: Any) -> Any:
    """Return the evaluation of a split: row by row, or in the pairs or triplets of the training's samplers."""
    if not isinstance(validation, str):
        return validation
    split, samplers = validation, phase.sampler
    by_label = samplers if isinstance(samplers, Mapping) else {"": samplers}
    tuples = {name: part for name, part in by_label.items() if isinstance(part, Sampler) and len(part.streams) > 1}
    if not tuples:
        return EvalPhase.from_split(split, split=split)
    return EvalPhase.from_split(split, split=split, sampler=tuples.get("", tuples))


def _refuse_to_save(phase: Any, step: Any) -> Any:
    if step is not None:
        problem = f"phase {phase.label!r} has a custom step, which cannot be written to a configuration"
        raise ConfigError(problem, hint="save the graph, and create the phase in code")
    return UNSAVED


@constructor_hints
class TrainPhase(Phase):
    """Train a graph for a number of epochs.

    Estimators in the graph that have `partial_fit` and are not frozen learn, too: after each step, on the host, from
    their inputs in this step. `losses` may then be empty.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> splits = data.split_random({"train": 0.75, "val": 0.25}, seed=0)
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], "adam", seed=0)
        >>> phase = aa.TrainPhase("train", data="train", losses=aa.AppliedLoss("mse"), epochs=3, validation="val")
        >>> results = graph.run(phase, progress="none")
        >>> results.figure("val_loss").shape
        (3,)

    Args:
        label: Name of the phase. Phases with the same label count their epochs together.
        data: Name of a split that every feature set has, a FeatureSet or view, or a mapping from the label of each
            feature set to one of these. Also a source, or anything that IterableSource or MapSource takes (a
            DataLoader, a dataset, a generator function), which is streamed.
        losses: AppliedLoss objects, or one of them.
        batch_size: Rows of a batch; they are shuffled. 32 by default. Sources that yield whole batches have their own:
            another one beside a loader that knows its batch size is an error.
        sampler: Batches and their order, instead of `batch_size`: a SimpleSampler, PairSampler or TripletSampler, or a
            mapping with one of these or a batch size for each feature set, whose row counts may then differ. A batch
            size of 32 means `SimpleSampler(32, shuffle=True)`, whereas `SimpleSampler(32)` keeps the order of the rows.
        schedule: How to combine several samplers. `zip_strict`, the default: each step takes a batch from every
            sampler, and all must have equally many; `zip_cycle`: shorter ones restart until the longest ends.
            `alternate_strict` and `alternate_cycle` do the same, but each step takes a batch from one sampler in turn.
        epochs: Number of epochs. 0 places and loads everything but does not train.
        validation: An EvalPhase or the name of a split. It is evaluated after every `validate_every` epochs, on the
            devices of the models; its losses are the losses of the training. If the sampler of the phase draws pairs or
            triplets, a split is evaluated in pairs or triplets, too.
        validate_every: Number of epochs between validations.
        accumulate: Batches per optimizer step (gradient accumulation). Their gradients are added, weighted by rows.
            This equals one batch of all these rows unless a model mixes the rows of a batch (batch normalization) or
            has buffers that each call changes (spectral norms, codebooks); a warning reports that. A custom loss that
            is not a mean over rows (`reduction="sum"`, class weights, ignored targets) is refused if this can be
            detected. A step is an optimizer step. Batches left over at the end of an epoch make a separate step.
        microbatching: Reaction if memory runs out even though rows are streamed. `"exact"` splits a batch into
            micro-batches only if that computes the same numbers. `"approximate"` also splits it if the rows of a batch
            depend on each other (batch normalization) or if this is unknown (custom losses).
        step: A custom training step that replaces the losses: a function of (models, batch, optimizers), with the
            framework's objects, that returns figures. A subclass can define it as a method instead.
        on_nan: Reaction to a loss that is NaN or infinite; losses are checked after each epoch. `"warn"` issues one
            NaNWarning that names the loss, its node and the step. `"stop"` also ends the run after this epoch.
            `"ignore"` does neither, and also omits the warning about NaN in the data.
        replicas: Number of replicas that train the model together, each on its part of every batch: the processes that
            a launcher started (`anyaccel run --replicas 2 SCRIPT`, torchrun), otherwise that many devices of this
            process, of the kind of `accelerator`. None uses all available processes or devices; 1 uses this process
            alone.
        per_replica: Whether batch sizes count the rows of each replica instead of the rows of all
            replicas.
        deterministic: Whether losses and values are bitwise equal for 1 to 8 replicas. Each batch is cut into 8 shards,
            for any number of replicas, and their gradients are added in one order; this takes more time.
        loss_scale: Loss scaling for nodes that are computed in fp16-mixed: a LossScale or its initial factor. The
            default equals that of `torch.amp.GradScaler`.
        sharding: `"full"` shards parameters, gradients and optimizer states over the replicas, which gather each block
            while it is computed; `"full offload"` keeps them in host memory. None keeps a full copy on each replica.
            `ModelNode(sharding=)` overrides this for one node.
        sync_batchnorm: Whether batch normalization uses the mean and variance over the rows of all replicas, as in one
            process. If False, several replicas refuse a model that has batch normalization.
        checkpoint: A Checkpoint or the name of a folder. The state is written there, so that the run can resume after
            it was interrupted or its process was killed. Not available with estimators that learn, because only pickle
            could write them.
    """

    # The texts of accelerator, strict and the other settings of every kind are added from PhaseSettings.
    kind = "train"
    trains = True
    default_batch_size = 32
    settings: ClassVar[Mapping[str, Setting]] = {
        **Phase.settings,
        "batch_size": Setting(batch_size, unsaved),
        "sampler": Setting(samplers, lambda phase, kept: samplers_config(kept), samplers_from, samplers_config),
        "schedule": Setting(check_schedule, compare=same, or_none=True),
        "epochs": Setting(integer(0), compare=same, on_resume=False),
        "validation": Setting(_validation, config, read(Phase.from_config), or_none=True),
        "validate_every": Setting(integer(1), compare=same, on_resume=False),
        "accumulate": Setting(integer(1), compare=same),
        "microbatching": Setting(choice(*MICROBATCHING)),
        "on_nan": Setting(choice(*ON_NAN)),
        "step": Setting(lambda phase, name, value: UNCHANGED if value is None else value, _refuse_to_save),
        "loss_scale": Setting(
            _loss_scale,
            lambda phase, scale: UNSAVED if scale == LossScale() else scale.get_config(),
            lambda saved: LossScale.from_config(saved) if isinstance(saved, Mapping) else saved,
        ),
        "checkpoint": Setting(
            _checkpoint,
            config,
            lambda saved: Checkpoint(**saved) if isinstance(saved, Mapping) else saved,
            or_none=True,
        ),
        "replicas": Setting(offered("TrainPhase.replicas", None, 1)),
        "per_replica": Setting(offered("TrainPhase.per_replica", False)),
        "deterministic": Setting(offered("TrainPhase.deterministic", False)),
        "sharding": Setting(offered("TrainPhase.sharding", None)),
        "sync_batchnorm": Setting(offered("TrainPhase.sync_batchnorm", False)),
    }
    misplaced_settings: ClassVar[Mapping[str, str]] = {
        "n_epochs num_epochs max_epochs nb_epoch": "write epochs=10",
        "batchsize bs": "write batch_size=16 for batches of 16 (shuffled), or sampler=SimpleSampler(16)",
        "shuffle": "write sampler=SimpleSampler(16, shuffle=True)",
        "seed": "write ModelGraph(..., seed=1), or sampler=SimpleSampler(16, shuffle=True, seed=1)",
        "lr learning_rate optimizer": (
            "the optimizer belongs to the graph: ModelGraph(nodes, Optimizer('adam', lr=1e-3))"
        ),
        "loss criterion": "write losses=[AppliedLoss('cross_entropy', on='NODE')]",
        "class_weight": "class weights belong to the loss: Loss('cross_entropy', class_weights=[1.0, 2.0, 1.0])",
        "early_stopping patience": "write callbacks=[EarlyStopping('loss', patience=5)]",
        "clip_value": "the optimizer clips: ModelGraph(nodes, Optimizer('adam', clip_value=0.5))",
        "clip_norm grad_clip gradient_clip_val max_grad_norm": (
            "the optimizer clips: ModelGraph(nodes, Optimizer('adam', clip_norm=1.0))"
        ),
        "scheduler lr_scheduler": (
            "the optimizer has the schedule: Optimizer('adam', schedule=Schedule('cosine', steps=100))"
        ),
        "validation_data val": "write validation='val', a split",
        "validation_split": "split the data: data.split_random({'train': 0.8, 'val': 0.2}), and write validation='val'",
        "gradient_accumulation_steps accumulate_grad_batches": "write accumulate=4",
        "mixed_precision amp autocast bf16": "write precision='bf16-mixed'",
        "fp16 grad_scaler scaler": "write precision='fp16-mixed', which scales losses",
        "tf32": "write matmul_precision='high'",
        "devices n_devices num_devices world_size num_processes": "write replicas=2, or accelerator='gpu:*'",
        "strategy distributed ddp": "start the script as anyaccel run --replicas 2 SCRIPT",
        "fsdp zero shard": "write sharding='full'",
        "cpu_offload": "write sharding='full offload'",
        "remat gradient_checkpointing checkpointing": "it is a node's: ModelNode(..., remat='blocks')",
        "freeze frozen trainable": "the graph freezes nodes: graph.freeze('NODE')",
        "model": "the model is in the graph: ModelGraph([ModelNode('net', model, data.reference())], 'adam')",
        "metrics": "metrics belong to the validation: validation=EvalPhase(..., metrics=[...])",
        "outputs": "run an EvalPhase(..., outputs=[...]) to keep outputs",
    }

    @takes_settings
    def __init__(  # noqa: PLR0913 - keywords, each documented
        self,
        label: str = "train",
        *,
        data: Data,
        losses: AppliedLoss | Iterable[AppliedLoss] = (),
        batch_size: int | None = None,
        sampler: Sampler | Mapping[str, Sampler | int] | None = None,
        schedule: str | None = None,
        epochs: int = 1,
        validation: EvalPhase | str | None = None,
        validate_every: int = 1,
        accumulate: int = 1,
        microbatching: str = "exact",
        on_nan: str = "warn",
        step: Callable[..., Any] | None = None,
        replicas: int | None = None,
        per_replica: bool = False,
        deterministic: bool = False,
        loss_scale: LossScale | float | None = None,
        sharding: str | None = None,
        sync_batchnorm: bool = False,
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        accelerator: Any = None,
        strict: bool = False,
        policy: str | None = None,
        callbacks: Iterable[Callback] = (),
        final_device: Any = None,
        compile: str = "auto",
        residency: str = "auto",
        precision: str | None = None,
        matmul_precision: Any = None,
    ) -> None:
        """Check and store the settings."""

    @classmethod
    def read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Convert a configuration into keyword arguments; refuse a configuration without a sampler."""
        if settings.get("validation") is None:  # 0.1 saved what has no effect without a validation
            settings = {**settings, "validate_every": 1}
        return super().read_settings({"sampler": {}, **settings})

    def check_settings(self) -> None:
        """Check settings that depend on each other.

        Raises:
            PhaseError: a custom step that is not a function, or beside losses, a precision, batches to accumulate, or
                compiled steps; or a validation that is not an EvalPhase, has a loss that is neither trained nor can be
                computed from its outputs alone, or has a precision or an accelerator that the training does not have.
        """
        step: Any = self.step
        where, validation = f"phase {self.label!r}", self.validation
        if self.accumulate > 1:
            check_accumulation(self.label, self.losses)
        if step is not None:
            if not callable(step):
                raise PhaseError(
                    f"{where}: step must be a function of (models, batch, optimizers), got {shown(step)}",
                    hint="write step=FUNCTION",
                )
            if self.losses:
                raise PhaseError(
                    f"{where} has both losses and a custom step, which computes its own losses",
                    hint="leave losses out; pass losses of the validation to it: "
                    "validation=EvalPhase(..., losses=[...])",
                )
            if self.precision is not None:
                raise PhaseError(
                    f"{where} has precision={self.precision!r} and a custom step, which sets its own precision",
                    hint="leave precision out, and cast in the step, for example with the framework's autocast",
                )
            if self.accumulate > 1:
                raise PhaseError(
                    f"{where} has both accumulate={self.accumulate} and a custom step",
                    hint="leave accumulate out, and add up gradients in the step",
                )
            if self.compile == "steps":
                raise PhaseError(
                    f"{where} has both compile='steps' and a custom step, which runs uncompiled",
                    hint="leave compile out, and compile parts of the step with your framework's compiler",
                )
        if validation is None:
            if self.validate_every != 1:
                raise PhaseError(
                    f"{where} has validate_every={self.validate_every} but no validation",
                    hint="write validation='SPLIT', or leave it out",
                )
        elif not isinstance(validation, EvalPhase):
            raise PhaseError(
                f"{where}: validation must be an EvalPhase or the name of a split, got {shown(validation)}",
                hint="write validation='SPLIT', or validation=EvalPhase('LABEL', data='SPLIT')",
            )
        else:
            for loss in validation.losses if step is None else ():
                of_outputs = len(loss.inputs) == 2 and loss.inputs[0] == "outputs" and loss.loss.own is None
                is_measured = of_outputs and not loss.inputs[1].startswith("outputs") and not loss.weights
                if is_measured or trained_as(loss, self.losses) is not None:
                    continue
                others, differs = [trained for trained in self.losses if trained.on == loss.on], "is new"
                if others:
                    names = {"loss": "the loss", "inputs": "inputs", "sample_weight": "sample_weight", "mask": "mask"}
                    words = [word for name, word in names.items() if getattr(loss, name) != getattr(others[0], name)]
                    differs = f"differs in {' and '.join(words)} from that of the training"
                raise PhaseError(
                    f"{where}: the loss {loss.label!r} of the validation {differs}: it is not trained; in addition to "
                    "the trained losses, a validation computes only named losses of outputs and targets without weight "
                    "columns",
                    hint="leave losses out of the validation, and run a separate EvalPhase with this one after "
                    "training",
                )
            for name in ("precision", "matmul_precision"):
                own, theirs = getattr(self, name), getattr(validation, name)
                if theirs not in (None, own):
                    raise PhaseError(
                        f"{where} trains with {name}={own!r} but validates with {theirs!r}",
                        hint=f"leave {name} out of the validation: it follows the training",
                    )
            if validation.accelerator not in (None, self.accelerator):
                raise PhaseError(
                    f"{where} trains on {self.accelerator or 'cpu:0'} but validates on {validation.accelerator}",
                    hint="leave accelerator out of the validation: it runs where the nodes are",
                )
        self.check_monitors(self.callbacks)

    def check_monitors(self, callbacks: Iterable[Callback]) -> None:
        """Refuse callbacks that monitor a value that no epoch will have, or that do not know which values are better.

        Raises:
            PhaseError: such a callback, or the `keep_best` of the checkpoint.
        """
        watched: list[tuple[str, str, Any]] = []
        for it in callbacks:
            if isinstance(it, EarlyStopping) and type(it).epoch_end is EarlyStopping.epoch_end:
                watched.append(("EarlyStopping", it.monitor, it.sign))
            elif isinstance(it, ReduceLROnPlateau) and type(it).epoch_end is ReduceLROnPlateau.epoch_end:
                watched.append(("ReduceLROnPlateau", it.monitor, it.mode))
        if self.checkpoint is not None and self.checkpoint.keep_best is not None:
            watched.append(("Checkpoint(keep_best=...)", self.checkpoint.keep_best, self.checkpoint.mode))
        if not watched:
            return
        validation = self.validation
        evaluated = validation.losses or self.losses if validation is not None else ()
        metrics = [] if validation is None else [metric.label for metric in validation.metrics]
        values = ["loss", *(f"loss.{loss.label}" for loss in self.losses)] if self.losses else []
        if evaluated:
            values += ["val_loss", *(f"val_loss.{loss.label}" for loss in evaluated)]
        values += [f"val_{label}" for label in metrics]
        for who, name, mode in watched:
            is_validation = name.startswith("val_")
            losses = evaluated if is_validation else self.losses
            # Some are known only when the phase runs: figures of a custom step, losses without a node, and metrics of
            # several nodes.
            is_open = name.startswith(("loss.", "val_loss.")) and any(not loss.on for loss in losses)
            is_open = is_open or (is_validation and any(name.endswith(f".{label}") for label in metrics))
            is_sure = (is_validation and validation is None) or (self.step is None and losses and not is_open)
            if name not in values and is_sure:
                raise unknown_value(who, name, self.label, values, validates=validation is not None)
            if not mode:
                raise unknown_mode(name, f"{who.partition('(')[0]}: ")

    # -- how it is planned and run ---------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return largest_batch(self.sampler)

    @property
    def sampled_by(self) -> Samplers:
        return self.sampler

    def learners(self, graph: ModelGraph) -> list[str]:
        graph.build()
        for node in graph.nodes.values():
            if node.kind.learns_from_steps:
                return learning().nodes(self.label, self.losses, graph)
        return []

    def draw(self, rows: Mapping[str, Rows], combinations: Sequence[Combination]) -> tuple[EvaluationRows, EpochPlan]:
        batches = SampledBatches(self.label, self.sampler, self.schedule or ZIP_STRICT, rows)
        if combinations:
            check_alignment(self.label, batches.steps, combinations, by_sampler=True)
        return EvaluationRows(rows), TrainingEpochs(self.label, batches, self.accumulate)

    def compute(self, programs: PhasePrograms) -> None:
        train_loop(self, programs).run()

    def results_of(self, run: Run, values: EvaluationValues | None, record: Mapping[str, Any]) -> TrainResults:
        return TrainResults(epochs=tuple(run.history), stop_reason=run.stop_reason, **record)
