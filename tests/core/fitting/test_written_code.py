"""The code of a fit, run by itself, is the fit: the same losses to the last bit."""

from __future__ import annotations

import copy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anyaccel as aa
from anyaccel.errors import ResultError

rng = np.random.default_rng(0)
A, B = rng.normal(2.0, 3.0, 60), rng.normal(-1.0, 0.5, 60)
NUMBERS = {"a": A, "b": B, "value": A - B}
KINDS = {"a": A, "b": B, "kind": np.array(["x", "y", "z"])[rng.integers(0, 3, 60)]}
CLASSES = {"a": A, "b": B, "kind": rng.integers(0, 3, 60)}


def own_loss(outputs, targets):
    difference = outputs - targets.reshape(outputs.shape)
    return (difference**2).sum(), len(outputs), (2 * difference, None)


class Counted(aa.Callback):
    """A callback of the user's own."""

    def __init__(self):
        self.n = 0

    def epoch_end(self, run):
        self.n += 1


class Standard:
    def fit(self, x):
        self.mean, self.scale = x.mean(axis=0), x.std(axis=0)
        return self

    def transform(self, x):
        return (x - self.mean) / self.scale


def feature_set(splits=False):
    made = aa.FeatureSet.from_dict("rows", {**NUMBERS, "c": B}, ["a", "b"], ["value"], ["c"])
    if splits:
        made.add_splits({"train": range(40), "val": range(40, 60)})
    return made


def again(fitted, data, model, **given):
    """The results of the code of a fit, run with what was given to it."""
    names = {"data": data, "model": model, "fitted": fitted, **given}
    code = fitted.code()
    exec(compile(code.replace("run_phase(phase)", "run_phase(phase)"), "code of a fit", "exec"), names)  # noqa: S102
    return names["results"], code


def check(data, model=None, **settings):
    model = aa.SequentialMLP(3 if "kind" in str(settings.get("target")) else 1) if model is None else model
    before = copy.deepcopy(model)
    if isinstance(settings.get("callbacks"), list):
        settings["callbacks"] = list(settings["callbacks"])
    fitted = aa.fit(model, data, **{"epochs": 3, "progress": "none", **settings})
    results, code = again(fitted, data, before, **settings)
    assert [epoch.figures for epoch in results.epochs] == [epoch.figures for epoch in fitted.results.epochs], code
    assert len(results.epochs) >= 1
    return code


PLAIN = {"loss": "mse", "target": "value"}
VARIANTS = {
    "plain": PLAIN,
    "seed": {**PLAIN, "seed": 7},
    "a share": {**PLAIN, "validation": 0.25, "seed": 3, "metrics": ["mae", aa.Metric("r2", label="fit")]},
    "other rows": {**PLAIN, "validation": {name: column[:20] + 1 for name, column in NUMBERS.items()}},
    "optimizer": {**PLAIN, "optimizer": aa.Optimizer("adamw", lr=0.01, clip_norm=0.5, weight_decay=0.1)},
    "schedule": {**PLAIN, "optimizer": aa.Optimizer("sgd", schedule=aa.Schedule("cosine", steps=9, warmup=2))},
    "batches": {**PLAIN, "batch_size": 7, "accumulate": 2},
    "sampler": {**PLAIN, "sampler": aa.SimpleSampler(9, shuffle=True, drop_last=True, seed=4)},
    "in order": {**PLAIN, "sampler": aa.SimpleSampler(32)},
    "early stopping": {**PLAIN, "validation": 0.2, "early_stopping": 1, "epochs": 20},
    "callbacks": {**PLAIN, "callbacks": [Counted(), aa.EarlyStopping("loss", patience=2)]},
    "settings": {
        **PLAIN,
        "precision": "fp16-mixed",
        "residency": "streamed",
        "compile": "off",
        "on_nan": "stop",
        "validation": 0.2,
        "validate_every": 2,
        "accelerator": "cpu",
        "final_device": "cpu",
        "loss_scale": 16.0,
    },
    "own loss": {**PLAIN, "loss": own_loss},
    "own losses": {"loss": {"value": own_loss}},
    "applied": {**PLAIN, "loss": aa.AppliedLoss("mae", weight=0.5)},
    "several applied": {
        **PLAIN,
        "loss": [
            aa.AppliedLoss("mae", on="model", label="a"),
            aa.AppliedLoss("mse", on="model", label="b", weight=2.0),
        ],
    },
    "one feature": {**PLAIN, "features": "b"},
    "by name": {**PLAIN, "features": ["b", "a"]},
    "callback": {**PLAIN, "callbacks": [aa.EarlyStopping("loss", patience=1)]},
    "no training": {**PLAIN, "epochs": 1, "strict": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_code_of_a_fit_gives_its_losses(name):
    check(NUMBERS, **VARIANTS[name])


def test_a_scaler_of_ones_own_stands_in_it():
    pytest.importorskip("anyaccel_sklearn")
    check(NUMBERS, **PLAIN, scaler=Standard())


@pytest.mark.parametrize("kinds", [KINDS, CLASSES], ids=["text", "integers"])
def test_classes_are_encoded_in_it(kinds):
    if kinds is KINDS:
        pytest.importorskip("anyaccel_sklearn")
    code = check(kinds, loss="cross_entropy", target="kind", validation=0.2, metrics="accuracy")
    assert ("ClassEncoder()" in code) == (kinds is KINDS)


def test_integers_that_a_loss_of_numbers_compares_are_cast_in_it():
    code = check({**NUMBERS, "value": np.arange(60)}, loss="mse", target="value", validation=0.3)
    assert "cast({'value': 'float64'})" in code


class Strict(aa.EvalPhase):
    """Has other defaults than its base, as which the code writes it."""

    default_batch_size = 7

    def __init__(self, *args, **settings):
        super().__init__(*args, strict=True, **settings)


def test_a_validation_of_a_class_of_ones_own_is_written_with_what_its_class_sets():
    data = feature_set(splits=True)
    fitted = aa.fit(aa.SequentialMLP(1), data, loss="mse", validation=Strict("check", data="val"), epochs=1)
    assert "EvalPhase('check', data='val', batch_size=7, strict=True)" in fitted.code()


def test_a_scaler_by_name_is_in_it():
    pytest.importorskip("anyaccel_sklearn")
    assert "sklearn.preprocessing.RobustScaler()" in check(NUMBERS, **PLAIN, scaler="robust", validation=0.2)


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "arrow", "pair", "pandas", "frame and series"])
def test_any_table_is_read_in_it(kind, tmp_path):
    arrow = pa.table(NUMBERS)
    settings = PLAIN
    if kind in ("csv", "tsv"):
        data = tmp_path / f"table.{kind}"
        rows = zip(*(column.tolist() for column in NUMBERS.values()), strict=True)
        mark = "," if kind == "csv" else "\t"
        data.write_text("\n".join(mark.join(line) for line in [list(NUMBERS), *([*map(repr, row)] for row in rows)]))
    elif kind == "parquet":
        data = str(tmp_path / "table.parquet")
        pq.write_table(arrow, data)
    elif kind == "arrow":
        data = arrow
    elif kind == "pair":
        data, settings = (np.stack([A, B], axis=1), A - B), {"loss": "mse"}
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(NUMBERS)
        data = frame if kind == "pandas" else (frame[["a", "b"]], frame["value"])
        settings = PLAIN if kind == "pandas" else {"loss": "mse"}
    check(data, **settings, validation=0.2)


