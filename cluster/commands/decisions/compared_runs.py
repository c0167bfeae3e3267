"""Pairs of runs that a comparison makes itself: blocks of one A and one B in random order, a seed each."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from squall.analysis.compare.change import UNDECIDED
from squall.analysis.compare.compared import INVALID, UNFINISHED, Comparison, evaluate
from squall.analysis.compare.corrections import looks_after
from squall.analysis.compare.pairing import Pair, Paired, refuse_incomparable
from squall.analysis.compare.run_row import RunRow, read_row
from squall.analysis.record import to_json
from squall.analysis.report.compare_page import compare_page
from squall.analysis.report.compare_words import answer, markdown
from squall.analysis.report.decision_page import page_html
from squall.analysis.storage.part import error_reason
from squall.cluster.commands.decisions.compared_folders import SIDES
from squall.cluster.commands.decisions.minutes import Beside, phases_s
from squall.cluster.draining import Draining
from squall.cluster.driver.run import run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measurer, RunOne, folder_of_runs, held, write_text
from squall.cluster.progress import Screen
from squall.models.spec import ZOO
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, StoreError
from squall.scenarios.locust_plan import read_locust_files, stated_load
from squall.scenarios.records import Frozen


class PairPlan(Frozen):
    """What is to be run: `a` and `b` with their names on the screen, `n_pairs` blocks from `seed` on, looked at
    `n_looks` times; `swaps_gpus`: from the middle on each side has the GPUs of the other; `has_one_seed`: all
    blocks have that seed, else each its own."""

    a: Scenario
    b: Scenario
    name_a: str
    name_b: str
    n_pairs: int
    seed: int
    margin_ratio: float
    n_looks: int = 1
    swaps_gpus: bool = False
    has_one_seed: bool = False

    def seed_of(self, block: int) -> int:
        """The seed of both runs of a block."""
        return self.seed + (0 if self.has_one_seed else block)

    def scenario(self, side: str, block: int) -> Scenario:
        """That of a run of side `a` or `b`, without its promises: no run ends early by one."""
        own, other = (self.a, self.b) if side == "a" else (self.b, self.a)
        mapping = {**own.to_mapping(), "seed": self.seed_of(block)}
        if self.swaps_gpus and block >= (self.n_pairs + 1) // 2:
            mapping = with_gpus_of(mapping, other.to_mapping())
        for key in ("promises", "stop_when"):
            mapping.pop(key, None)
        return scenario_from_mapping(mapping, own.name)

    def order(self) -> list[tuple[int, str]]:
        """Blocks and sides in the order in which they run: one of each side a block, which is first drawn from the
        seed, every second block the reverse of the one before: a steady drift cancels over the two."""
        rng = random.Random(f"order of {self.seed}")
        found, sides = list[tuple[int, str]](), list(SIDES)
        for block in range(self.n_pairs):
            sides = sides[::-1] if block % 2 else rng.sample(SIDES, 2)
            found += [(block, side) for side in sides]
        return found


def run_pairs(
    plan: PairPlan,
    out: Path,
    ray_address: str | None,
    interrupts: Interrupts,
    command: str,
    run_one: RunOne = run_scenario,
) -> tuple[Path, Comparison]:
    """Runs the pairs into a new folder under `out`, in which `a` and `b` take the runs; the folder and what they show.

    `compare.json` and `compare.md` are there from the start and written anew after each run that counts, as unfinished
    until the last, so that what was measured survives anything, and `compare.html` at the end. With several looks it
    ends at the first that decides. Raises ScenarioError for what cannot be compared, SquallError where a run fails,
    KeyboardInterrupt after a Ctrl-C.
    """
    refuse_other_load(plan.a, plan.b)
    looks = looks_after(plan.n_pairs, plan.n_looks)
    if plan.swaps_gpus:
        with_gpus_of(plan.a.to_mapping(), plan.b.to_mapping())
    folder = folder_of_runs(out, plan.a.name, "compare")
    screen = Screen()
    draining = Draining()  # both sides may be at one server
    measurers = {
        side: Measurer(folder / side, ray_address, interrupts, run_one, screen, draining) for side in SIDES
    }
    with held(folder):
        for side in SIDES:
            (folder / side).mkdir()
        blocks: list[dict[str, list[RunRow]]] = []
        found = _evaluated(plan, blocks)
        _write(folder, replace(found, verdict=UNFINISHED))
        order, took = plan.order(), list[tuple[float, float]]()
        length_s = phases_s(plan.a)  # and of B: the load is the same

        def tell_minutes(n_left: int) -> None:
            screen.step(Beside.of(took).to_come_text(n_left, "run", length_s))

        tell_minutes(len(order))
        for at, (block, side) in enumerate(order):
            title = f"pair {block + 1} of {plan.n_pairs}, seed {plan.seed_of(block)}: {side.upper()}"
            done = measurers[side].measure(plan.scenario(side, block), title)
            if len(blocks) == block:
                blocks.append({})
            blocks[block][side] = [read_row(one.result.run_dir) for one in done]
            took += [(one.seconds, length_s) for one in done]
            found = _evaluated(plan, blocks)
            _write(folder, replace(found, verdict=UNFINISHED))
            n_done = (at + 1) // 2
            if at % 2 and n_done >= 2:
                runs = [[run for one in blocks for run in one[own]] for own in SIDES]
                refuse_incomparable(_paired(blocks), *runs)
                if n_done in looks and n_done < plan.n_pairs and found.verdict not in (UNDECIDED, INVALID):
                    screen.step(f"decided after {n_done} of {plan.n_pairs} pairs")
                    break
                screen.step(answer(found))
            if at % 2 and n_done < plan.n_pairs:
                tell_minutes(len(order) - at - 1)
        _write_files(folder, found, [command, f"squall compare {quote(str(folder))}"])
    return folder, found


def write_files(folder: Path, found: Comparison, commands: Sequence[str]) -> None:
    """All files of a comparison, in a folder that is made if need be. Raises StoreError, ScenarioError where another
    command runs into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create {folder}: {error_reason(error)}") from error
    with held(folder):
        _write_files(folder, found, commands)


