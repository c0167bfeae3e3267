"""A zoo of small models in one real Triton, each over HTTP and gRPC: every answer is right, every count is Triton's.

The server is somebody else's; squall attaches to it, and knows what each model must answer from a function.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from squall.actors.inject.library import batch_environment, built_library
from squall.actors.net.triton_control import Control
from squall.analysis.storage.store import RunStore
from squall.cluster.node.endpoint import attach
from squall.cluster.node.server import Ports, free_ports
from squall.models.made import make_inputs
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.plan.drafting import plan_scenario
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, unmet
from tests.integration.test_foreign_batches import finish, rows_of, their_server
from tests.integration.zoo_models import ANSWERS, LIMITER_OPTIONS, ZOO, ZooModel, write_zoo

pytestmark = [
    pytest.mark.single,
    pytest.mark.skipif(
        built_library("batches") is None, reason="the batch library was not built: no C compiler"
    ),
]

MODELS = {one.name: one for one in ZOO}
N_VARIANTS = 8
QUICK = {("integers", "http")}


def marks_of(number: int, name: str, protocol: str) -> list[pytest.MarkDecorator]:
    """One is quick, every fifth model's are slow, over one protocol in turn, and the rest long."""
    if (name, protocol) in QUICK:
        return []
    is_slow = number % 5 == 0 and (number // 5) % 2 == (protocol == "grpc")
    return [pytest.mark.slow] if is_slow else [pytest.mark.slow, pytest.mark.long]


CASES = [
    pytest.param(
        one.name, protocol, share,
        marks=marks_of(number, one.name, protocol), id=f"{one.name}-{protocol}-{share}",
    )
    for number, one in enumerate(one for one in ZOO if one.is_asked)
    for protocol, share in (("http", (0.1, 1.0)[number % 2]), ("grpc", (1.0, 0.1)[number % 2]))
]  # fmt: skip
"""With a share of 0.1 most requests go through the lane in C, with one of 1.0 none."""


Version = tuple[str, str]
"""Name and version of a model."""


@dataclass(frozen=True)
class Counts:
    """What Triton counted of one; `n_hits`: of `n_ok` those that its cache answered."""

    n_ok: int = 0
    n_failed: int = 0
    n_hits: int = 0
    n_rows: int = 0
    n_executions: int = 0

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            *(mine - theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@dataclass
class Executed:
    """Executions of a model, their rows, and how many of them had each request."""

    n: int = 0
    n_rows: int = 0
    requests: Counter[int] = field(default_factory=Counter)


class ZooServer:
    """Where the zoo is served; each model is loaded when it is first asked for."""

    def __init__(self, url: str, ports: Ports) -> None:
        self.url = url
        self.ports = ports
        self._loaded: set[str] = set()

    def load(self, one: ZooModel) -> None:
        """It, and those that it asks: of an ensemble Triton would do that by itself."""
        with closing(Control(self.url, timeout_s=60.0)) as control:
            for name in (*one.steps, one.name):
                if name not in self._loaded:
                    control.ask(f"/v2/repository/models/{name}/load", "POST", b"{}")
                    self._loaded.add(name)

    def counts(self) -> dict[Version, Counts]:
        """Since the server started."""
        with closing(Control(self.url)) as control:
            stats = control.ask_json("/v2/models/stats")["model_stats"]
        found = {}
        for one in stats:
            ends = {name: int(end["count"]) for name, end in one["inference_stats"].items()}
            n_rows, n_executions = int(one["inference_count"]), int(one["execution_count"])
            found[one["name"], one["version"]] = Counts(
                ends["success"], ends["fail"], ends["cache_hit"], n_rows, n_executions
            )
        return found


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooServer]:
    """One server for all tests of this file."""
    folder = tmp_path_factory.mktemp("zoo")
    write_zoo(folder / "models")
    (folder / "rings").mkdir()
    injected = [f"{name}={value}" for name, value in batch_environment(folder / "rings", {}).items()]
    ports = free_ports(ServerConfig())
    with their_server(
        folder / "server", folder / "models", "affine", injected,
        cache_bytes=1 << 20, further=LIMITER_OPTIONS, ports=ports,
    ) as url:  # fmt: skip
        yield ZooServer(url, ports)


def mapping_of(one: ZooModel, zoo: ZooServer, protocol: str, **check: Any) -> dict[str, Any]:
    """A second of requests to one model."""
    rows = (
        {"kind": "uniform", "low": 1, "high": 3} if one.max_batch_size else {"kind": "constant", "value": 1}
    )
    clients = {
        "workers_per_node": 1, "timeout": "20s", "protocol": protocol, "rows": rows,
        "payload_variants": N_VARIANTS, **one.clients,
    }  # fmt: skip
    clients["check"] = {"function": one.function, **one.check, **check}
    arrivals = {"kind": "poisson", "rate": f"{one.rate_hz}/s"}
    return scenario_mapping(
        model={"name": one.name, "max_batch_size": 8, **one.model},
        server={"url": zoo.url, "grpc_port": zoo.ports.grpc, "metrics_port": zoo.ports.metrics},
        clients=clients,
        phases=[
            {"name": "main", "kind": "measure", "duration": "1s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "10s"},
        ],
        profile={"nsys": "off", "nvml": "off", "batches": "required"},
    )


def sampled(store: RunStore) -> dict[Version, Counts]:
    """What the run's table of Triton's statistics says of the models that were asked."""
    found: dict[Version, Counter[str]] = {}
    names = ("request_count", "failure_count", "cache_hit_count", "inference_count", "execution_count")
    for row in rows_of(store, "triton_samples"):
        of_model = found.setdefault((row["model"], row["version"]), Counter())
        of_model.update({name: row[name] or 0 for name in names})
    counted = {key: Counts(*(one[name] for name in names)) for key, one in found.items()}
    return {key: one for key, one in counted.items() if one != Counts()}


def executed(store: RunStore) -> dict[str, Executed]:
    """What the library in the server told of each model."""
    found: dict[str, Executed] = {}
    for row in rows_of(store, "batches") if store.has("batches") else []:
        one = found.setdefault(row["model"], Executed())
        one.n += 1
        one.n_rows += row["rows"]
        one.requests.update(row["request_ids"])
    return found


def refused(one: ZooModel, mapping: dict[str, Any], rows: list[int]) -> list[bool]:
    """Of each request in its order, whether the model fails for its inputs."""
    scenario = scenario_from_mapping(mapping, "test")
    if one.name not in ("failing", "raising"):
        return [False] * len(rows)
    spec = attach([scenario.models[0].model], scenario.server).models[0].spec
    variants = plan_scenario(scenario).variant.tolist()
    return [
        bool(make_inputs(spec, n, variant, scenario.seed)["x"][0, 0] < 0)
        for n, variant in zip(rows, variants, strict=True)
    ]


@pytest.mark.parametrize(("name", "protocol", "share"), CASES)
def test_every_answer_is_right_and_every_count_is_tritons(
    alone: Bench, zoo: ZooServer, name: str, protocol: str, share: float
) -> None:
    one = MODELS[name]
    zoo.load(one)
    mapping, before = mapping_of(one, zoo, protocol, share=share), zoo.counts()
    store, summary, _ = finish(alone, mapping, ends=(0, 3, 99))  # requests of some fail

    rows = planned_rows(store)
    is_refused = refused(one, mapping, rows["rows"])
    assert rows["outcome"] == ["server_error" if it else "ok" for it in is_refused], set(rows["detail"])
    ok = [number for number, it in zip(rows["request_id"], is_refused, strict=True) if not it]
    assert len(ok) > 5
    checks = store.manifest.value_checks
    assert checks is not None
    n_checked = sum(number % round(1 / share) == 0 for number in ok)
    assert (checks.n_checked, checks.n_wrong) == (n_checked, 0)
    assert n_checked > 1

    asked = {key: now - before.get(key, Counts()) for key, now in zoo.counts().items()}
    asked = {key: counts for key, counts in asked.items() if counts != Counts()}
    assert asked == sampled(store)
    version = str(one.model.get("version", 1))
    assert asked.keys() == {(name, version), *((step, "1") for step in one.steps)}
    own = asked[name, version]
    n_ok = len(rows["outcome"]) if name == "failing" else len(ok)  # Triton counts its errors as successes
    assert (own.n_ok, own.n_failed) == (n_ok, len(rows["outcome"]) - n_ok)
    assert all(asked[step, "1"].n_ok == n * n_ok for step, n in Counter(one.steps).items())

    n_failed_rows = sum(n for n, it in zip(rows["rows"], is_refused, strict=True) if it and own.n_failed)
    found = executed(store)
    for (model, _), counts in asked.items():
        if MODELS[model].backend != "ensemble" and counts.n_executions:
            told = found.pop(model)
            assert (told.n, told.n_rows) == (counts.n_executions, counts.n_rows + n_failed_rows), model
            assert told.requests.total() == counts.n_ok + counts.n_failed - counts.n_hits
            assert told.requests.keys() <= set(rows["request_id"])
    assert not found, "batches of models that nobody asked"

    joins = rows_of(store, "joined")
    assert sorted(row["request_id"] for row in joins) == rows["request_id"], "one row a request"
    levels = Counter(row["join_level"] for row in joins)
    assert levels == Counter(exact=len(rows["outcome"]) - own.n_hits, none=own.n_hits)
    assert steps_of(store) == expected_steps(one, rows["request_id"])
    assert all(identity["is_met"] for identity in summary["identities"])
    assert unmet(store) == []


def steps_of(store: RunStore) -> dict[int, Counter[str]]:
    """How often each request passed each model, where it passed several."""
    found: dict[int, Counter[str]] = {}
    for row in rows_of(store, "steps") if store.has("steps") else []:
        found.setdefault(row["request_id"], Counter())[row["model"]] += 1
    return found


def expected_steps(one: ZooModel, requests: list[int]) -> dict[int, Counter[str]]:
    """Of an ensemble no execution of its own."""
    if not one.steps:
        return {}
    passed = Counter(name for name in (one.name, *one.steps) if MODELS[name].backend != "ensemble")
    return dict.fromkeys(requests, passed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function"), [("affine", "wrong_floats"), ("text", "wrong_text")])
def test_answers_that_are_not_the_functions_are_bad_replies_and_counted(
    alone: Bench, zoo: ZooServer, name: str, function: str
) -> None:
    zoo.load(MODELS[name])
    wrong = f"{ANSWERS}:{function}"
    mapping = mapping_of(MODELS[name], zoo, "grpc", function=wrong, share=0.1)
    store, summary, _ = finish(alone, mapping, ends=(3, 99))
    rows = planned_rows(store)
    checked = [number for number in rows["request_id"] if number % 10 == 0]
    found = {number: outcome for number, outcome in enumerate(rows["outcome"]) if outcome != "ok"}
    assert found == dict.fromkeys(checked, "bad_reply")
    assert all(", expected " in rows["detail"][number] for number in checked)
    counted = summary["value_checks"]
    assert (counted["every"], counted["n_checked"], counted["n_wrong"]) == (10, len(checked), len(checked))
    assert counted["reference_sha256"] == hashlib.sha256(ANSWERS.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("not_there", "has no function not_there"),
        ("raises", "it raised KeyError: 'no such input' (zoo_answers.py, line "),
        ("halves", "gave output y shape [1, 6], the model's is FP32 [1, 3]"),
        ("caller", "gave output z, model affine has y"),
    ],
)
def test_a_function_that_does_not_suit_ends_before_anything_is_sent(
    alone: Bench, zoo: ZooServer, function: str, why: str
) -> None:
    zoo.load(MODELS["affine"])
    before = zoo.counts()
    live = alone.start_run(mapping_of(MODELS["affine"], zoo, "http", function=f"{ANSWERS}:{function}"))
    assert live.end() == 2
    line = live.error_line()
    assert "clients.check.function: " in line
    assert why in line
    assert zoo.counts() == before
    alone.aborted()