def test_feature_sets_views_and_sources_are_taken_in_it():
    check(feature_set(), loss="mse")
    check(feature_set(), loss="mse", validation=0.2, features="b", target="value")
    check(feature_set(True), loss="mse", validation="val", metrics="mae")
    check(feature_set(True)["train"], loss="mse")
    check(feature_set().take(range(30)), loss="mse", validation=0.5)
    whole = feature_set(True)
    check(whole["train"], loss="mse", validation=whole["val"])
    check(feature_set(True), loss="mse", validation=aa.EvalPhase("check", data="val", metrics=["mae"], batch_size=5))
    batches = [{"a": A[i : i + 20, None], "value": (A - B)[i : i + 20, None]} for i in (0, 20, 40)]
    check(batches, loss="mse", features="a", target="value")
    check(aa.IterableSource("own", batches, features="a", target="value"), loss="mse")


@pytest.mark.parametrize(
    "settings",
    [
        {"sample_weight": np.linspace(0.5, 2.0, 60)},
        {"class_weights": "balanced", "validation": 0.25},
        {"validation": 0.25, "stratify": True},
        {"validation": {name: column[:20] for name, column in CLASSES.items()}, "class_weights": [1.0, 2.0, 3.0]},
    ],
    ids=["sample_weight", "class_weights", "stratify", "other rows"],
)
def test_rows_that_were_weighted_or_drawn_by_strata_are_taken_from_the_fitted_model(settings):
    pytest.importorskip("anyaccel_sklearn")
    code = check(CLASSES, loss="cross_entropy", target="kind", **settings)
    assert "feature_set = fitted.graph.feature_sets['data']" in code


def test_the_code_reads_well():
    code = check(NUMBERS, **PLAIN, validation=0.25, batch_size=16, optimizer=aa.Optimizer("adam", lr=0.01))
    assert (
        code
        == """import anyaccel as aa

feature_set = aa.FeatureSet.from_dict('data', data, features=['a', 'b'], target=['value'])
feature_set.split_random({'train': 0.75, 'validation': 0.25}, seed=0)
node = aa.ModelNode('model', model, feature_set.reference())
graph = aa.ModelGraph([node], aa.Optimizer('adam', lr=0.01), seed=0)
phase = aa.TrainPhase(
    'train',
    data='train',
    losses=[aa.AppliedLoss('mse', on='model')],
    validation=aa.EvalPhase('validation', data='validation'),
    batch_size=16,
    epochs=3,
    accelerator='auto',
)
results = aa.Experiment('fit', graph).run_phase(phase)
"""
    )


def test_a_loaded_model_has_no_code(tmp_path):
    aa.fit(aa.SequentialMLP(1), NUMBERS, **PLAIN, epochs=1, progress="none").save(tmp_path)
    with pytest.raises(ResultError, match="this model was loaded without its phase"):
        aa.load(tmp_path).code()
