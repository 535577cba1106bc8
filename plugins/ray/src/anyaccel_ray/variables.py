"""Variables of torchrun that workers of Ray Train get where no torch joins them; frameworks join by them."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from anyaccel_distributed.processes import free_port


class VariablesConfig(BackendConfig):  # type: ignore[misc]
    """Set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the places on its machine in each worker, and join nothing."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _VariablesBackend


class _VariablesBackend(Backend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Set the variables before the script runs; Ray calls it."""
        address, port = worker_group.execute_single(0, _meeting_point)
        worker_group.execute(_set_variables, address, port)


def _meeting_point() -> tuple[str, int]:
    """Return the address of the machine of this worker, and a port that is free there."""
    return ray.util.get_node_ip_address(), free_port()


def _set_variables(address: str, port: int) -> None:
    place = ray.train.get_context()
    variables = {
        "RANK": place.get_world_rank(),
        "WORLD_SIZE": place.get_world_size(),
        "LOCAL_RANK": place.get_local_rank(),
        "LOCAL_WORLD_SIZE": place.get_local_world_size(),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
