"""How near the planner comes to the best known placement of published workloads, and how long it takes.

The workloads are those of msr-fiddle/dnn-partitioning (NeurIPS 2020), read from a checkout:
`python tests/benchmarks/placement.py --workloads CHECKOUT [--json FILE]`, or ANYACCEL_PLACEMENT_WORKLOADS=CHECKOUT.
Without one, graphs of random shape stand in, which have no published optimum: their figures are ratios to the lower
bound. An evaluator of its own, written from the objective's definition and not from the planner, gives every figure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from anyaccel_offload.planner import Block, BlockPlan, DeviceSpec, Edge, plan_blocks

GIGA = 10**9  # seconds of transfer are written as bytes over a link of so many bytes per second

# Optimal time for a sample, as the authors' own program finds it: with the memory of the files, and with tight memory,
# max(1.25 x total / k, 1.05 x largest class). Where it does not finish the best known value stands, marked True.
KNOWN = {
    "LayerGraphs/bert24_inference": (17.79, 17.97, False),
    "LayerGraphs/bert24_training": (41.75, 50.09, False),
    "LayerGraphs/gnmt_inference": (32.91, 32.91, False),
    "LayerGraphs/gnmt_training": (107.00, 107.01, False),
    "LayerGraphs/inceptionv3_inference": (51.55, 57.06, True),
    "LayerGraphs/inceptionv3_training": (123.93, 128.32, True),
    "LayerGraphs/resnet50_inference": (33.77, 38.31, False),
    "LayerGraphs/resnet50_training": (78.63, 81.07, False),
    "OperatorGraphs/bert_L-12_training": (438.00, 438.00, False),
    "OperatorGraphs/bert_l-12_inference": (147.48, 147.48, False),
    "OperatorGraphs/bert_l-3_inference": (27.92, 189.14, False),
    "OperatorGraphs/bert_l-3_training": (65.30, 387.27, False),
    "OperatorGraphs/bert_l-6_inference": (29.58, 29.58, False),
    "OperatorGraphs/bert_l-6_training": (72.86, 72.86, False),
    "OperatorGraphs/resnet50_inference": (124.35, 129.16, False),
    "OperatorGraphs/resnet50_training": (255.19, 264.64, False),
}


def colour(node: dict[str, Any]) -> str:
    """The class of nodes that are placed together; a node without one is alone."""
    return f"class {node['colorClass']}" if "colorClass" in node else f"node {node['id']}"


def capacity(workload: dict[str, Any], tight: bool) -> int:
    """Bytes of an accelerator."""
    if not tight:
        return int(workload["maxSizePerFPGA"])
    sizes: dict[str, float] = defaultdict(float)
    for node in workload["nodes"]:
        sizes[colour(node)] += node["size"]
    return math.ceil(max(1.25 * sum(sizes.values()) / workload["maxFPGAs"], 1.05 * max(sizes.values())))


def plan(workload: dict[str, Any], cap: int) -> BlockPlan:
    """The planner's answer."""
    blocks = [
        Block(
            name=str(node["id"]),
            parameter_bytes=math.floor(node["size"]),
            seconds={"cpu": node["cpuLatency"]} | ({"gpu": node["fpgaLatency"]} if node["supportedOnFpga"] else {}),
            group=colour(node),
            backward=bool(node["isBackwardNode"]),
        )
        for node in workload["nodes"]
    ]
    edges = [Edge(str(each["sourceId"]), str(each["destId"]), round(each["cost"] * GIGA)) for each in workload["edges"]]
    devices = [
        DeviceSpec(name=f"gpu:{i}", memory=cap, link=float(GIGA), rounding=1) for i in range(workload["maxFPGAs"])
    ]
    devices += [DeviceSpec(name=f"cpu:{i}", kind="cpu", rounding=1) for i in range(workload["maxCPUs"])]
    return plan_blocks(blocks, devices, edges=edges)


def evaluate(workload: dict[str, Any], device_map: dict[str, str], cap: int) -> float:
    """The largest load of a device, node by node and edge by edge; checks classes and memory as well."""
    where = {node["id"]: device_map[str(node["id"])] for node in workload["nodes"]}
    load: dict[str, float] = defaultdict(float)
    held: dict[str, float] = defaultdict(float)
    homes: dict[str, set[str]] = defaultdict(set)
    for node in workload["nodes"]:
        device = where[node["id"]]
        load[device] += node["fpgaLatency" if device.startswith("gpu") else "cpuLatency"]
        held[device] += math.floor(node["size"])
        homes[colour(node)].add(device)
    assert all(len(devices) == 1 for devices in homes.values()), "a class is on several devices"
    assert all(size <= cap for device, size in held.items() if device.startswith("gpu")), "a device is over its memory"
    cost = {edge["sourceId"]: edge["cost"] for edge in workload["edges"]}
    readers: dict[int, set[str]] = defaultdict(set)
    for edge in workload["edges"]:
        readers[edge["sourceId"]].add(where[edge["destId"]])
    for source, devices in readers.items():
        others = devices - {where[source]}
        for device in (*others, *([where[source]] if others else [])):
            if device.startswith("gpu"):
                load[device] += cost[source]
    return max(load.values())


