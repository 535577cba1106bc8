"""Wrong backends with names and files of weights: names of other values, files that lose, break or run something."""

from __future__ import annotations

import pickle
import zipfile

import numpy as np

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.errors import StateError

from .faults import fault, having


class Archive(WeightFiles):
    """A right one, whose files are NumPy's archives."""

    weight_suffixes = (".npz",)

    def weight_names(self, model):
        return {name.replace("/", "."): name for name in self.backend.state(model)}

    def read_weights(self, path):
        try:
            with path.open("rb") as stream:
                return self.arrays_in(stream)
        except Exception as error:
            raise StateError(f"{str(path)!r} cannot be read", hint="copy it again") from error

    def arrays_in(self, stream):
        given = np.load(stream, allow_pickle=False)
        return {name: given[name] for name in given.files}

    def write_weights(self, path, arrays):
        with path.open("wb") as stream:  # np.savez gives a path another ending
            np.savez(stream, **arrays)


ArchiveBackend = having(Archive)


@fault("compute", "test_every_value_of_a_model_has_a_weight_name[buffered_model]")
class NamesParametersAlone(Archive):
    def weight_names(self, model):
        return {name: key for name, key in super().weight_names(model).items() if key.startswith("parameters")}


@fault("compute", "test_every_value_of_a_model_has_a_weight_name[tied_model]")
class NamesWhatIsNotThere(Archive):
    def weight_names(self, model):
        return {**super().weight_names(model), "head.weight": "parameters/head.weight"}


@fault("compute", "test_a_model_comes_back_from_a_file_of_its_weights")
class NamesOtherValues(Archive):
    """Two of the same shape change places when they are read."""

    def read_weights(self, path):
        arrays = super().read_weights(path)
        return dict(zip(arrays, [array[::-1] for array in arrays.values()], strict=True))


@fault("compute", "test_weight_suffixes_are_endings_of_names_of_files")
class SuffixWithoutDot(Archive):
    weight_suffixes = ("npz",)


@fault("compute", "test_weight_suffixes_are_endings_of_names_of_files")
class TakesSafetensors(Archive):
    weight_suffixes = (".npz", ".safetensors")


@fault("compute", "test_arrays_come_back_from_a_file")
class WritesFloat32(Archive):
    def write_weights(self, path, arrays):
        super().write_weights(path, {name: array.astype(np.float32) for name, array in arrays.items()})


@fault("compute", "test_arrays_come_back_from_a_file")
class AddsAnEnding(Archive):
    def write_weights(self, path, arrays):
        np.savez(path, **arrays)

    def read_weights(self, path):
        return super().read_weights(path if path.exists() else path.with_name(f"{path.name}.npz"))


@fault("compute", "test_arrays_come_back_from_a_file")
class ScalarsGetAnAxis(Archive):
    def read_weights(self, path):
        return {name: np.atleast_1d(array) for name, array in super().read_weights(path).items()}


@fault("compute", "test_a_damaged_file_is_a_state_error[cut]")
class ErrorsOfTheLibrary(Archive):
    def read_weights(self, path):
        with path.open("rb") as stream:
            return self.arrays_in(stream)


@fault("compute", "test_a_damaged_file_is_a_state_error[empty]")
class NothingIsNoWeights(Archive):
    def read_weights(self, path):
        return super().read_weights(path) if path.stat().st_size else {}


@fault("compute", "test_a_damaged_file_is_a_state_error[text]")
class DoesNotSayWhichFile(Archive):
    def read_weights(self, path):
        try:
            return super().read_weights(path)
        except StateError as error:
            raise StateError("a file cannot be read", hint=error.hint) from error


@fault("compute", "test_no_code_of_a_file_is_run")
class UnpicklesWhatIsNoArchive(Archive):
    def arrays_in(self, stream):
        if zipfile.is_zipfile(stream):
            stream.seek(0)
            return super().arrays_in(stream)
        stream.seek(0)
        return pickle.load(stream)
