"""What the environment says about the processes of one run; where they meet is in anyaccel-distributed."""

from __future__ import annotations

import pytest

from anyaccel.errors import ConfigError
from anyaccel.launched import Launched, is_main_process, launched

WHOLE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {**WHOLE, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}
# As srun of Slurm 23 sets them for the sixth of eight tasks on two nodes.
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_JOB_NODELIST": "login,gpu[07-09]",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
}
# As mpirun of Open MPI 5 sets them on one machine.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-12556@1",
}
# As mpiexec of MPICH 5 sets them on one machine.
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_a_process_of_a_launcher_knows_its_rank() -> None:
    assert launched(WHOLE) == Launched(rank=1, size=3)
    assert launched(TORCHRUN) == Launched(1, 3, 1, local_size=3)


@pytest.mark.parametrize(
    ("given", "shown", "missing"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2", "RANK"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": "0"}, "WORLD_SIZE=2 and LOCAL_RANK=0", "RANK"),
        ({"RANK": "0"}, "RANK=0", "WORLD_SIZE"),
        ({"RANK": "1", "LOCAL_RANK": "1"}, "RANK=1 and LOCAL_RANK=1", "WORLD_SIZE"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1", "RANK and WORLD_SIZE"),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, "LOCAL_RANK=0", "RANK"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK"),
        ({"PMI_RANK": "0", "PMI_LOCAL_RANK": "0"}, "PMI_RANK=0 and PMI_LOCAL_RANK=0", "PMI_SIZE"),
        ({"MV2_COMM_WORLD_LOCAL_RANK": "1"}, "MV2_COMM_WORLD_LOCAL_RANK=1", "PMI_RANK and PMI_SIZE"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, "SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_a_part_of_what_a_launcher_says_is_refused(given: dict[str, str], shown: str, missing: str) -> None:
    """Each of the processes would train a whole model, and write over what the others write."""
    with pytest.raises(ConfigError, match=rf"the environment has {shown}, but not {missing}, so the rank") as caught:
        launched(given)
    unset = str(caught.value.hint).rpartition("; or unset ")[2].split(" and ")
    assert unset == [part.partition("=")[0] for part in shown.split(" and ")]
    assert launched({name: value for name, value in given.items() if name not in unset}) is None


@pytest.mark.parametrize(
    "given",
    [
        {"WORLD_SIZE": "1"},
        {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"},  # a container of SageMaker that starts one process
        {"WORLD_SIZE": "", "RANK": "", "LOCAL_RANK": ""},
        {"LOCAL_WORLD_SIZE": "8", "NODE_RANK": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"},  # the shell of salloc, on the login node
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # a batch script
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # its own step
    ],
    ids=lambda given: " ".join(given),
)
def test_what_says_nothing_of_several_processes_is_a_process_of_its_own(given: dict[str, str]) -> None:
    assert launched(given) is None


@pytest.mark.parametrize("given", [{"WORLD_SIZE": "8"}, {"RANK": "5"}, {"LOCAL_RANK": "1"}], ids=str)
def test_a_part_that_agrees_with_the_launcher_is_taken(given: dict[str, str]) -> None:
    """Job scripts export WORLD_SIZE, and each task has its rank from srun."""
    assert launched({**SLURM, **given}) == launched(SLURM)


@pytest.mark.parametrize(
    ("given", "message", "unset"),
    [
        ({**SLURM, "WORLD_SIZE": "2"}, "WORLD_SIZE=2, SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=8", "WORLD_SIZE"),
        ({**SLURM, "WORLD_SIZE": "1"}, "WORLD_SIZE=1, SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=8", "WORLD_SIZE"),
        ({**SLURM, "PMI_RANK": "4"}, "PMI_RANK=4, SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=8", "PMI_RANK"),
        ({**OPEN_MPI, "RANK": "0"}, "RANK=0, OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2", "RANK"),
        ({**WHOLE, "PMI_SIZE": "4"}, "PMI_SIZE=4, RANK=1, WORLD_SIZE=3", "PMI_SIZE"),
    ],
)
def test_a_part_that_contradicts_the_launcher_is_refused(given: dict[str, str], message: str, unset: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"launchers of this process contradict each other: {message}\. .*unset {unset} "
    ):
        launched(given)


def test_parts_of_an_outer_launcher_do_not_count() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert launched({**TORCHRUN, **batch, "PMI_RANK": "7"}) == launched(TORCHRUN)
    for inner in (WHOLE, OPEN_MPI, MPICH):
        place = launched({**inner, **batch})
        assert place is not None and place.rank == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"LOCAL_RANK": "3"}, r"rank 3 on this machine, of 3: WORLD_SIZE=3, LOCAL_RANK=3, LOCAL_WORLD_SIZE=3"),
        ({"LOCAL_WORLD_SIZE": "4"}, r"4 processes on this machine, of 3 in all: WORLD_SIZE=3"),
        ({"LOCAL_WORLD_SIZE": "", "LOCAL_RANK": "3"}, r"rank 3 on this machine, of 3: WORLD_SIZE=3, LOCAL_RANK=3"),
        ({"LOCAL_WORLD_SIZE": "1"}, r"rank 1 on this machine, of 1: .*Available: ranks 0 to 0\. Hint: start all"),
    ],
)
def test_places_on_a_machine_that_cannot_be_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"the variables of torchrun contradict each other, {problem}"):
        launched({**TORCHRUN, **given})


