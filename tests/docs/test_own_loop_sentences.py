"""The 27 sentences of own loops, and the tests that hold each, by framework; the tests that are named here exist.

A sentence is what goes wrong in loops of several processes, and the right behaviour. Tests compare with a loop that is
written by hand in one process, with the framework's own engine: losses and weights within 1e-6, metrics to the last
digit.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "loop": "test_own_loop.py",
    "apart": "test_own_loop_apart.py",
    "exchanges": "test_own_loop_exchanges.py",
    "accelerate": "test_own_loop_accelerate.py",
    "resume": "test_own_loop_resume.py",
    "disturbed": "test_own_loop_disturbed.py",
}
BY_HAND = {
    "torch": "test_the_numbers_are_those_of_a_loop_by_hand",
    "jax": "test_losses_weights_and_outputs_of_processes_are_those_of_a_loop_by_hand",
    "tensorflow": "test_several_processes_train_as_one_by_hand",
}
"""In two and three processes; the cases of `ONE`, in one."""
ONE = {
    "torch": "test_the_numbers_are_those_of_a_loop_by_hand",
    "jax": "test_one_process_has_the_numbers_of_a_loop_by_hand",
    "tensorflow": "test_one_process_trains_as_by_hand",
}
NO = "does not apply: "


def cases(*names: str) -> tuple[str, ...]:
    """The comparison with a loop by hand, of these cases of the script."""
    return tuple(f"BY_HAND[{name}]" for name in names)


ENDS, IN_ALL = "apart::test_all_end_soon[{}]", "apart::test_all_processes_have_an_error_and_go_on[{}]"
OF_TORCH = "apart::test_all_end_soon_with_an_error_that_says_why[{}]"

SENTENCES: dict[str, dict[str, tuple[str, ...] | str]] = {
    "1 the mean over the rows of the global batch": {
        "torch": cases("ragged"),
        "jax": cases("ragged", "padded"),
        "tensorflow": cases("updates", "single_precision"),
    },
    "2 a share of no rows": {
        "torch": cases("one_row"),
        "jax": cases("one_row"),
        "tensorflow": cases("one_row"),
    },
    "3 no row is trained twice": {
        "torch": (*cases("ragged"), "accelerate::CHECKS[batches_are_divided_and_no_row_is_repeated]"),
        "jax": cases("ragged", "padded"),
        "tensorflow": cases("updates"),
    },
    "4 a short last window": {
        "torch": cases("window"),
        "jax": cases("accumulated"),
        "tensorflow": cases("accumulated"),
    },
    "5 means over tokens": {
        "torch": cases("tokens", "tokenless"),
        "jax": (*cases("tokens", "micro_batches"), "loop::test_a_mean_over_no_token_is_zero"),
        "tensorflow": (*cases("token_means"), "loop::test_a_mean_over_no_token_is_zero"),
    },
    "6 one exchange an update": {
        "torch": ("loop::test_gradients_are_exchanged_once_an_update",),
        # XLA's compiler for CPUs leaves exchanges in the loop over micro-batches, that for GPUs moves them out of it
        "jax": (
            "exchanges::test_exchanges_in_the_loop_are_only_added_to_sums",
            "exchanges::test_exchanges_are_those_of_a_loop_by_hand",
            "exchanges::test_gpus_exchange_gradients_once_an_update",
            "loop::test_a_step_exchanges_gradients_once_if_it_computes_the_batches_of_an_update_at_once",
        ),
        "tensorflow": ("loop::test_gradients_are_exchanged_once_an_update",),
    },
    "7 leaving a loop, and evaluation, within a window": {
        "torch": (*cases("interrupted_window"), "accelerate::CHECKS[another_loader_within_an_epoch_does_not_end_it]"),
        "jax": cases("interrupted"),
        "tensorflow": cases("averaged", "updates"),
    },
    "8 clipped once, by the true norm": {
        "torch": cases("ragged", "divided", "clipped"),
        "jax": cases("ragged", "divided"),
        "tensorflow": cases("updates"),
    },
    "9 skipped steps": {
        "torch": ("loop::test_a_step_is_skipped_in_all",),
        "jax": (*cases("adversaries"), "loop::test_an_update_that_is_not_finite_is_skipped_in_all_processes"),
        "tensorflow": cases("scaled"),
    },
    "10 schedules count updates": {
        "torch": (*cases("ragged", "window"), "accelerate::CHECKS[schedules_end_after_the_same_number_of_updates]"),
        "jax": cases("ragged", "accumulated"),
        "tensorflow": cases("updates", "accumulated"),
    },
    "11 each row once in evaluation": {
        "torch": (
            "loop::test_each_row_is_gathered_once_and_in_order",
            "accelerate::CHECKS[each_row_is_evaluated_once]",
        ),
        "jax": ("loop::test_values_of_processes", *cases("ragged")),
        "tensorflow": (
            "loop::test_rows_of_an_evaluation_come_once_and_in_order",
            "loop::test_rows_of_an_evaluation_come_in_order_in_one_process",
        ),
    },
    "12 nothing is reduced with repeats": {
        "torch": ("loop::test_an_evaluation_that_adds_up_itself_counts_each_row_once", OF_TORCH.format("by hand")),
        "jax": (*cases("padded"), "loop::test_padding_that_nothing_leaves_out"),
        "tensorflow": ("loop::test_what_several_processes_refuse",),
    },
    "13 containers keep their type": {
        "torch": ("loop::test_each_row_is_gathered_once_and_in_order",),
        "jax": ("loop::test_values_of_processes",),
        "tensorflow": ("loop::test_rows_of_an_evaluation_come_once_and_in_order",),
    },
    "14 batch normalization": {
        "torch": (*cases("normalized"), OF_TORCH.format("norm")),
        "jax": (
            "loop::test_precision_modules_and_keys_of_processes_are_those_of_one[modules]",
            "loop::test_modules_in_place_have_the_numbers_of_flax_by_hand",
        ),
        "tensorflow": ("loop::test_moving_averages_are_alike_and_dropout_is_not",),
    },
    "15 a model called twice": {
        "torch": cases("twice"),
        "jax": cases("twice"),
        "tensorflow": cases("averaged", "adversarial"),
    },
    "16 two optimizers": {
        "torch": cases("adversaries"),
        "jax": cases("adversaries", "several_counts"),
        "tensorflow": cases("adversarial", "several_counts"),
    },
    "17 averages of weights": {
        "torch": (
            "loop::test_a_step_is_skipped_in_all",
            "loop::test_each_number_of_processes_goes_on_from_what_another_has_saved",
        ),
        "jax": cases("adversaries"),
        "tensorflow": cases("averaged"),
    },
    "18 names in checkpoints": {
        "torch": ("loop::test_each_number_of_processes_goes_on_from_what_another_has_saved",),
        "jax": ("loop::test_processes_go_on_within_an_epoch_to_the_losses_of_an_undisturbed_run",),
        "tensorflow": ("loop::test_killed_processes_go_on_and_so_does_another_number",),
    },
    "19 the order of an epoch": {
        "torch": (
            "loop::test_an_epoch_that_is_set_has_its_order_whatever_came_before",
            "accelerate::CHECKS[one_seed_is_one_order_in_all_processes]",
        ),
        "jax": cases("ragged"),
        "tensorflow": (*cases("updates"), "loop::test_refused"),
    },
    "20 going on within an epoch": {
        "torch": (
            "resume::test_losses_dropout_and_rows_are_those_of_the_undisturbed_run",
            "resume::test_processes_of_which_one_is_killed_go_on_with_their_workers",
            "disturbed::test_every_run_goes_on_to_the_losses_of_an_undisturbed_one",
        ),
        "jax": ("loop::test_processes_go_on_within_an_epoch_to_the_losses_of_an_undisturbed_run",),
        "tensorflow": (
            "loop::test_a_loop_goes_on_within_an_epoch_and_again",
            "loop::test_killed_processes_go_on_and_so_does_another_number",
        ),
    },
    "21 seeds of workers": {
        "torch": (
            "loop::test_workers_draw_other_numbers_in_each_epoch_and_process_and_the_same_with_a_seed",
            "resume::test_processes_of_which_one_is_killed_go_on_with_their_workers",
        ),
        "jax": NO + "loaders of JAX are any iterables; workers are those of a DataLoader of torch",
        "tensorflow": NO + "a tf.data.Dataset has threads, which draw by the seeds of its operations",
    },
    "22 checkpoints are written by one, and asked for by all": {
        "torch": (OF_TORCH.format("alone"), "resume::test_wrong_checkpoints_are_errors_that_say_what_is_there"),
        "jax": (ENDS.format("alone"), IN_ALL.format("foreign")),
        "tensorflow": (ENDS.format("alone"), IN_ALL.format("foreign")),
    },
    "23 an error in one process ends all": {
        "torch": tuple(OF_TORCH.format(case) for case in ("raises", "killed", "hangs")),
        "jax": tuple(ENDS.format(case) for case in ("raises", "killed", "hangs")),
        "tensorflow": tuple(ENDS.format(case) for case in ("raises", "killed", "hangs")),
    },
    "24 all stop together": {
        "torch": ("loop::test_all_agree", *(OF_TORCH.format(case) for case in ("length", "stream", "calls"))),
        "jax": (
            "loop::test_values_of_processes",
            ENDS.format("leaves"),
            *(IN_ALL.format(case) for case in ("stream", "calls")),
        ),
        "tensorflow": ("loop::test_values_of_all_processes", *(IN_ALL.format(case) for case in ("stream", "calls"))),
    },
    "25 other methods of a model": {
        "torch": cases("twice"),
        "jax": NO + "states and models are not wrapped; a loss calls any function of them",
        "tensorflow": NO + "models are not wrapped; a tape records any method",
    },
    "26 processes begin alike": {
        "torch": tuple(
            OF_TORCH.format(case) for case in ("weights", "length", "split by hand", "own order", "other batches")
        ),
        "jax": (
            "loop::test_processes_refuse_what_would_give_other_numbers",
            *(IN_ALL.format(case) for case in ("content", "fewer", "dtype", "structure")),
        ),
        "tensorflow": (
            "loop::test_what_several_processes_refuse",
            *(IN_ALL.format(case) for case in ("content", "fewer", "dtype", "structure")),
        ),
    },
    "27 the loss that is told": {
        "torch": cases("ragged", "tokens", "window"),
        "jax": cases("ragged", "tokens", "accumulated"),
        "tensorflow": cases("updates", "token_means"),
    },
}


@cache
def source(framework: str, name: str) -> str:
    return (ROOT / "plugins" / framework / "tests" / name).read_text("utf-8")


@cache
def functions(framework: str, name: str) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(source(framework, name))) if hasattr(node, "name"))


def missing(framework: str, reference: str) -> str:
    """What a reference names that does not exist."""
    if reference.startswith("BY_HAND"):
        reference = f"loop::{BY_HAND[framework]}{reference.removeprefix('BY_HAND')}"
    elif "CHECKS" in reference:
        reference = reference.replace("CHECKS", "test_in_two_processes")
    file, name, case = re.fullmatch(r"(\w+)::(\w+)(?:\[(.+)\])?", reference).groups()  # type: ignore[union-attr]
    if name not in functions(framework, FILES[file]):
        return reference
    scripts = [FILES[file], "own_loop_script.py", "own_loop_accelerate_script.py"]
    folder = ROOT / "plugins" / framework / "tests"
    known = "".join(source(framework, script) for script in scripts if (folder / script).exists())
    return "" if case is None or f'"{case}"' in known or f"def {case}(" in known else reference


def test_there_are_27() -> None:
    assert [int(sentence.split()[0]) for sentence in SENTENCES] == list(range(1, 28))
    assert all(set(tests) == set(BY_HAND) for tests in SENTENCES.values())
    for framework in BY_HAND:
        assert {BY_HAND[framework], ONE[framework]} <= functions(framework, FILES["loop"])


def test_a_test_that_does_not_exist_is_missing() -> None:
    for reference in ("loop::test_nothing", "BY_HAND[nowhere]", "accelerate::CHECKS[nowhere]"):
        assert missing("torch", reference)


@pytest.mark.parametrize("framework", BY_HAND)
@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_tests_of_a_sentence_exist(sentence: str, framework: str) -> None:
    tests = SENTENCES[sentence][framework]
    if isinstance(tests, str):
        assert tests.startswith(NO) and len(tests) > len(NO) + 20
        return
    assert tests and [missing(framework, test) for test in tests] == [""] * len(tests)
