"""Launcher of `anyaccel run --on ray`: starts or joins a cluster, and runs a script in each worker of Ray Train."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyaccel.call_hints import call_hints
from anyaccel.errors import FrameworkError
from anyaccel_distributed import replica_timeout
from anyaccel_distributed.launch_options import LaunchOptions
from anyaccel_ray.script import run_script

if TYPE_CHECKING:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

# Variables of this process that its replicas need; those of a cluster's nodes are of their own.
_HANDED_ON = ("PYTHONPATH", "PYTHONWARNINGS", "OMP_NUM_THREADS")
_HANDED_ON_PREFIXES = ("ANYACCEL_", "JAX_", "KERAS_", "TF_", "TORCH_", "NCCL_", "GLOO_")
_DEFAULTS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # each line once
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # the script runs in the folder of the command
    "RAY_USAGE_STATS_ENABLED": "0",
}


@call_hints
def launch(options: LaunchOptions) -> int:
    """Run a script in the workers of Ray Train.

    The command joins the cluster of RAY_ADDRESS or of `ray start --head`; if there is no cluster, it starts a local
    one, which ends with the command.

    Returns:
        0, or 1 if a replica failed more often than it may; its traceback is on standard error.

    Raises:
        FrameworkError: the cluster has fewer CPUs than replicas.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    import ray
    from ray.train import TrainingFailedError

    _connect(options.replicas)
    try:
        check_places(ray.cluster_resources(), options.min_replicas)
        with tempfile.TemporaryDirectory(prefix="anyaccel-ray-") as storage:
            _trainer(options, storage).fit()
    except TrainingFailedError as error:
        failures: Mapping[int, BaseException] = getattr(error, "worker_failures", None) or {}
        shown = [f"anyaccel run: replica {rank} failed:\n{failure}" for rank, failure in sorted(failures.items())]
        for text in shown or [f"anyaccel run: {error}"]:
            print(text, file=sys.stderr)
        return 1
    finally:
        ray.shutdown()
    return 0


def _connect(replicas: int) -> None:
    """Join the running cluster; start one with a CPU for each replica where none runs."""
    import ray

    try:
        ray.init(address="auto", log_to_driver=True)
    except ConnectionError:
        os.environ.pop("RAY_ADDRESS", None)
        n_cpus = max(replicas + 1, os.cpu_count() or 1)
        ray.init(num_cpus=n_cpus, log_to_driver=True)


def check_places(resources: Mapping[str, float], replicas: int) -> None:
    """Raise FrameworkError if a cluster with these resources has no CPU for each replica."""
    n_cpus = int(resources.get("CPU", 0))
    if n_cpus < replicas:
        raise FrameworkError(
            f"the Ray cluster has {n_cpus} CPUs, but each of {replicas} replicas needs one",
            cause=f"{n_cpus} replicas",
            hint="add nodes with ray start --address=HEAD:6379, or request fewer --replicas",
        )


def _trainer(options: LaunchOptions, storage: str) -> DataParallelTrainer:
    """Return Ray's trainer of torch, which joins its process group; without torch, one that tells workers where they
    meet.

    Ray's trainer for JAX joins the processes only on GPUs and TPUs, and before the script can configure this.
    """
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    uses_gpus = int(ray.cluster_resources().get("GPU", 0)) >= options.replicas
    elastic = options.min_replicas < options.replicas
    n_workers = (options.min_replicas, options.replicas) if elastic else options.replicas
    handed_on = {
        name: value for name, value in os.environ.items() if name in _HANDED_ON or name.startswith(_HANDED_ON_PREFIXES)
    }
    if options.timeout is not None:
        handed_on["ANYACCEL_REPLICA_TIMEOUT"] = str(options.timeout)
    target = options.target if options.is_module else str(Path(options.target).resolve())
    of_all: dict[str, Any] = {
        "train_loop_config": {
            "target": target,
            "is_module": options.is_module,
            "arguments": list(options.arguments),
            "folder": str(Path.cwd()),
            "environment": handed_on,
        },
        "scaling_config": ScalingConfig(num_workers=n_workers, use_gpu=uses_gpus),
        "run_config": RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=options.max_restarts)),
    }
    if importlib.util.find_spec("torch") is None:
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        from anyaccel_ray.variables import VariablesConfig

        return DataParallelTrainer(run_script, backend_config=VariablesConfig(), **of_all)
    from ray.train.torch import TorchConfig, TorchTrainer

    seconds = options.timeout or replica_timeout() or TorchConfig.timeout_s
    engine = "cpu:gloo,cuda:nccl" if uses_gpus else "gloo"
    joining = TorchConfig(backend=engine, timeout_s=max(1, round(seconds)))
    return TorchTrainer(run_script, torch_config=joining, **of_all)