def test_a_single_process_is_on_its_own() -> None:
    assert launched({**WHOLE, "RANK": "0", "WORLD_SIZE": "1"}) is None
    assert launched({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None


def test_the_environment_of_this_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched(1, 3, 1, local_size=3)
    assert not is_main_process()
    monkeypatch.setenv("RANK", "0")
    assert is_main_process()


def test_a_rank_beyond_the_replicas_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"RANK=3 and WORLD_SIZE=3\. Available: ranks 0 to 2\. Hint: start all"):
        launched({**WHOLE, "RANK": "3"})


@pytest.mark.parametrize(
    ("name", "text"),
    [("RANK", "one"), ("RANK", "-1"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "2.5"), ("LOCAL_RANK", "a")],
)
@pytest.mark.parametrize("others", [WHOLE, {}], ids=["whole", "alone"])
def test_what_is_no_number_is_refused(name: str, text: str, others: dict[str, str]) -> None:
    message = rf"the environment has {name}='{text}', which is not a number of processes\. Hint: .*; or unset {name}"
    with pytest.raises(ConfigError, match=message):
        launched({**others, name: text})


@pytest.mark.parametrize(("text", "size"), [("4(x2)", 4), ("8", 8), ("4,2", None), ("2(x3),1", None), ("", None)])
def test_slurm_says_how_many_tasks_a_node_has_where_all_have_as_many(text: str, size: int | None) -> None:
    place = launched({**SLURM, "SLURM_STEP_TASKS_PER_NODE": text})
    assert place is not None and place.local_size == size


def test_a_batch_script_of_slurm_is_one_process() -> None:
    """It has SLURM_PROCID and SLURM_NTASKS, but is no step that srun made."""
    of_batch = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert launched({name: value for name, value in {**SLURM, **of_batch}.items() if "STEP" not in name}) is None


def test_torchrun_under_srun_counts() -> None:
    given = {**TORCHRUN, **SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    assert launched(given) == launched(TORCHRUN)


def test_variables_of_a_script_that_agree_with_the_launcher_are_taken() -> None:
    place = launched({**SLURM, "RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "gpu08", "MASTER_PORT": "29500"})
    assert place is not None and (place.rank, place.size) == (5, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {**WHOLE, **SLURM},
            "RANK=1, WORLD_SIZE=3, SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=8.*torchrun, Slurm.*unset RANK",
        ),
        ({**WHOLE, **OPEN_MPI}, "RANK=1, WORLD_SIZE=3, OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2"),
        (
            {**OPEN_MPI, **MPICH, "PMI_RANK": "0"},
            "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2, PMI_RANK=0, PMI_SIZE=2",
        ),
    ],
)
def test_launchers_that_contradict_each_other_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"the launchers of this process contradict each other: {message}"):
        launched(given)
