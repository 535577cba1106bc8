"""suite and model_suite: the kit's test classes for one Subject."""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import chain

from anyaccel_devtools.testing.backend_tests import BackendTests
from anyaccel_devtools.testing.compute_tests import ComputeTests
from anyaccel_devtools.testing.exchange_tests import ExchangeTests
from anyaccel_devtools.testing.memory_tests import MemoryTests
from anyaccel_devtools.testing.model_tests import ModelTraitTests, ShapeTests, StateTests
from anyaccel_devtools.testing.multi_step_tests import MultiStepTests
from anyaccel_devtools.testing.subject import Subject

CLASSES: tuple[type[Subject], ...] = (BackendTests, ExchangeTests, ComputeTests, MultiStepTests, MemoryTests)


# What a model decides by how it is called, what it keeps and draws, and how its parameters are named and shared. The
# other tests of programs give the same results for every kind of model: optimizers, losses, clipping, missing inputs.
MODEL_TESTS: dict[type[Subject], tuple[type[Subject] | str, ...]] = {
    ComputeTests: (
        *(ShapeTests, StateTests, ModelTraitTests),
        *("test_forward_is_deterministic", "test_forward_is_per_sample", "test_outputs_and_losses_stay_on_the_device"),
        *("test_evaluation_changes_nothing", "test_evaluation_is_not_random", "test_equal_rows_have_equal_outputs"),
        *("test_evaluation_equals_that_without_dropout", "test_evaluation_does_not_depend_on_the_users_mode"),
        *("test_the_users_random_state_is_kept", "test_a_trained_program_evaluates_like_a_new_one"),
        *("test_training_randomness_follows_the_seed", "test_random_streams_go_on_within_an_epoch"),
        "test_gradients_are_those_of_the_losses",
        *("test_backward_uses_the_random_numbers_of_forward", "test_cotangents_are_pulled_back_to_the_inputs"),
        *("test_two_half_batches_are_one_batch", "test_operations_on_two_devices_of_one_segment"),
        *("test_inputs_are_never_written_to", "test_map_gradients_replaces_every_gradient"),
        *("test_map_gradients_follows_the_order_of_the_parameters", "test_restore_undoes_everything_a_step_changes"),
        *("test_close_writes_the_result_to_the_users_model", "test_close_writes_buffers_too"),
        *("test_sync_models_writes_current_values_and_training_continues", "test_a_chain_equals_its_parts_in_sequence"),
        *("test_training_continues_from_returned_states", "test_training_continues_on_another_device"),
        *("test_a_frozen_operation_is_not_changed", "test_a_frozen_operation_is_in_evaluation_mode"),
        *("test_a_shared_model_gets_the_sum_of_its_gradients", "test_an_in_place_model_does_not_affect_others"),
        *("test_models_that_share_a_parameter_are_refused_or_train_as_one", "test_a_tied_parameter_is_one_parameter"),
        *("test_a_tied_parameter_decays_once", "test_a_tied_parameter_has_one_value"),
        "test_a_model_without_parameters_is_placed_and_trained_through",
        "test_buffers_of_skipped_operations_do_not_change",
        "test_a_shared_model_learns_from_the_inputs_that_are_given",
    ),
    MultiStepTests: (
        "test_buffers_are_carried_from_micro_batch_to_micro_batch",
        "test_buffers_change_as_in_single_steps",
        "test_clipped_steps_count_shared_parameters_once",
        "test_each_micro_batch_draws_its_own_random_numbers",
        "test_one_call_equals_two_calls_of_half",
        "test_steps_follow_the_seed",
    ),
}


def suite(subject: type[Subject], name: str = "") -> dict[str, type]:
    """Return the kit's test classes for a Subject, by name, to put into a test module:
    `globals().update(suite(MySubject))`.

    A test file written like this also gets the classes that later versions of the kit add.

    Args:
        subject: A class derived from Subject.
        name: Prefix of the class names, so that one file can test several subjects: `Sim` gives `TestSimBackend`.
    """
    return dict(_test_class(subject, tests, name) for tests in CLASSES)


def model_suite(subject: type[Subject], name: str) -> dict[str, type]:
    """Return the part of `suite` that another kind of model can fail, if the whole already runs over one kind.

    It is for a framework whose users write models in several ways, such as the modules of three libraries: one Subject
    for each, which differ in `model` and similar fixtures.

    Args:
        subject: A class derived from Subject.
        name: Prefix of the class names; see `suite`.
    """
    return dict(
        _test_class(subject, tests, name, set(_names_of(tests)) - set(chain.from_iterable(map(_names_of, chosen))))
        for tests, chosen in MODEL_TESTS.items()
    )


def _names_of(tests: type[Subject] | str) -> list[str]:
    return [tests] if isinstance(tests, str) else [name for name in dir(tests) if name.startswith("test_")]


def _test_class(
    subject: type[Subject], tests: type[Subject], name: str, without: Collection[str] = ()
) -> tuple[str, type]:
    title = f"Test{name}{tests.__name__.removesuffix('Tests')}"
    module = sys.modules[subject.__module__].__name__
    body = {"__module__": module, "__doc__": tests.__doc__, "__qualname__": title}
    return title, type(title, (subject, tests), {**dict.fromkeys(without), **body})