def _write_files(folder: Path, found: Comparison, commands: Sequence[str]) -> None:
    _write(folder, found)
    write_text(folder / "compare.html", page_html(compare_page(found, commands)))


_Blocks = Sequence[Mapping[str, Sequence[RunRow]]]
"""The runs of each block by side, the last of a side being the one that counts; of the last block maybe of one side."""


def _paired(blocks: _Blocks) -> Paired:
    """Each whole block is a pair, so that blocks of one seed stay apart; a block that lacks a side is still to come."""
    both = [(one["a"], one["b"]) for one in blocks if len(one) == len(SIDES)]
    return Paired(
        tuple(Pair(a[-1], b[-1]) for a, b in both if a[-1].has_verdict and b[-1].has_verdict),
        tuple(run for sides in both for own in sides for run in own[-1:] if not run.has_verdict),
        tuple(run for one in blocks for own in one.values() for run in own[:-1]),
    )


def _evaluated(plan: PairPlan, blocks: _Blocks) -> Comparison:
    return evaluate(plan.name_a, plan.name_b, _paired(blocks), plan.margin_ratio, plan.n_looks, plan.n_pairs)


def _write(folder: Path, found: Comparison) -> None:
    write_text(folder / "compare.json", json.dumps(to_json(found), indent=2) + "\n")
    write_text(folder / "compare.md", markdown(found))


_NEVER_S = 31_536_000
"""An interval no run is as long as: the sampler of threads takes its first and last sample alone."""
_OFF = {"nsys": "off", "nvml": "off", "gpm": "off", "triton_trace": "off", "thread_interval": f"{_NEVER_S}s"}


def without_profilers(scenario: Scenario) -> Scenario:
    """The scenario without nsys, NVML, GPM, Triton's trace and thread samples.

    Triton's statistics and host samples stay on, at the scenario's intervals: CPU of the server comes from them. A
    server at `server.url` that somebody started under nsys stays under it, unrecorded.
    """
    mapping = scenario.to_mapping()
    profile = {**mapping["profile"], **_OFF}
    profile.pop("nsys_session", None)
    return scenario_from_mapping({**mapping, "profile": profile}, scenario.name)


def refuse_other_load(a: Scenario, b: Scenario) -> None:
    """Raises ScenarioError, before anything runs, where both cannot be sent the same requests."""
    of_a, of_b = a.to_mapping(), b.to_mapping()
    stated = [
        {f"models.{one['name']}.data": one.get("data") for one in of.get("models", ())} for of in (of_a, of_b)
    ]
    keys = ("phases", "clients.rows", "clients.payload_variants", "clients.data")
    locust = [_locust(one) for one in (a, b)]
    said = [
        {**users, **{key: _at(of, key) for key in keys}, **data}
        for users, of, data in zip(locust, (of_a, of_b), stated, strict=True)
    ]
    for key in dict.fromkeys((*said[0], *said[1])):
        if said[0].get(key) != said[1].get(key):
            raise ScenarioError(
                f"compare: A and B differ in {key}: a pair is of one schedule, so that the load must be the same"
            )
    widths = [_width(one) for one in (a, b)]
    if None not in widths and widths[0] != widths[1]:
        raise ScenarioError(
            f"compare: rows of A have {widths[0]} values and those of B {widths[1]}: their inputs have different shapes"
        )


def _locust(scenario: Scenario) -> dict[str, Any]:
    """What `load.locust` says of the load, by key path, the locustfile by what is in it; empty where there is none."""
    if scenario.load is None:
        return {}
    config = scenario.load.locust
    stated = {**stated_load(config), "file": read_locust_files(config).sha256()}
    return {f"load.locust.{key}": value for key, value in stated.items()}


def _at(mapping: Mapping[str, Any], path: str) -> Any:
    found: Any = mapping
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _width(scenario: Scenario) -> int | None:
    """Values of a row that a model of the zoo takes; None of other models, and of several."""
    model = scenario.models[0].model
    if len(scenario.models) > 1 or model.repository is not None or model.name not in ZOO:
        return None
    of_zoo = ZOO[model.name]
    return of_zoo.sizes(model.settings)["sequence" if of_zoo.is_encoder else "width"]


def with_gpus_of(mapping: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario with the GPUs of the servers of another. Raises ScenarioError where the two have none to swap."""
    own, others = mapping.get("servers"), other.get("servers")
    if (
        not isinstance(own, list)
        or not isinstance(others, list)
        or len(own) != len(others)
        or any("gpus" not in entry for entry in (*own, *others))
    ):
        raise ScenarioError("--swap-gpus: A and B need as many servers each, and gpus for every one of them")
    swapped = [{**entry, "gpus": one["gpus"]} for entry, one in zip(own, others, strict=True)]
    return {**mapping, "servers": swapped}
