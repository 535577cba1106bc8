"""Phases as values: what they refuse when they are made, and as plain data and back."""

from __future__ import annotations

import inspect
import json
import re

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.accelerator import Accelerator
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.device import Device
from anyaccel.errors import ConfigError, GraphError, PhaseError, SamplerError, SpecError
from anyaccel.metrics import Metric
from anyaccel.phases import Callback, EvalPhase, Phase, TrainPhase, plan_of

MSE = AppliedLoss("mse", on="net")


def custom_loss(outputs, targets):
    return (outputs - targets).mean()


def train(**settings):
    return TrainPhase(settings.pop("label", "t"), **{"data": "train", "losses": [MSE], **settings})


def test_counts_may_be_integers_of_numpy() -> None:
    counts = {name: np.int64(2) for name in ("epochs", "validate_every", "accumulate")}
    phase = TrainPhase("t", data="train", losses=[MSE], validation="val", **counts)
    assert [(type(getattr(phase, name)), getattr(phase, name)) for name in counts] == [(int, 2)] * 3


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (
            {"losses": ["mse"]},
            PhaseError,
            "phase 't': losses must be AppliedLoss objects, got 'mse'. Hint: write losses=[AppliedLoss('mse', on=",
        ),
        (
            {"losses": [MSE, MSE]},
            PhaseError,
            "phase 't' has several losses with the label 'net'. Hint: give each a unique label",
        ),
        ({"callbacks": [print]}, PhaseError, "is not a Callback. Hint: derive it from anyaccel.Callback"),
        ({"callbacks": [Callback]}, PhaseError, "is not a Callback"),
        ({"epochs": -1}, PhaseError, "phase 't': epochs=-1 is not an int of at least 0"),
        ({"epochs": 1.5}, PhaseError, "epochs=1.5 is not an int of at least 0"),
        ({"epochs": True}, PhaseError, "epochs=True is not an int of at least 0"),
        ({"validate_every": 0}, PhaseError, "validate_every=0 is not an int of at least 1"),
        (
            {"validate_every": 2},
            PhaseError,
            "phase 't' has validate_every=2 but no validation. Hint: write validation='SPLIT', or leave it out",
        ),
        (
            {"sampler": "all"},
            PhaseError,
            "for each feature set, got 'all'. Hint: write batch_size=32",
        ),
        (
            {"num_devices": 2},
            PhaseError,
            "has no setting 'num_devices'. Hint: write replicas=2, or accelerator='gpu:*'.",
        ),
        ({"strategy": "ddp"}, PhaseError, "no setting 'strategy'. Hint: start the script as anyaccel run --replicas 2"),
        ({"fsdp": True}, PhaseError, "TrainPhase has no setting 'fsdp'. Hint: write sharding='full'."),
        ({"bf16": True}, PhaseError, "TrainPhase has no setting 'bf16'. Hint: write precision='bf16-mixed'."),
        ({"fp16": True}, PhaseError, "'fp16'. Hint: write precision='fp16-mixed', which scales losses."),
        ({"gradient_checkpointing": True}, PhaseError, "Hint: it is a node's: ModelNode(..., remat='blocks')."),
        ({"sampler": 8}, PhaseError, "sampler must be a Sampler, got 8. Hint: write batch_size=8."),
        ({"n_epochs": 3}, PhaseError, "TrainPhase has no setting 'n_epochs'. Hint: write epochs=10."),
        ({"sampler": SimpleSampler(4), "batch_size": 8}, PhaseError, "has both a sampler and a batch_size"),
        ({"sampler": SimpleSampler(4), "batch_size": 32}, PhaseError, "has both a sampler and a batch_size"),
        ({"batch_size": 0}, SamplerError, "batch_size=0 is below 1"),
        (
            {"sampler": True},
            PhaseError,
            "sampler must be a Sampler, or a mapping with one for each feature set, got True",
        ),
        ({"batch_size": True}, SamplerError, "batch_size=True is not an integer"),
        ({"label": "a.b"}, GraphError, "'a.b' is not a valid label of a phase"),
        (
            {"validation": 3},
            PhaseError,
            "phase 't': validation must be an EvalPhase or the name of a split, got 3. Hint: write validation='SPLIT'",
        ),
        (
            {"validation": EvalPhase("v", data="val", losses=[AppliedLoss(custom_loss, on="net")])},
            PhaseError,
            "phase 't': the loss 'net' of the validation differs in the loss from that of the training: it is not "
            "trained; in addition to the trained losses, a validation computes only named losses of outputs and "
            "targets without weight columns. Hint: leave losses out of the validation, and run a separate EvalPhase "
            "with this one after",
        ),
        (
            {"validation": EvalPhase("v", data="val", accelerator="sim:1"), "accelerator": "sim:0"},
            PhaseError,
            "phase 't' trains on sim:0 but validates on sim:1. Hint: leave accelerator out of the validation",
        ),
        (
            {"validation": EvalPhase("v", data="val", accelerator="sim:1")},
            PhaseError,
            "phase 't' trains on cpu:0 but validates on sim:1",
        ),
    ],
)
def test_a_training_that_cannot_be_is_refused(settings, error, words):
    with pytest.raises(error) as caught:
        train(**settings)
    assert words in str(caught.value)


