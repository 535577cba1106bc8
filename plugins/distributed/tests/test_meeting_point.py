"""Where the processes of a launcher meet."""

from __future__ import annotations

import pytest

from anyaccel.errors import ConfigError
from anyaccel_distributed import Launched, launched
from anyaccel_distributed.meeting_point import first_host, host_names

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


def test_a_process_of_a_launcher_knows_where_all_meet() -> None:
    assert launched(WHOLE) == Launched(rank=1, size=3, address="127.0.0.1", port=29500)
    assert launched(TORCHRUN) == Launched(1, 3, 1, "127.0.0.1", 29500, local_size=3)
    assert launched({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_processes_that_do_not_know_where_they_meet_are_refused(missing: str) -> None:
    given = {name: value for name, value in WHOLE.items() if name != missing}
    match = rf"has RANK=1 and WORLD_SIZE=3, but not {missing}, which say where .* set MASTER_ADDR"
    with pytest.raises(ConfigError, match=match):
        launched(given)
    assert launched({**given, "WORLD_SIZE": "1", "RANK": "0"}) is None


@pytest.mark.parametrize("text", ["http", "-1", "0", "65536"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"MASTER_PORT='{text}', which is not a port\. Available: 1 to 65535\. Hint: set"
    ):
        launched({**WHOLE, "MASTER_PORT": text})


def test_a_step_of_slurm_meets_at_its_first_node_and_a_port_of_its_own() -> None:
    place = launched(SLURM)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.address) == (5, 8, 1, "gpu08")
    assert 15_000 <= place.port < 30_000
    others = [launched({**SLURM, name: "1"}) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    assert len({place.port, *(other.port for other in others if other is not None)}) == 3
    alike = launched({**SLURM, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert alike is not None and (alike.address, alike.port) == (place.address, place.port)


def test_what_a_job_script_sets_for_the_meeting_point_counts() -> None:
    place = launched({**SLURM, "MASTER_ADDR": "gpu08-ib", "MASTER_PORT": "12345"})
    assert place == Launched(5, 8, 1, "gpu08-ib", 12345)


def test_processes_of_mpirun_on_one_machine_need_no_address() -> None:
    place = launched(OPEN_MPI)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.address) == (1, 2, 1, "127.0.0.1")
    assert 15_000 <= place.port < 30_000
    assert launched(MPICH) == Launched(1, 2, 1, "127.0.0.1", 29500, local_size=2)


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH])
def test_mpirun_on_several_machines_needs_an_address(variables: dict[str, str]) -> None:
    local = next(name for name in variables if "LOCAL_SIZE" in name or "LOCALNRANKS" in name)
    several = {**variables, local: "1", local.replace("NRANKS", "RANKID").replace("SIZE", "RANK"): "0"}
    with pytest.raises(ConfigError, match=r"_RANK=1 and .*_SIZE=2, but not MASTER_ADDR.*mpirun -x MASTER_ADDR=HOST"):
        launched(several)
    place = launched({**several, "MASTER_ADDR": "node0"})
    assert place is not None and place.address == "node0"


def test_mpirun_in_an_allocation_of_slurm_counts_and_meets_at_its_first_node() -> None:
    """Open MPI starts a daemon on each node with srun: its variables are those of the daemons."""
    alone = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    given = {**SLURM, **OPEN_MPI, **alone, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    place = launched(given)
    assert place is not None and (place.rank, place.size, place.address) == (1, 2, "login")


def test_variables_that_are_exported_are_those_of_frameworks() -> None:
    place, environment = launched(SLURM), dict(SLURM)
    assert place is not None
    place.export(environment)
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["LOCAL_RANK"]) == ("5", "8", "1")
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("gpu08", str(place.port))
    assert launched(environment) == place
    given = dict(TORCHRUN)
    place.export(given)
    assert given == TORCHRUN


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        ("gpu[08-10,3],login", ["gpu08", "gpu09", "gpu10", "gpu3", "login"]),
        ("rack[1-2]n[1-2]-ib", ["rack1n1-ib", "rack1n2-ib", "rack2n1-ib", "rack2n2-ib"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_a_host_list_is_expanded(hosts: str, names: list[str]) -> None:
    assert list(host_names(hosts)) == names
    assert first_host(hosts) == names[0]