def generated(seed: int, n: int) -> dict[str, Any]:
    """A graph of branches that meet again, as in networks of inception and residual blocks."""
    draw = random.Random(seed)
    nodes = [
        {
            "id": i,
            "supportedOnFpga": 1,
            "fpgaLatency": draw.random(),
            "isBackwardNode": 0,
            "size": draw.randrange(10**6),
        }
        for i in range(n)
    ]
    for node in nodes:
        node["cpuLatency"] = 10 * node["fpgaLatency"]
    edges = [
        {"sourceId": source, "destId": i, "cost": 0.02 * ((source * 7919) % 13)}
        for i in range(1, n)
        for source in sorted({i - 1 - min(i - 1, draw.randrange(4)) for _ in range(draw.choice((1, 1, 2)))})
    ]
    return {"maxSizePerFPGA": 10**12, "maxFPGAs": 6, "maxCPUs": 1, "nodes": nodes, "edges": edges}


def chains(n: int) -> None:
    """Print how long a chain takes to plan on eight devices that all differ, with ample and scarce memory."""
    draw = random.Random(0)
    blocks = [
        Block(
            name=f"b{i}",
            parameter_bytes=int(draw.uniform(0.5, 2) * 2**24),
            seconds=draw.uniform(0.5, 2) * 1e-3,
            output_bytes=2**16,
        )
        for i in range(n)
    ]
    total = sum(block.parameter_bytes for block in blocks)
    for room, objective in ((2.0, "throughput"), (1.03, "throughput"), (0.5, "throughput"), (2.0, "latency")):
        devices = [
            DeviceSpec(name=f"gpu:{i}", memory=int(total * room * (i + 1) / 36), rate=1 + 0.3 * i, link=1e10)
            for i in range(8)
        ]
        began = time.perf_counter()
        made = plan_blocks(blocks, devices, objective=objective, offload="cpu")
        seconds = time.perf_counter() - began
        print(f"{n} blocks on 8 unlike devices with {room} times their bytes, {objective}: {seconds:.2f} s", end="")
        print(f", {made.method}{', exact' if made.exact else ''}", flush=True)


def measure(name: str, workload: dict[str, Any], tight: bool, best: float | None) -> dict[str, Any]:
    """One row."""
    cap = capacity(workload, tight)
    began = time.perf_counter()
    made = plan(workload, cap)
    seconds = time.perf_counter() - began
    value = evaluate(workload, made.device_map, cap)
    if not math.isclose(value, made.seconds, rel_tol=1e-6):
        raise AssertionError(f"{name}: the plan says {made.seconds}, the evaluator {value}")
    ratio = value / (best if best is not None else made.lower_bound)
    return {"name": name, "tight": tight, "value": value, "best": best, "ratio": ratio, "planning": seconds}


def main() -> None:
    """Print a table, and write it where `--json` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=Path, default=os.environ.get("ANYACCEL_PLACEMENT_WORKLOADS"))
    parser.add_argument("--quick", action="store_true", help="small graphs only, to see that it runs")
    parser.add_argument("--json", type=Path)
    given, _ = parser.parse_known_args()
    rows = []
    for tight in (False, True):
        if given.workloads is None:
            cases = {f"generated {n}": (generated(n, n), None) for n in ((60,) if given.quick else (60, 300, 1000))}
        else:
            names = list(KNOWN)[: 3 if given.quick else None]
            folder = Path(given.workloads) / "throughput-inputs"
            read = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names}
            cases = {name: (workload, KNOWN[name][tight]) for name, workload in read.items()}
        for name, (workload, best) in cases.items():
            row = measure(name, workload, tight, best)
            rows.append(row)
            print(f"{name:40}{'tight' if tight else 'full':>6}{row['value']:10.2f}{row['ratio']:9.4f}", end="")
            print(f"{row['planning']:9.2f} s", flush=True)
        ratios = [row["ratio"] for row in rows if row["tight"] is tight]
        word = "lower bound (no published workloads given)" if given.workloads is None else "best known"
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean of the ratios to the {word}: {mean:.4f}")
    chains(500 if given.quick else 5000)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