def test_an_evaluation_that_cannot_be_is_refused():
    with pytest.raises(SamplerError, match="batch_size=0 is below 1"):
        EvalPhase("e", data="val", batch_size=0)
    with pytest.raises(SpecError, match="no metric is called 'sharpness'"):
        EvalPhase("e", data="val", metrics="sharpness")
    with pytest.raises(SpecError, match="3 is not a metric"):
        EvalPhase("e", data="val", metrics=[3])


@pytest.mark.parametrize("size", [4, np.int64(4), np.uint8(4)])
def test_any_integer_is_a_batch_size(size):
    assert train(batch_size=size).sampler == SimpleSampler(4, shuffle=True)
    assert EvalPhase("e", data="val", batch_size=size).sampler.batch_size == 4


def test_the_name_of_a_split_is_a_validation_without_settings():
    validation = train(validation="val").validation
    assert (validation.data, validation.losses, validation.metrics) == ("val", (), ())


def test_a_phase_of_a_split_says_so():
    assert train().data == TrainPhase.from_split("t", split="train", losses=[MSE]).data == "train"
    assert repr(EvalPhase.from_split("e", split="val")) == "EvalPhase('e')"


@pytest.mark.parametrize("kind", [TrainPhase, EvalPhase])
def test_a_phase_of_a_split_has_every_setting_in_its_signature_with_its_text(kind):
    """The settings, defaults and annotations are those of the constructor, with `split` in place of `data`."""
    own = dict(inspect.signature(kind).parameters)
    split = dict(inspect.signature(kind.from_split).parameters)
    assert split.pop("split").kind is own.pop("data").kind is inspect.Parameter.KEYWORD_ONLY
    assert split == own
    assert not [p for p in own.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    for name in own:
        text = r"(?m)^    " + name + r": ([\s\S]*?)(?=^    \w+: |\Z)"
        here, there = (re.search(text, inspect.getdoc(of)) for of in (kind.from_split, kind))
        assert here[1].split() == there[1].split() or name == "label", name


def test_a_phase_of_a_split_passes_every_setting_on():
    settings = {
        "losses": [MSE],
        "batch_size": 7,
        "epochs": 3,
        "validation": "val",
        "validate_every": 2,
        "accumulate": 2,
        "microbatching": "approximate",
        "on_nan": "stop",
        "accelerator": "sim:0",
        "strict": True,
        "policy": "p",
        "final_device": "cpu",
        "compile": "off",
        "residency": "streamed",
    }
    made = TrainPhase.from_split("t", split="train", **settings).get_config()
    assert made == TrainPhase("t", data="train", **settings).get_config()
    plain = TrainPhase("t", data="train").get_config()
    kept = {"sampler" if name == "batch_size" else name for name in settings}
    assert not [name for name in kept if made[name] == plain[name]]
    settings = {"metrics": ["mse"], "outputs": ["net"], "batch_size": 3}
    assert EvalPhase.from_split(split="a", **settings).get_config() == EvalPhase(data="a", **settings).get_config()


def test_a_subclass_with_a_step_of_its_own_is_made_of_a_split():
    class Own(TrainPhase):
        def step(self, models, batch, optimizers):
            return {}

    made = Own.from_split(split="train")
    assert type(made) is Own
    assert made.step.__func__ is Own.step


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "a"}, r"TrainPhase.from_split has no setting 'data'. Hint: write split='train', or TrainPhase\("),
        ({"split": "a", "lr": 1}, r"TrainPhase has no setting 'lr'. Hint: the optimizer belongs to the graph"),
        ({"split": 3}, r"phase 'train': split=3 is not the name of a split. Hint: write split='train'"),
    ],
)
def test_what_a_phase_of_a_split_does_not_take(settings, message):
    with pytest.raises(PhaseError, match=message):
        TrainPhase.from_split(**settings)


