"""The public names: imports, signatures, docstrings."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator

import public_face
import pytest

import anyaccel
from anyaccel import distributions

# Names that users bring along, with the parameters they call them by; a star stands before those by keyword.
SIGNATURES = {
    "Accelerator": "device * pin_memory",
    "FeatureSet.from_dict": "label data features target tags",
    "FeatureSet.from_pandas": "label df features target tags",
    "FeatureSet.from_arrow": "label table features target tags",
    "FeatureSet.from_parquet": "label path features target tags * row_groups",
    "FeatureSet.split_random": "ratios seed * stratify_by group_by",
    "FeatureSet.split_by_condition": "conditions group_by",
    "FeatureSet.add_splits": "rows * group_by",
    "FeatureSet.filter": "conditions * name",
    "FeatureSet.take": "positions * name",
    "FeatureSet.select": "features target tags",
    "FeatureSet.reference": "features target tags stream",
    "ModelNode": "label model upstream_ref accelerator * optimizer framework outputs",
    "ConcatNode": "label upstream_refs concat_axis",
    "ModelGraph": "nodes optimizer label * seed",
    "ModelGraph.build": "force",
    "ModelGraph.replace_node": "label node",
    "ModelGraph.visualize": "format * plan",
    "ModelGraph.run": "* callbacks progress resume",
    "ModelGraph.state": "",
    "ModelGraph.load_state": "given",
    "Optimizer": "name lr * opt_kwargs schedule clip_norm clip_value settings",
    "Schedule": "name * warmup settings",
    "Loss": "loss * loss_kwargs",
    "AppliedLoss": "loss on inputs weight label",
    "SimpleSampler": "batch_size shuffle drop_last seed",
    "EpochOrders": "n orders fixed",
    "TrainPhase": "label * data losses sampler schedule epochs validation validate_every accumulate microbatching "
    "accelerator strict policy callbacks final_device compile residency",
    "EvalPhase": "label * data metrics outputs batch_size sampler losses accelerator callbacks",
    "fit": "model data * loss target features validation metrics epochs batch_size optimizer early_stopping scaler "
    "accelerator seed callbacks progress checkpoint resume",
    "prepare": "* accelerator",
    "load": "folder * models optimizer allow",
    "FittedModel.predict": "data * outputs",
    "ModelGraph.save": "folder * extra",
    "ModelGraph.load": "folder * models feature_sets optimizer allow",
    "Experiment": "label graph phases * callbacks progress",
    "Experiment.run_phase": "phase * resume",
    "Experiment.run": "* resume",
    "Experiment.save": "folder",
    "Experiment.load": "folder * models feature_sets optimizer phases callbacks allow progress",
    "TrainResults.save": "folder",
    "EvalResults.load": "folder * allow",
    "compare": "* figures",
    "TrainResults.plot": "* ax",
    "EvalResults.plot": "name ax * targets undo",
    "Metric": "measure on targets label * from_logits ignore_index mask class_axis",
    "SequentialCNN": "output_shape channels kernel_size pool activation dropout dtype",
    "SequentialMLP": "output_shape n_layers hidden_dim activation dropout dtype",
    "devices": "kind",
    "devices_or_cpu": "kind",
    "best_device": "i",
    "place": "obj where",
    "move": "obj where * framework",
    "scope": "where framework",
    "device_of": "obj",
    "simulate": "count * capacity float64",
}
METHODS = {
    "FeatureSetView": "filter take select intersection difference split_random split_by_condition to_arrow to_pandas",
    "Accelerator": "cpu gpu cuda mps is_available check device_string scope move place get_config from_config",
    "Device": "parse",
    "Backend": "devices device_of place move scope device_string native_device owns synchronize device_info "
    "unavailable_reason",
    "ModelGraph": "build add_node replace_node remove_node freeze unfreeze summary visualize get_config from_config",
    "TrainPhase": "from_split get_config from_config",
    "EvalPhase": "from_split",
    "Experiment": "run run_phase plan plot compare last_run get_config from_config save load",
    "TrainResults": "loss losses figure figures plot to_arrow to_pandas to_dict",
    "EvalResults": "prediction plot to_arrow to_pandas to_dict",
}


def found(path: str) -> object:
    value: object = anyaccel
    for name in path.split("."):
        value = getattr(value, name)
    return value


def public() -> Iterator[tuple[str, object]]:
    """Every public name, and every public member of the public classes that core itself wrote."""
    for name in anyaccel.__all__:
        value = getattr(anyaccel, name)
        yield name, value
        members = vars(value).items() if inspect.isclass(value) or inspect.ismodule(value) else ()
        for member, what in members:
            if not member.startswith("_") and (
                callable(what) or isinstance(what, (property, classmethod, staticmethod))
            ):
                yield f"{name}.{member}", what


def test_the_public_face_is_as_it_is_written():
    """What changes here shows in the diff of a change, and is meant."""
    changes = public_face.changes("anyaccel")
    assert not changes, f"{changes}\n{public_face.HOW_TO_WRITE}"


@pytest.mark.parametrize("path", SIGNATURES)
def test_every_public_callable_has_its_parameters(path):
    """Further parameters may come behind these, and none of these may go."""
    placed, _, named = (part.split() for part in SIGNATURES[path].partition("*"))
    parameters = [one for one in inspect.signature(found(path)).parameters.values() if one.name != "self"]
    keywords = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    assert [one.name for one in parameters if one.kind not in keywords][: len(placed)] == placed
    assert set(named) <= {one.name for one in parameters if one.kind in keywords}


@pytest.mark.parametrize("name", METHODS)
def test_every_public_class_has_its_methods(name):
    missing = [method for method in METHODS[name].split() if not hasattr(getattr(anyaccel, name), method)]
    assert not missing


@pytest.mark.parametrize("name", anyaccel.__all__)
def test_every_public_name_can_be_imported_and_is_listed(name):
    namespace: dict[str, object] = {}
    exec(f"from anyaccel import {name} as it", namespace)  # noqa: S102  # the import statement is what is tested
    assert namespace["it"] is getattr(anyaccel, name)
    assert name in dir(anyaccel)


def test_dir_lists_the_public_names_only():
    offered = {entry.name for entry in distributions.entry_points(distributions.NAMES)}
    assert dir(anyaccel) == sorted({*anyaccel.__all__, *offered})
    assert len(set(anyaccel.__all__)) == len(anyaccel.__all__)
    assert not [name for name in anyaccel.__all__ if name.startswith("_")]


def test_a_star_import_gives_the_public_names():
    namespace: dict[str, object] = {}
    exec("from anyaccel import *", namespace)  # noqa: S102  # as above
    assert set(anyaccel.__all__) <= set(namespace)


@pytest.mark.parametrize("name", ["Acelerator", "torch", "pickle", "registry_", "__wrapped__"])
def test_an_unknown_name_is_the_usual_attribute_error(name):
    with pytest.raises(AttributeError, match=rf"module 'anyaccel' has no attribute '{name}'"):
        getattr(anyaccel, name)
    assert not hasattr(anyaccel, name)


def test_an_import_of_an_unknown_name_is_the_usual_import_error():
    with pytest.raises(ImportError, match=r"cannot import name 'Acelerator' from 'anyaccel'"):
        from anyaccel import Acelerator  # noqa: F401


def test_everything_public_has_a_docstring_that_is_a_sentence():
    lacking = []
    for path, value in public():
        text = inspect.getdoc(getattr(value, "__func__", value)) or ""
        first = text.partition("\n\n")[0].strip()
        if not first or first[-1] not in ".:;`" or "NamedTuple" in first:
            lacking.append(f"{path}: {first!r}")
    assert not lacking, "\n".join(lacking)


def test_errors_are_all_of_one_base_class_and_documented():
    kinds = [kind for kind in vars(anyaccel.errors).values() if inspect.isclass(kind)]
    assert len(kinds) > 15
    for kind in kinds:
        assert kind.__doc__
        assert issubclass(kind, (anyaccel.errors.AnyaccelError, UserWarning))


def test_public_objects_are_the_same_as_those_in_their_modules():
    from anyaccel.data import FeatureSet
    from anyaccel.graph import ModelGraph
    from anyaccel.placement import move

    assert (anyaccel.FeatureSet, anyaccel.ModelGraph, anyaccel.move) == (FeatureSet, ModelGraph, move)


def test_a_type_checker_sees_every_name_that_is_there_at_run_time():
    """The names under TYPE_CHECKING and those that are loaded on first use are the same, those of features too."""
    source = inspect.getsource(anyaccel)
    typed = {line.rpartition(" as ")[2] for line in source.splitlines() if line.startswith("    from anyaccel")}
    assert typed == {*anyaccel.__all__, *" ".join(distributions.OFFERED[distributions.NAMES].values()).split()}


def test_the_first_use_of_a_name_loads_it_and_not_before():
    code = (
        "import sys, anyaccel; before = set(sys.modules); anyaccel.Device; "
        "print(sorted(m for m in set(sys.modules) - before if m.startswith('anyaccel')), 'numpy' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = ["call_hints", "device", "suggestions"]
    assert child.stdout.strip() == f"{[f'anyaccel.{name}' for name in modules]} False"
