"""Scenarios that use every process, residual, shape, preset, rows law, think time, deal, routing and replay there
is, by name; the example of every process among them.

`missing_kinds` reads the lists from the types themselves, so that a new kind cannot be left out. Nothing here needs
more than numpy, pydantic, PyYAML and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from squall.scenarios.arrivals.kinds import ArrivalsConfig, OpenArrivals
from squall.scenarios.arrivals.presets import ClientPresetName, PresetName
from squall.scenarios.arrivals.process import Fitted
from squall.scenarios.arrivals.scaling import RateScaleConfig
from squall.scenarios.arrivals.stationary import ClientsArrivals, Residual
from squall.scenarios.arrivals.users import ThinkConfig
from squall.scenarios.arrivals.varying import AnyShape, Sojourn
from squall.scenarios.config.client import WEIGHED, RoutingConfig, RoutingKind
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.rows import RowsConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.plan.deal import DealRule
from squall.scenarios.strict_yaml import parse_yaml
from squall.scenarios.traces.formats import FORMATS

Mapped = dict[str, Any]

RATE = "4000/s"
DURATION = "5s"

UNITS: dict[str, Mapped] = {
    "poisson": {"kind": "poisson"},
    "gamma": {"kind": "gamma", "cv": 2.0},
    "gamma, even": {"kind": "gamma", "cv": 0.3},
    "gamma, burstiness": {"kind": "gamma", "burstiness": 0.7},
    "weibull": {"kind": "weibull", "shape": 0.5},
    "weibull, cv": {"kind": "weibull", "cv": 1.7},
    "lognormal": {"kind": "lognormal", "cv": 2.0},
    "pareto": {"kind": "pareto", "alpha": 1.5},
    "pareto, cv": {"kind": "pareto", "cv": 2.0},
    "hyperexponential": {"kind": "hyperexponential", "cv": 2.0},
}
"""Processes that are residuals too."""

PLAIN: dict[str, Mapped] = {
    "constant": {"kind": "constant"},
    "mmpp": {"kind": "mmpp", "peak": 1.7, "base": 0.14, "tau": "30ms"},
    "mmpp of three": {
        "kind": "mmpp",
        "states": [
            {"level": 3.0, "stay": "20ms"}, {"level": 1.0, "stay": "100ms"}, {"level": 0.1, "stay": "50ms"},
        ],
        "jumps": [[0.0, 0.7, 0.3], [0.45, 0.0, 0.55], [0.1, 0.9, 0.0]],
    },
    "on-off, exponential": {
        "kind": "on-off", "sources": 9, "on": {"kind": "exponential", "mean": "20ms"},
        "off": {"kind": "exponential", "mean": "70ms"},
    },
    "on-off, pareto": {
        "kind": "on-off", "sources": 50, "on": {"kind": "pareto", "alpha": 1.4, "mean": "10ms"},
        "off": {"kind": "pareto", "alpha": 1.3, "mean": "40ms"},
    },
    "hawkes": {"kind": "hawkes", "n": 0.8, "beta": "300/s"},
    "fgn": {"kind": "fgn", "hurst": 0.9, "sigma": 0.6, "bin": "1ms"},
    "fgn, low": {"kind": "fgn", "hurst": 0.3, "sigma": 0.4, "bin": "3ms"},
    "b-model": {"kind": "b-model", "bias": 0.7, "bin": "2ms"},
    "clients": {"kind": "clients", "clients": 300, "zipf": 1.1, "cv": 1.5, "cv_sigma": 0.5},
    "ticks": {"kind": "ticks", "period": "10ms"},
    "ticks, few": {"kind": "ticks", "period": "1ms"},
    "curve": {"kind": "envelope", "curve": [1.0, 0.0, 3.1, 0.7], "bin": "300ms"},
}  # fmt: skip
"""Processes with a rate of their own and no other process in them."""

SHAPES: dict[str, Mapped] = {
    "piecewise": {"kind": "piecewise", "points": [
        {"at": "1s", "level": 1.3}, {"at": "2s", "level": 0.1}, {"at": "2s", "level": 2.7}, {"at": "4s", "level": 1.0},
    ]},
    "ramp": {"kind": "ramp", "from": 0.3, "to": 1.9, "over": "3s"},
    "step": {"kind": "step", "at": "1700ms", "factor": 3.3},
    "spike": {"kind": "spike", "at": "1100ms", "width": "700ms", "factor": 7.1},
    "pulses": {"kind": "pulses", "factor": 5.7, "width": "70ms", "period": "450ms"},
    "diurnal": {"kind": "diurnal", "peak": 1.9, "peak_at": "700ms", "period": "1700ms"},
    "log-ar1": {"kind": "log-ar1", "sigma": 0.9, "tau": "70ms", "bin": "3ms"},
    "fgn": {"kind": "fgn", "sigma": 0.8, "hurst": 0.7, "bin": "7ms"},
}  # fmt: skip

ROWS: dict[str, Mapped] = {
    "constant": {"kind": "constant", "value": 3},
    "uniform": {"kind": "uniform", "low": 2, "high": 31},
    "lognormal": {"kind": "lognormal", "mean": 9.0, "cv": 1.5, "max": 100_000},
    "pareto": {"kind": "pareto", "alpha": 0.8, "max": 100_000},
    "zipf": {"kind": "zipf", "exponent": 1.1, "max": 100_000},
    "empirical": {"kind": "empirical", "values": [1, 5, 9, 70], "weights": [0.1, 0.7, 0.3, 0.9]},
}

SCALES: dict[str, Mapped] = {
    "thin": {"kind": "thin", "keep": 0.3},
    "thin-by-session": {"kind": "thin-by-session", "keep": 0.4},
    "overlap": {"kind": "overlap", "copies": 2},
    "replicate": {"kind": "replicate", "copies": 3, "jitter": "20ms"},
    "envelope": {"kind": "envelope", "factor": 1.7, "bin": "30ms"},
    "envelope, few": {"kind": "envelope", "factor": 0.9, "bin": "2ms"},
}

THINKS: dict[str, Mapped] = {
    "constant": {"kind": "constant", "value": "3ms"},
    "exponential": {"kind": "exponential", "mean": "7ms"},
    "lognormal": {"kind": "lognormal", "mean": "7ms", "cv": 1.3},
}

TRACE_ROWS = {"kind": "trace", "size": "tokens", "per_row": 7.3, "max": 64}
_CLIENT_WINDOWS = """window_start_s,rate,cv,iat_family,shape,scale,client
0,150.0,1,Gamma,0.37,1,a
0,90.5,1,Weibull,0.61,1,b
0,31.7,1,Exponential,1,1,c
0,0.9,1,Gamma,4.2,1,d
"""


def cases(folder: Path) -> dict[str, Scenario]:
    """Every scenario by name; `folder` takes the traces that some of them replay."""
    write_traces(folder)
    return {name: _scenario(mapping) for name, mapping in _mappings(folder)}


def write_traces(folder: Path) -> None:
    """A trace with sizes and sessions from whole numbers alone, its counts per bin, and client windows."""
    rows = ["timestamp_ns,tokens,session"]
    at_ns, state = 0, 1
    for index in range(12_000):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        gap_ns = (state >> 44) if (index // 500) % 3 else (state >> 47)
        at_ns += gap_ns
        rows.append(f"{at_ns},{(state >> 20) % 900},{(state >> 33) % 150}")
    (folder / "trace.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    counts = [f"{second},{17 + second * second % 400}" for second in range(20)]
    (folder / "counts.csv").write_text("\n".join(["second,count", *counts]) + "\n", encoding="utf-8")
    (folder / "clients.csv").write_text(_CLIENT_WINDOWS, encoding="utf-8")


def missing_kinds(scenarios: Mapping[str, Scenario]) -> set[str]:
    """Kinds, presets and rules that the types know and none of these scenarios uses."""
    return {f"{what} {name}" for what, names in _known().items() for name in names} - {
        found for scenario in scenarios.values() for found in _used(scenario)
    }


def _scenario(mapping: Mapped) -> Scenario:
    clients = {"rows": {"kind": "constant", "value": 1}, "payload_variants": 7} | mapping.pop("clients", {})
    servers, models = mapping.pop("servers", None), mapping.pop("models", None)
    phases = [{"name": "load", "kind": "measure", "duration": DURATION} | mapping]
    phases += [{"name": "drain", "kind": "drain", "duration": "1s"}]
    whole: Mapped = {
        "name": "digest",
        "seed": 20261122,
        "clients": clients,
        "phases": phases,
        "servers": servers,
    }
    if models is None:
        whole["model"] = {"name": "any", "max_batch_size": 2**31 - 1}
    else:
        whole["models"] = [{"max_batch_size": 2**31 - 1, **one} for one in models]
    return scenario_from_mapping(whole, "digest")


def _mappings(folder: Path) -> Iterator[tuple[str, Mapped]]:
    """The load phase of each case, and what of the clients and servers is its own."""
    rate = {"rate": RATE}
    trace = {"kind": "trace", "file": str(folder / "trace.csv")}
    for name, unit in {**UNITS, **PLAIN}.items():
        yield name, {"arrivals": {**unit, **rate}}
    hawkes = {"kind": "hawkes", "n": 0.6, "beta": 0.7}
    for name, unit in {**UNITS, "hawkes": hawkes}.items():
        arrivals = {"kind": "envelope", "shape": SHAPES["log-ar1"], "residual": unit, **rate}
        yield f"residual {name}", {"arrivals": arrivals}
    for name, shape in {**SHAPES, "trace": {**trace, "bin": "50ms"}}.items():
        yield f"shape {name}", {"arrivals": {"kind": "envelope", "shape": shape, **rate}}
    for preset in get_args(PresetName):
        for kind in ("envelope", "mmpp", "hawkes", "fgn", "b-model"):
            arrivals = {"kind": kind, "preset": preset, "rate": "25/s"}
            yield f"{kind} preset {preset}", {"arrivals": arrivals, "duration": "800s"}
    for preset in get_args(ClientPresetName):
        yield f"clients preset {preset}", {"arrivals": {"kind": "clients", "preset": preset, **rate}}
    yield from _composed()
    for section in get_args(OpenArrivals):
        example = parse_yaml(section.example, "example")
        own = {"file": trace["file"]} if example["kind"] == "trace" else {}
        yield f"example {example['kind']}", {"arrivals": {**example, **own}}
    yield "speed", {"arrivals": {**UNITS["gamma"], **rate}, "speed": "12345/6789"}
    yield "speed of a trace", {"arrivals": trace, "speed": "6789/12345"}
    for name, rows in ROWS.items():
        yield f"rows {name}", {"arrivals": {"kind": "constant", **rate}, "rows": rows}
    of_file = {"kind": "empirical", "file": trace["file"], "size": "tokens", "per_row": 3.7, "max": 200}
    yield "rows empirical of a file", {"arrivals": {"kind": "constant", **rate}, "rows": of_file}
    yield from _replayed(folder, trace)
    for name, think in THINKS.items():
        closed = {"kind": "closed", "users": 5, "think": think, "ramp": "10ms"}
        yield f"closed {name}", {"arrivals": closed, "rows": ROWS["lognormal"]}
    yield from _routed(trace)
    yield from _of_several_models()


def _of_several_models() -> Iterator[tuple[str, Mapped]]:
    """Three models, one of them without a share in the phase, on servers that serve different ones."""
    rows = ("lognormal", "uniform", "zipf")
    models = [{"name": f"m{n}", "rows": ROWS[name], "payload_variants": 3 + n} for n, name in enumerate(rows)]
    shares = {"m0": 0.7, "m2": 2.1}
    yield "models, closed", {"arrivals": {"kind": "closed", "users": 90}, "models": models, "shares": shares}
    for index, served in enumerate(([0, 1], [1], [2, 1])):
        models[index] |= {"servers": served}
    served_apart = {"models": models, "shares": shares, "servers": {"count": 3}}
    yield "models", {"arrivals": {**UNITS["gamma"], "rate": RATE}, **served_apart}


def _routed(trace: Mapped) -> Iterator[tuple[str, Mapped]]:
    """To three servers; of equal weights only where the routing takes no others."""
    for kind in _planned_routing():
        weights = (1.0, 2.5, 0.7) if kind in WEIGHED else (1.0, 1.0, 1.0)
        several = {
            "servers": [{"weight": weight} for weight in weights],
            "clients": {"routing": {"kind": kind, **({"column": "session"} if kind == "trace" else {})}},
        }
        yield f"routing {kind}", {"arrivals": trace, **several}
        if kind not in ("mirror", "trace"):
            yield f"routing {kind}, closed", {"arrivals": {"kind": "closed", "users": 90}, **several}
    alike = {"servers": {"count": 5}, "clients": {"routing": {"kind": "sticky"}}}
    yield "routing sticky, alike", {"arrivals": trace, **alike}


def _planned_routing() -> list[RoutingKind]:
    return [kind for kind in get_args(RoutingKind) if RoutingConfig(kind=kind).is_planned]


def _composed() -> Iterator[tuple[str, Mapped]]:
    parts = [
        {"kind": "poisson", "rate": "900/s"},
        {**UNITS["gamma"], "rate": "2000/s"},
        {**PLAIN["fgn"], "rate": "700/s"},
    ]
    yield "superpose", {"arrivals": {"kind": "superpose", "parts": parts}}
    stretches = [{"duration": "700ms", "arrivals": part} for part in parts]
    yield "concatenate", {"arrivals": {"kind": "concatenate", "parts": stretches}}


def _replayed(folder: Path, trace: Mapped) -> Iterator[tuple[str, Mapped]]:
    yield "trace", {"arrivals": trace, "rows": TRACE_ROWS}
    yield "trace, looped", {"arrivals": {**trace, "length": "700ms", "loop": True}}
    yield "trace, stretched", {"arrivals": {**trace, "time_scale": "7/3", "start": "300ms"}}
    yield "trace, spread", {"arrivals": {**trace, "quantum": "spread", "quantum_width": "30ms"}}
    for name, scale in SCALES.items():
        window = {"length": "1s"} if name == "overlap" else {}
        yield f"scale {name}", {"arrivals": {**trace, **window, "rate_scale": scale}, "rows": TRACE_ROWS}
    for deal in get_args(DealRule):
        yield f"deal {deal}", {"arrivals": trace, "clients": {"deal": deal}}
    counts = {"kind": "trace", "file": str(folder / "counts.csv"), "format": "counts"}
    yield "counts, spread", {"arrivals": {**counts, "quantum": "spread", "quantum_width": "1s"}}
    servegen = {"kind": "trace", "file": str(folder / "clients.csv"), "format": "servegen"}
    yield "servegen", {"arrivals": servegen, "duration": "60s"}


def _known() -> dict[str, set[str]]:
    found = {
        "arrivals": (_kinds(ArrivalsConfig) | {"closed"}) - {"locust"},  # a locustfile says what those are
        "shape": _kinds(AnyShape),
        "residual": _kinds(Residual),
        "sojourn": _kinds(Sojourn),
        "rows": _kinds(RowsConfig),
        "think": _kinds(ThinkConfig),
        "scale": _kinds(RateScaleConfig),
        "deal": set(get_args(DealRule)),
        "routing": set(_planned_routing()),
        # the others are read into whole numbers and drawn in no way of their own
        "format": {name for name in FORMATS if name in ("servegen", "counts")},
    }
    for model in get_args(OpenArrivals):
        if "preset" in model.model_fields:
            names = ClientPresetName if model is ClientsArrivals else PresetName
            found[f"{model.model_fields['kind'].annotation.__args__[0]} preset"] = set(get_args(names))
    return found


def _kinds(union: Any) -> set[str]:
    """The kinds of a union of sections, told by `kind`."""
    return {get_args(section.model_fields["kind"].annotation)[0] for section in get_args(get_args(union)[0])}


def _used(scenario: Scenario) -> Iterator[str]:
    yield f"deal {scenario.clients.deal}"
    if scenario.stated_servers is not None:
        yield f"routing {scenario.clients.routing.kind}"
    for phase in scenario.phases:
        if phase.arrivals is not None:
            yield f"rows {(phase.rows or scenario.clients.rows).kind}"
            yield from _used_by(phase.arrivals)


def _used_by(arrivals: Any) -> Iterator[str]:
    yield f"arrivals {arrivals.kind}"
    for part in getattr(arrivals, "parts", ()):
        yield from _used_by(getattr(part, "arrivals", part))
    if isinstance(arrivals, Fitted) and arrivals.preset is not None:
        yield f"{arrivals.kind} preset {arrivals.preset}"
    for name, what in (
        ("shape", "shape"), ("residual", "residual"), ("on", "sojourn"), ("off", "sojourn"), ("think", "think"),
        ("rate_scale", "scale"),
    ):  # fmt: skip
        section: Any = getattr(arrivals, name, None)
        if hasattr(section, "kind"):
            yield f"{what} {section.kind}"
    if getattr(arrivals, "format", None) is not None:
        yield f"format {arrivals.format}"