@pytest.mark.parametrize("spelling", ["sim:1", Device("sim", 1), Accelerator("sim:1")])
def test_an_accelerator_is_given_in_any_spelling(spelling):
    phase = train(accelerator=spelling, final_device=spelling)
    assert phase.accelerator == phase.final_device == Accelerator("sim:1")


# -- as plain data -----------------------------------------------------------------------------------------------------


def test_a_phase_that_0_1_saved_may_have_validate_every_without_a_validation():
    saved = {**train().get_config(), "validate_every": 3}
    assert TrainPhase.from_config(saved).validate_every == 1
    validation = train(validation="val").get_config()["validation"]
    assert TrainPhase.from_config({**saved, "validation": validation}).validate_every == 3


PHASES = [
    train(),
    train(
        label="whole",
        losses=[MSE, AppliedLoss("ce", on="sort", inputs=["outputs", "data.c"], weight=0.5, label="class")],
        sampler=SimpleSampler(7, shuffle=True, drop_last=True, seed=3),
        epochs=5,
        validation=EvalPhase("check", data="val", metrics=["mse", Metric("mae", on="net", label="far")], batch_size=9),
        validate_every=2,
        accelerator=Accelerator("cuda:1", pin_memory=True),
        strict=True,
        policy="spread",
        final_device="cpu",
    ),
    EvalPhase("e", data={"data": "val", "other": "all"}, outputs=["a", "b"], metrics=["accuracy"], losses=[MSE]),
]


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.label)
def test_a_phase_comes_back_from_its_configuration(phase):
    config = json.loads(json.dumps(phase.get_config()))
    again = Phase.from_config(config)
    assert type(again) is type(phase)
    assert again.get_config() == phase.get_config() == config
    assert again.accelerator == phase.accelerator and again.losses == phase.losses
    assert json.loads(json.dumps(config)) == config, "reading changes nothing"


def test_options_and_spelling_of_an_accelerator_survive_a_configuration():
    again = Phase.from_config(PHASES[1].get_config())
    assert again.accelerator.pin_memory and again.accelerator.spec == "cuda:1"
    assert again.validation.sampler.batch_size == 9


def test_data_that_have_no_name_have_no_configuration():
    rows = FeatureSet.from_dict("data", {"x": np.zeros((4, 1))}, ["x"])
    split = rows.add_split("some", [1, 2])
    assert EvalPhase("e", data=split).get_config()["data"] == {"data": "some"}
    assert EvalPhase("e", data={"data": split}).get_config()["data"] == {"data": {"data": "some"}}
    for nameless in (rows, rows.view()):
        with pytest.raises(
            ConfigError,
            match=r"phase 'e' cannot be saved: its data have no name\. Hint: register a "
            r"split",
        ):
            EvalPhase("e", data=nameless).get_config()


def test_functions_have_no_configuration():
    with pytest.raises(ConfigError, match="is a function, which cannot be saved in a configuration"):
        EvalPhase("e", data="val", metrics=[lambda outputs, targets: 0.0]).get_config()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("train", "unknown type of phase None. Available: eval, "),
        ({}, "unknown type of phase None"),
        ({"type": "test"}, "unknown type of phase 'test'"),
        ({"type": ["train"]}, "unknown type of phase ['train']"),
        ({"type": "eval", "label": "e"}, "the configuration of a phase of type 'eval' does not fit"),
        ({"type": "eval", "label": "e", "data": "val", "epochs": 3}, "has no setting 'epochs'"),
        ({"type": "eval", "label": "e", "data": "val", "losses": None}, "a phase of type 'eval' does not fit"),
        ({"type": "eval", "label": "e", "data": "val", "metrics": 3}, "a phase of type 'eval' does not fit"),
        (
            {"type": "eval", "label": "e", "data": "val", "accelerator": "cpu"},
            "not the configuration of an accelerator",
        ),
        (
            {"type": "train", "label": "t", "data": "x", "losses": [MSE.get_config()]},
            "not the configuration of a sampler",
        ),
        (
            {**train().get_config(), "validation": "val"},
            "unknown type of phase None",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config, words):
    with pytest.raises(ConfigError) as caught:
        Phase.from_config(config)
    assert words in str(caught.value)


# -- planning ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_made_without_doing_anything(sims, line, experiment):
    graph = line()
    phase = train(accelerator="sim:2", validation="val")
    plan = plan_of(phase, graph)
    assert str(plan.device("net")) == "sim:2" and plan.phase == "t"
    assert experiment(graph).plan(phase) == plan
    assert all(sim.used == sim.transfers.into.number == 0 for sim in sims)
    assert graph.optimizer_states == graph.progress == {}
    result = experiment(graph).run_phase(phase)
    assert result.plan == plan, "what was planned is what was done"
