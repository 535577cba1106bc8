"""Hints of requests for devices, and of what starts replicas."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel_distributed import join, launched, replica_timeout, spawn
from anyaccel_resources import RequestEntry


def parse(request: str) -> aa.DeviceRequest:
    return aa.DeviceRequest.parse(request)


def test_the_forms_of_requests(hint: Any) -> None:
    with hint("write for example {}"):
        parse("zzzzz")
    for request in ("gpu", "cuda:1", "any", "H100:8", "A100-80GB", "H100!", "B200+", "40GB+:2", "gpu[bf16]"):
        assert parse(request)


def test_a_request_is_parsed(hint: Any) -> None:
    with hint("write DeviceRequest.parse({})"):
        aa.DeviceRequest("H100:8")  # type: ignore[arg-type]
    assert aa.DeviceRequest.parse("H100:8") == parse("H100:8")


def test_parts_of_requests(hint: Any) -> None:
    with hint("write 'gpu' or 'any'"):
        parse(", gpu")
    assert parse("gpu") and parse("any")
    with hint("leave one out"):
        parse("H100!+")
    assert parse("H100!") and parse("H100+")
    with hint("write '{}+' for at least this much memory"):
        parse("40GB")
    assert parse("40GB+")
    with hint("write '40GB+'"):
        parse("0GB+")
    assert parse("40GB+")
    with hint("write gpu[bf16]"):
        parse("gpu[bf16")
    assert parse("gpu[bf16]")
    with hint("write mem=64GB or cores=8"):
        parse("gpu mem=many")
    assert parse("gpu mem=64GB") and parse("gpu cores=8")
    with hint("write {H100, A100}"):
        parse("{H100, A100")
    assert parse("{H100, A100}")


def test_requests_that_are_none(hint: Any) -> None:
    with hint("write 'any'"):
        aa.DeviceRequest.parse(3)  # type: ignore[arg-type]
    assert aa.DeviceRequest.parse("any")
    with hint("write '{}'"):
        parse('modal.gpu.A100(size="80GB", count=2)')
    assert parse("A100-80GB:2")


def test_a_request_that_nothing_fits(hint: Any, cli: Any) -> None:
    machine = aa.Inventory.parse("2x T4")
    with hint("add alternatives, such as ', any'; `anyaccel resolve` shows every candidate"):
        _ = parse("H100").resolve(machine).devices
    assert parse("H100, any").resolve(machine).devices
    shown = cli("resolve", "H100, any", "--on", "2x T4")
    assert shown.exit_code == 0 and "T4" in shown.output


def test_requests_of_vendors_and_capabilities(hint: Any) -> None:
    with hint("write '{}' for one of its GPUs, '{}:any:2' for two, '{}:40GB+' or a product"):
        parse("nvidia:2")
    assert parse("cuda") and parse("nvidia:any:2").count == 2 and parse("nvidia:40GB+") and parse("nvidia:H100")
    with hint("write 'sm>=80' for 8.0 and newer"):
        parse("sm>=many")
    assert parse("sm>=80")
    with hint("write 'GH200': it contains the H100 with 96 GB"):
        parse("H100-96GB")
    assert parse("GH200").resolve("1x GH200").devices
    with hint("write {}"):
        parse("8xH100")
    assert parse("H100:8")
    with hint("write nodes=2"):
        parse("H100 nodes=0")
    assert parse("H100 nodes=2")
    with hint("write price<=2.50: US dollars an hour for a machine"):
        parse("H100 price<=0")
    assert parse("H100 price<=2.50")


def test_exports_to_kubernetes(hint: Any) -> None:
    with hint("export a claim, which takes alternatives: --export dra"):
        parse("H100, A100-80GB").export("kubernetes")
    assert parse("H100, A100-80GB").export("dra")  # anyaccel resolve --export dra
    with hint("export a claim: --export dra"):
        parse("amd:40GB+").export("kubernetes")
    assert parse("amd:40GB+").export("dra")  # --export dra
    with hint("write 'nvidia:{}' or 'amd:{}'"):
        parse("40GB+").export("dra")
    assert parse("nvidia:40GB+").export("dra") and parse("amd:40GB+").export("dra")
    with hint("write 'cuda' or 'rocm'"):
        parse("gpu").export("kubernetes")
    assert parse("cuda").export("kubernetes") and parse("rocm").export("kubernetes")
    with hint("write '{}'"):
        parse("cuda:1").export("kubernetes")
    assert parse("cuda").export("kubernetes")
    with hint("leave sm>= out"):
        parse("amd:any sm>=80").export("kubernetes")
    assert parse("rocm").export("kubernetes")  # without sm>=
    with hint("request google.com/tpu and a topology yourself"):
        parse("TPU-V6E:4").export("kubernetes")
    limits = parse("cuda cores=8").export("kubernetes")["resources"]["limits"]
    assert {**limits, "google.com/tpu": 4}  # by hand
    with hint("write completions: {} and parallelism: {} in a Job"):
        parse("H100:8 nodes=2").export("kubernetes")
    pod = parse("H100:8").export("kubernetes")
    assert {"completions": 2, "parallelism": 2, "template": {"spec": pod}}
    with hint("set memory and cores in the pod's limits"):
        parse("H100 cores=8").export("dra")
    assert parse("H100").export("dra") and "cpu" in str(parse("cuda cores=8").export("kubernetes"))


def test_exports_to_other_schedulers(hint: Any) -> None:
    with hint("write memory= and cpu= next to gpu="):
        parse("H100 cores=8").export("modal")
    assert dict(gpu=parse("H100").export("modal"), cpu=8, memory=65536)  # noqa: C408 - as a call of Modal's
    with hint("write @modal.experimental.clustered(size={}) above the function"):
        parse("H100:8 nodes=2").export("modal")
    assert parse("H100:8").export("modal") == "H100:8"  # tests of exports look up modal.experimental.clustered
    with hint("write '{}' if either is acceptable"):
        parse("A10G").export("modal")
    assert parse("A10").export("modal") == "A10"
    with hint("write '{}'"):
        parse("H100+").export("ray")
    assert parse("H100").export("ray")
    with hint("write 'gpu', or name a product"):
        parse("rocm").export("ray")
    assert parse("gpu").export("ray") and parse("MI300X").export("ray")
    with hint("export the request without nodes=, as bundles of a placement group of the strategy STRICT_SPREAD"):
        parse("H100:8 nodes=2").export("ray")
    made = parse("H100:8").export("ray")  # without nodes=
    assert {"bundles": [{"GPU": made["num_gpus"]}] * 2, "strategy": "STRICT_SPREAD"}
    with hint("write 'cpu', and cores= for cores"):
        replace(parse("cpu cores=2"), entries=(RequestEntry(kind="cpu", count=2),)).export("ray")
    assert parse("cpu cores=2").export("ray") == {"num_gpus": 0, "num_cpus": 2}
    with hint("write '{}' for any accelerator"):
        parse("gpu").export("skypilot")
    assert parse("16GB+").export("skypilot")
    with hint("write num_nodes: {} next to resources:"):
        parse("H100:8 nodes=2").export("skypilot")
    assert {"num_nodes": 2, "resources": parse("H100:8").export("skypilot")}
    with hint("write accelerators: tpu-v6e-8 yourself, with the size that you need"):
        parse("TPU-V6E:8").export("skypilot")
    assert {**parse("cpu").export("skypilot"), "accelerators": "tpu-v6e-8"}
    with hint("write 'gpu', or 'gpu:any:2' for two"):
        parse("gpu:1").export("slurm")
    assert parse("gpu").export("slurm") and parse("gpu:any:2").export("slurm")
    with hint("write '{}', and add your site's name for it yourself (sinfo -o '%G %f' lists them)"):
        parse("A100-80GB:2").export("slurm")
    assert [*parse("A100:2").export("slurm"), "--constraint=a100_80gb"]
    with hint("write '{{}}' if all of them are equally acceptable"):
        parse("H100:2, A100:2").export("slurm")
    assert parse("{H100:2, A100:2}").export("slurm")


def test_inventories(hint: Any, tmp_path: Path) -> None:
    with hint("write Inventory.parse('8x H100-80GB')"):
        aa.Inventory.parse("")
    assert aa.Inventory.parse("8x H100-80GB")
    with hint("write Inventory.parse({})"):
        aa.Inventory("8x H200")
    assert len(aa.Inventory.parse("8x H200").devices) == 9
    with hint("write '8x H100-80GB'"):
        aa.Inventory.parse("8x H100!")
    assert aa.Inventory.parse("8x H100-80GB")
    with hint("write Inventory.from_file('node.json')"):
        aa.Inventory.from_file(3)  # type: ignore[arg-type]
    file = tmp_path / "node.json"
    file.write_text("{}[")
    example = """{"devices": [{"product": "H100-80GB", "count": 8}], "host_memory_gb": 1000, "cores": 96}"""
    with hint("write {}"):
        aa.Inventory.from_file(file)
    file.write_text(example)
    assert json.loads(example) and aa.Inventory.from_file(file)


def test_functions_in_replicas(hint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "told.txt"

    def inside() -> None:
        with written.open("a") as file:
            file.write("told\n")

    with written.open("a") as file:

        def outside() -> None:
            file.write("told\n")

        with hint("create open files, loops, locks and the like inside the function"):
            spawn(outside, replicas=2)
    with hint("write replicas=2"):
        spawn(inside, replicas=0)
    spawn(inside, replicas=2)
    assert written.read_text() == "told\n" * 2
    called: Any = inside()
    with hint("pass a function without calling it"):
        spawn(called, replicas=2)


def of_torchrun(**variables: str) -> dict[str, str]:
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", **variables}


def printed_by(script: Path) -> str:
    """What a script prints by `anyaccel run --replicas 2 SCRIPT`."""
    command = [sys.executable, "-m", "anyaccel", "run", "--replicas", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def test_variables_of_launchers(hint: Any, monkeypatch: pytest.MonkeyPatch, cli: Any, tmp_path: Path) -> None:
    right = of_torchrun()
    with hint(
        "set MASTER_ADDR to the host of the first process and MASTER_PORT to a free port there, the same in all "
        "processes (mpirun "
        "-x MASTER_ADDR=HOST -x MASTER_PORT=29500), or unset the first two for a single process"
    ):
        launched({name: value for name, value in right.items() if not name.startswith("MASTER")})
    # as mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 hands them on
    assert launched(of_torchrun(MASTER_ADDR="localhost", MASTER_PORT="29500")) is not None and launched({}) is None
    with hint("set it to a free port of the first process, the same in all processes, such as MASTER_PORT=29500"):
        launched(of_torchrun(MASTER_PORT="many"))
    assert launched(of_torchrun(MASTER_PORT="29500")) is not None
    with hint("set it to more than the time of the longest step, such as {}=600, or unset it"):
        replica_timeout({"ANYACCEL_REPLICA_TIMEOUT": "long"})
    assert replica_timeout({"ANYACCEL_REPLICA_TIMEOUT": "600"}) == 600 and replica_timeout({}) is None
    with hint("start the processes with a launcher: anyaccel run --replicas 2 SCRIPT; or unset {}"):
        launched(of_torchrun(RANK="first"))
    with hint(
        "start all processes with one launcher (anyaccel run --replicas 2 SCRIPT, torchrun, srun or mpirun) and pass "
        "on all variables that it sets; or unset {}"
    ):
        launched({"WORLD_SIZE": "2"})  # of anyaccel run --replicas 2 SCRIPT: below
    script = tmp_path / "script.py"
    script.write_text("from anyaccel_distributed import launched\nprint(f'rank {launched().rank}')")
    output = printed_by(script)
    assert "rank 0" in output and "rank 1" in output
    with hint("leave --on out") as printed:
        printed.text = cli("run", "--on", "nowhere", "--replicas", "2", str(script)).output
    assert "rank 0" in printed_by(script)  # without --on


def test_frameworks_without_processes(hint: Any) -> None:
    with hint("train on several devices of one process, TrainPhase(replicas=2), or leave join out"):
        join("numpy")
    aa.simulate(2)
    x = np.ones((8, 2), dtype="float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    losses = [aa.AppliedLoss("mse", on="net")]
    results = graph.run(  # without join
        aa.TrainPhase(replicas=2, label="train", data="all", losses=losses, accelerator="sim:0"), progress="none"
    )
    assert results.loss.size == 1
