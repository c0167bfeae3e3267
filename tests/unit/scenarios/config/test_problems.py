"""Faults of a scenario: each is one line with file, key path, what stands there and what is allowed."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from squall.scenarios.arrivals.kinds import OpenArrivals
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.strict_yaml import parse_yaml

POISSON = {"kind": "poisson", "rate": "5/s"}
ARRIVALS = ("phases", 0, "arrivals")
ENVELOPE = {"kind": "envelope", "rate": "5/s"}
RATE = {"rate": "5/s"}
KINDS = ", ".join(parse_yaml(kind.example, "example")["kind"] for kind in get_args(OpenArrivals))
STATE = {"level": 1, "stay": "1s"}
SECOND = {"kind": "exponential", "mean": "1s"}


def base() -> dict[str, Any]:
    return {
        "name": "small",
        "seed": 0,
        "model": {"name": "head", "max_batch_size": 16},
        "phases": [
            {"name": "main", "kind": "measure", "duration": "3s", "arrivals": dict(POISSON)},
            {"name": "end", "kind": "drain", "duration": "1s"},
        ],
    }


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """`base()` with the value at `path` replaced, or removed where `value` is `...`."""
    mapping: Any = base()
    here = mapping
    for part in path[:-1]:
        here = here[part]
    if value is ...:
        del here[path[-1]]
    else:
        here[path[-1]] = value
    return dict(mapping)


def problem_of(mapping: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_mapping(mapping, "s.yaml")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("s.yaml: ")
    return text.removeprefix("s.yaml: ")


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        # unknown and missing keys
        (
            (*ARRIVALS,),
            {"kind": "poisson", "rat": "5/s"},
            "phases[0].arrivals.rat: unknown key, did you mean 'rate'?",
        ),
        (("sede",), 1, "sede: unknown key, did you mean 'seed'?"),
        (
            ("model", "xyz"),
            1,
            "model.xyz: unknown key, allowed are compile, cuda_graphs, device, framework, instances, max_batch_size,"
            " name, pinned, precision,"
            " preferred_batch_sizes, preserve_ordering, queue, queue_delay, repository, settings, shapes, version,"
            " weights",
        ),
        (
            ("clients",),
            {"rows": {"kind": "uniform", "low": 1, "hihg": 2}},
            "clients.rows.hihg: unknown key, did you mean 'high'?",
        ),
        (
            (*ARRIVALS,),
            {**ENVELOPE, "preset": "nasa-web", "residual": {"kind": "poisson", "cv": 1}},
            "phases[0].arrivals.residual.cv: unknown key, allowed are kind",
        ),
        (("phases", 0, "duration_ns"), 3, "phases[0].duration_ns: unknown key, did you mean 'duration'?"),
        (("seed",), ..., "seed: missing, it must be given"),
        ((*ARRIVALS, "rate"), ..., "phases[0].arrivals.rate: missing, it must be given"),
        # wrong types
        (("seed",), True, "seed: True is not a whole number"),
        (("seed",), "1", "seed: '1' is not a whole number"),
        (("seed",), -1, "seed: -1 must be at least 0"),
        (("name",), 7, "name: 7 is not a text, put it in quotes"),
        (("name",), "A b", "name: 'A b' must be small letters, digits and hyphens"),
        (("name",), "a" * 65, f"name: '{'a' * 56}... is too long, the most characters are 64"),
        (("model",), 3, "model: 3 is not a mapping"),
        (("model", "name"), "", "model.name: '' is empty"),
        (("model", "version"), 0, "model.version: '0' must be a whole number from 1"),
        (("model", "settings"), {"width": "x"}, "model.settings.width: 'x' is not a whole number"),
        (("model", "settings"), [1], "model.settings: [1] is not a mapping"),
        (("model", "preferred_batch_sizes"), 4, "model.preferred_batch_sizes: 4 is not a list"),
        (("phases",), [], "phases: [] is empty, it needs at least one entry"),
        (("phases",), [3], "phases[0]: 3 is not a mapping"),
        # durations, rates, numbers
        (
            ("phases", 0, "duration"),
            3,
            "phases[0].duration: 3 has no unit, write a duration such as 30s, 250ms or 2m",
        ),
        (("phases", 0, "duration"), "0s", "phases[0].duration: '0s' must be above 0"),
        (
            (*ARRIVALS, "rate"),
            200,
            "phases[0].arrivals.rate: 200 has no unit, write a rate such as 200/s, 12000/min or 0.5 kHz",
        ),
        ((*ARRIVALS, "rate"), "-5/s", "phases[0].arrivals.rate: '-5/s' is negative, a rate is 0 or more"),
        ((*ARRIVALS, "rate"), "0/s", "phases[0].arrivals.rate: '0/s' must be above 0"),
        (
            (*ARRIVALS, "rate"),
            "nan/s",
            "phases[0].arrivals.rate: 'nan/s' is not a rate, write for example 200/s, 12000/min or 0.5 kHz",
        ),
        (
            (*ARRIVALS, "rate"),
            float("inf"),
            "phases[0].arrivals.rate: inf is not a rate, write for example 200/s, 12000/min or 0.5 kHz",
        ),
        (
            (*ARRIVALS,),
            {**POISSON, "kind": "gamma", "cv": float("nan")},
            "phases[0].arrivals.cv: nan is not a finite number",
        ),
        (
            (*ARRIVALS,),
            {**POISSON, "kind": "gamma", "cv": True},
            "phases[0].arrivals.cv: True is not a number",
        ),
        # choices
        (
            (*ARRIVALS, "kind"),
            "poison",
            "phases[0].arrivals: kind 'poison' is unknown, did you mean 'poisson'?",
        ),
        (
            (*ARRIVALS, "kind"),
            "bursty",
            f"phases[0].arrivals: kind 'bursty' is unknown, use {KINDS}, closed, locust",
        ),
        (
            (*ARRIVALS, "kind"),
            ...,
            f"phases[0].arrivals: needs a kind: {KINDS}, closed, locust",
        ),
        (
            (*ARRIVALS,),
            {**ENVELOPE, "preset": "nasa"},
            "phases[0].arrivals.preset: 'nasa' must be 'azure-conversation',"
            " 'mooncake-conversation', 'nasa-web' or 'nasa-flash-crowd'",
        ),
        (
            ("phases", 0, "kind"),
            "measured",
            "phases[0].kind: 'measured' must be 'warmup', 'measure' or 'drain'",
        ),
        (
            ("profile",),
            {"triton_interval": "1ns"},
            "profile.triton_interval: '1ns' must be at least 10ms",
        ),
        (("profile",), {"nsys": False}, "profile.nsys: False must be 'auto', 'off' or 'required'"),
        (
            ("server",),
            {"url": "localhost:8000"},
            "server.url: 'localhost:8000' must be of the form http://host:port or https://host:port",
        ),
        (("server",), {"http_port": 70000}, "server.http_port: 70000 must be at most 65535"),
        (("clients",), {"payload_variants": 65_537}, "clients.payload_variants: 65537 must be at most 65536"),
        # parts that do not fit
        (
            (*ARRIVALS,),
            {**POISSON, "kind": "gamma"},
            "phases[0].arrivals: needs exactly one of cv and burstiness",
        ),
        (
            (*ARRIVALS,),
            {**POISSON, "kind": "gamma", "cv": 4},
            "phases[0].arrivals: gaps with cv² 16 are above 10: such a gamma sends"
            " batches and pauses; use kind 'mmpp', 'hawkes' or 'envelope' for stronger bursts",
        ),
        (
            (*ARRIVALS,),
            {**POISSON, "kind": "gamma", "burstiness": 0.05},
            "phases[0].arrivals: gaps with cv² 20 are above 10: such a gamma"
            " sends batches and pauses; use kind 'mmpp', 'hawkes' or 'envelope' for stronger bursts",
        ),
        ((*ARRIVALS,), ENVELOPE, "phases[0].arrivals: needs exactly one of preset, curve and shape"),
        (
            (*ARRIVALS,),
            {**ENVELOPE, "curve": [1]},
            "phases[0].arrivals: a curve needs bin, the width of each of its values, such as 60s",
        ),
        (
            (*ARRIVALS,),
            {**ENVELOPE, "curve": [0, 0], "bin": "1s"},
            "phases[0].arrivals: a curve needs a value above 0",
        ),
        (
            (*ARRIVALS,),
            {**ENVELOPE, "curve": [1, -1], "bin": "1s"},
            "phases[0].arrivals.curve[1]: -1 must be at least 0",
        ),
        (
            (*ARRIVALS,),
            {**ENVELOPE, "curve": [0, 1], "bin": "3s"},
            "phases[0]: the curve is 0 over the whole phase, which holds its first 1 bins",
        ),
        (
            (*ARRIVALS,),
            {**ENVELOPE, "preset": "nasa-web", "residual": {"kind": "hawkes", "n": 1.2, "beta": 1}},
            "phases[0].arrivals.residual.n: 1.2 must be at most 0.99",
        ),
        (
            (*ARRIVALS,),
            {"kind": "trace", "file": "a", "quantum": "spread"},
            "phases[0].arrivals: quantum 'spread' and quantum_width, the tick of the trace, go together",
        ),
        ((*ARRIVALS,), ..., "phases[0]: a measure phase needs arrivals"),
        (("phases", 1, "arrivals"), POISSON, "phases[1]: a drain sends nothing, remove arrivals"),
        (
            (*ARRIVALS, "rate"),
            "1e9/s",
            "phases[0]: 3,000,000,000 requests are above the 100,000,000 of a phase",
        ),
        (
            ("phases", 1, "duration"),
            "9223372036s",
            "phases: together they are longer than the 292 years of an int64 in ns",
        ),
        (("phases", 1), ..., "phases: the last one, 'main', must be of kind 'drain'"),
        (("phases", 0, "kind"), "warmup", "phases: at least one must be of kind 'measure'"),
        (("phases", 1, "name"), "main", "phases: the name 'main' is used twice"),
        (
            ("clients",),
            {"rows": {"kind": "constant", "value": 17}},
            "clients.rows: up to 17 rows are above model.max_batch_size 16",
        ),
        (
            ("clients",),
            {"rows": {"kind": "uniform", "low": 3, "high": 2}},
            "clients.rows: low 3 is above high 2",
        ),
        (
            ("clients",),
            {"rows": {"kind": "pareto", "alpha": 1, "min": 3, "max": 2}},
            "clients.rows: min 3 is above max 2",
        ),
        (
            ("model", "preferred_batch_sizes"),
            [4, 17],
            "model: preferred batch size 17 is above max_batch_size 16",
        ),
        (
            ("server",),
            {"url": "http://gpu-1:8000", "image": "x"},
            "server: url (a server that runs) and image (one to start) exclude each other",
        ),
        (("server",), {"runtime": "docker"}, "server: runtime needs image"),
        *(
            (
                ("server",),
                {"image": image},
                f"server.image: {image!r} must be the name of an image: one word that begins with a letter or a digit",
            )
            for image in ("--privileged", "a b", "-v/:/host", "a\n")
        ),
        (("server",), {"url": "https://gpu-1:65536"}, "server: url: port 65536 is above 65535"),
        (
            ("clients",),
            {"tls": {}},
            "clients.tls: needs server.url, a server that squall starts speaks no TLS",
        ),
        (
            ("clients",),
            {"tls": {"certificate": "me.pem"}},
            "clients.tls: certificate and key, the client's own, go together",
        ),
        (
            ("clients",),
            {"headers": {"X": "s\u00e9cret"}},
            "clients.headers.X: its value must be printable ASCII",
        ),
        (
            ("clients",),
            {"headers": {"X": 123456}},
            "clients.headers.X: its value is not a text, put it in quotes",
        ),
        (("records",), {"bandwidth": "0MB/s"}, "records.bandwidth: 0 must be above 0"),
        (("records",), {"bandwidth": 5}, "records.bandwidth: 5 is not a bandwidth, write for example 50MB/s"),
        (("records",), {"fetch": "later"}, "records.fetch: 'later' must be 'after' or 'during'"),
        (("expect",), {"failures": 1.5}, "expect.failures: 1.5 must be at most 1"),
        (("expect",), {"failures": -0.1}, "expect.failures: -0.1 must be at least 0"),
        (("expect",), {"failures": "1%"}, "expect.failures: '1%' is not a number"),
        (("expect",), {"failure": 0}, "expect.failure: unknown key, did you mean 'failures'?"),
    ],
)
def test_a_fault_is_one_line_that_says_where_what_and_what_is_allowed(
    path: tuple[str | int, ...], value: object, problem: str
) -> None:
    assert problem_of(changed(path, value)) == problem


def test_tls_of_http_needs_an_https_url_and_tls_of_grpc_does_not() -> None:
    mapping = {**base(), "server": {"url": "http://gpu-1:8000"}, "clients": {"tls": {}}}
    assert problem_of(mapping) == (
        "clients.tls: over protocol http it needs an https:// server.url, not 'http://gpu-1:8000'"
    )
    mapping["clients"]["protocol"] = "grpc"
    assert scenario_from_mapping(mapping, "s.yaml").clients.tls is not None


@pytest.mark.parametrize("url", ["https://gpu-1", "https://gpu-1:8443/", "http://10.0.0.1:8000"])
def test_a_server_is_named_by_http_with_its_port_or_by_https(url: str) -> None:
    assert scenario_from_mapping({**base(), "server": {"url": url}}, "s.yaml").server.url == url


@pytest.mark.parametrize("url", ["http://gpu-1", "https://gpu-1:0", "ftp://gpu-1:1", "https://gpu-1/v2"])
def test_any_other_url_is_refused(url: str) -> None:
    said = f"server.url: {url!r} must be of the form http://host:port or https://host:port"
    assert problem_of({**base(), "server": {"url": url}}) == said


def test_the_first_of_several_problems_is_the_most_specific_and_the_others_are_counted() -> None:
    mapping = base()
    del mapping["name"]
    mapping["seed"] = -1
    mapping["modle"] = {}
    assert problem_of(mapping) == "modle: unknown key, did you mean 'model'? (and 2 more)"


def test_a_mistyped_key_is_one_problem_not_also_a_missing_key() -> None:
    mapping = base()
    mapping["sed"] = mapping.pop("seed")
    assert problem_of(mapping) == "sed: unknown key, did you mean 'seed'?"


def superposed(*parts: object) -> dict[str, Any]:
    return {"kind": "superpose", "parts": list(parts)}


def stretch(arrivals: object, **keys: object) -> dict[str, Any]:
    return {"kind": "concatenate", "parts": [{"duration": "1s", "arrivals": arrivals, **keys}]}


@pytest.mark.parametrize(
    ("arrivals", "problem"),
    [
        ({"kind": "weibull", **RATE}, ": needs exactly one of shape and cv"),
        ({"kind": "weibull", **RATE, "shape": 1, "cv": 1}, ": needs exactly one of shape and cv"),
        ({"kind": "lognormal", **RATE}, ".cv: missing, it must be given"),
        ({"kind": "lognormal", **RATE, "cv": 0}, ".cv: 0 must be above 0"),
        ({"kind": "pareto", **RATE}, ": needs exactly one of alpha and cv"),
        ({"kind": "pareto", **RATE, "alpha": 1}, ".alpha: 1 must be at least 1.05"),
        ({"kind": "pareto", **RATE, "cv": 1}, ".cv: 1 must be above 1"),
        ({"kind": "hyperexponential", **RATE, "cv": 0.5}, ".cv: 0.5 must be at least 1"),
        ({"kind": "hawkes", **RATE}, ": needs exactly one of: preset; n and beta"),
        ({"kind": "hawkes", **RATE, "n": 0.5}, ": needs exactly one of: preset; n and beta"),
        (
            {"kind": "hawkes", **RATE, "n": 0.5, "preset": "nasa-web"},
            ": needs exactly one of: preset; n and beta",
        ),
        ({"kind": "hawkes", **RATE, "n": 1, "beta": "1/s"}, ".n: 1 must be at most 0.99"),
        (
            {"kind": "hawkes", **RATE, "n": 0.5, "beta": 3},
            ".beta: 3 has no unit, write a rate such as 200/s, 12000/min or 0.5 kHz",
        ),
        ({"kind": "mmpp", **RATE}, ": needs exactly one of: preset; peak, base and tau; states"),
        (
            {"kind": "mmpp", **RATE, "peak": 2, "base": 0.5},
            ": needs exactly one of: preset; peak, base and tau; states",
        ),
        ({"kind": "mmpp", **RATE, "peak": 1, "base": 0.5, "tau": "1s"}, ".peak: 1 must be above 1"),
        ({"kind": "mmpp", **RATE, "peak": 2, "base": 1, "tau": "1s"}, ".base: 1 must be below 1"),
        (
            {"kind": "mmpp", **RATE, "peak": 2, "base": 0.5, "tau": "1s", "jumps": [[0, 1], [1, 0]]},
            ": jumps need states",
        ),
        (
            {"kind": "mmpp", **RATE, "states": [STATE]},
            ".states: [{'level': 1, 'stay': '1s'}] has too few entries, the least are 2",
        ),
        (
            {"kind": "mmpp", **RATE, "states": [STATE, {"level": 1, "stay": "0s"}]},
            ".states[1].stay: '0s' must be above 0",
        ),
        (
            {"kind": "mmpp", **RATE, "states": [STATE] * 3},
            ": more than two states need jumps: for each state the probability of each next one",
        ),
        (
            {"kind": "mmpp", **RATE, "states": [STATE] * 2, "jumps": [[0, 2], [1, 0]]},
            ".jumps[0][1]: 2 must be at most 1",
        ),
        ({"kind": "on-off", **RATE, "on": SECOND}, ".off: missing, it must be given"),
        (
            {"kind": "on-off", **RATE, "on": SECOND, "off": {"mean": "1s"}},
            ".off: needs a kind: exponential, pareto",
        ),
        (
            {"kind": "on-off", **RATE, "on": {"kind": "pareto", "mean": "1s", "alpha": 1}, "off": SECOND},
            ".on.alpha: 1 must be at least 1.05",
        ),
        (
            {"kind": "on-off", **RATE, "sources": 0, "on": SECOND, "off": SECOND},
            ".sources: 0 must be at least 1",
        ),
        ({"kind": "fgn", **RATE, "hurst": 0.9}, ": needs exactly one of: preset; hurst and sigma"),
        ({"kind": "fgn", **RATE, "hurst": 1, "sigma": 1}, ".hurst: 1 must be below 1"),
        ({"kind": "fgn", **RATE, "hurst": 0.9, "sigma": 5}, ".sigma: 5 must be at most 4"),
        ({"kind": "b-model", **RATE}, ": needs exactly one of bias and preset"),
        ({"kind": "b-model", **RATE, "bias": 0.4}, ".bias: 0.4 must be at least 0.5"),
        ({"kind": "b-model", **RATE, "bias": 1}, ".bias: 1 must be below 1"),
        (
            {**ENVELOPE, "shape": {"kind": "piecewise", "points": []}},
            ".shape.points: [] is empty, it needs at least one entry",
        ),
        (
            {
                **ENVELOPE,
                "shape": {
                    "kind": "piecewise",
                    "points": [{"at": "2s", "level": 1}, {"at": "1s", "level": 1}],
                },
            },
            ".shape: the points must rise in time",
        ),
        ({**ENVELOPE, "shape": {"kind": "ramp", "from": -1, "to": 0}}, ".shape.from: -1 must be at least 0"),
        (
            {**ENVELOPE, "shape": {"kind": "spike", "at": "0s", "width": "0s", "factor": 1}},
            ".shape.width: '0s' must be above 0",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "pulses", "factor": 2, "width": "2s", "period": "2s"}},
            ".shape: width must be shorter than period",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "diurnal", "peak": 3, "period": "2s"}},
            ".shape.peak: 3 must be at most 2",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "log-ar1", "sigma": 0, "tau": "1s", "bin": "1s"}},
            ".shape.sigma: 0 must be above 0",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "fgn", "sigma": 1, "hurst": 0, "bin": "1s"}},
            ".shape.hurst: 0 must be above 0",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "step", "at": "0s", "factor": 1}, "bin": "1s"},
            ": bin is for a curve or a preset; a shape has its own times",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "stepp", "at": "0s"}},
            ".shape: kind 'stepp' is unknown, did you mean 'step'?",
        ),
        (
            {**ENVELOPE, "shape": {"at": "0s"}},
            ".shape: needs a kind: piecewise, ramp, step, spike, pulses, diurnal, log-ar1, fgn, trace",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "step", "att": "0s", "factor": 1}},
            ".shape.att: unknown key, did you mean 'at'?",
        ),
        (
            {**ENVELOPE, "shape": {"kind": "trace", "file": "x", "quantum": "spread"}},
            ".shape: quantum 'spread' and quantum_width, the tick of the trace, go together",
        ),
        ({"kind": "clients", **RATE}, ": needs exactly one of: preset; clients, zipf and cv"),
        ({"kind": "clients", **RATE, "clients": 3, "zipf": 1, "cv": 4}, ": cv² 16 is above 10"),
        ({"kind": "clients", **RATE, "clients": 0, "zipf": 1, "cv": 1}, ".clients: 0 must be at least 1"),
        ({"kind": "clients", **RATE, "client": 3}, ".client: unknown key, did you mean 'clients'?"),
        (
            {"kind": "clients", **RATE, "preset": "servegen-mid", "zipf": 1},
            ": needs exactly one of: preset; clients, zipf and cv",
        ),
        ({"kind": "ticks", **RATE, "period": "0s"}, ".period: '0s' must be above 0"),
        (
            {"kind": "trace", "file": "a", "time_scale": "1/0"},
            ".time_scale: '1/0' is not a ratio, write for example 1/60, 2 or 0.25",
        ),
        (
            {"kind": "trace", "file": "a", "time_scale": True},
            ".time_scale: True is not a ratio, write for example 1/60, 2 or 0.25",
        ),
        (
            {"kind": "trace", "file": "a", "time_scale": 0},
            ".time_scale: 0 must be above 0, with numerator and denominator up to 1,000,000,000",
        ),
        (
            {"kind": "trace", "file": "a", "rate_scale": {"kind": "thin", "keep": 2}},
            ".rate_scale.keep: 2 must be at most 1",
        ),
        (
            {"kind": "trace", "file": "a", "rate_scale": {"kind": "overlap", "copies": 1}},
            ".rate_scale.copies: 1 must be at least 2",
        ),
        (
            {"kind": "trace", "file": "a", "rate_scale": {"kind": "envelop", "factor": 2}},
            ".rate_scale: kind 'envelop' is unknown, did you mean 'envelope'?",
        ),
        (
            {"kind": "trace", "file": "a", "repair": ["sort", "x"]},
            ".repair[1]: 'x' must be 'sort', 'skip-bad', 'drop-duplicates' or 'clip-negative'",
        ),
        # nested
        (superposed(), ".parts: [] is empty, it needs at least one entry"),
        (
            superposed(POISSON, {"kind": "poisson", "rat": "5/s"}),
            ".parts[1].rat: unknown key, did you mean 'rate'?",
        ),
        (superposed(POISSON, {"kind": "poisson"}), ".parts[1].rate: missing, it must be given"),
        (
            superposed(POISSON, {"kind": "poisson", "rate": 5}),
            ".parts[1].rate: 5 has no unit, write a rate such as 200/s, 12000/min or 0.5 kHz",
        ),
        (
            superposed(POISSON, {"kind": "poison", "rate": "5/s"}),
            ".parts[1]: kind 'poison' is unknown, did you mean 'poisson'?",
        ),
        (superposed({"kind": "closed", "users": 3}), f".parts[0]: kind 'closed' is unknown, use {KINDS}"),
        (superposed({"rate": "5/s"}), f".parts[0]: needs a kind: {KINDS}"),
        (
            superposed(superposed(POISSON, {**ENVELOPE, "shape": {"kind": "step", "at": "1s", "factr": 2}})),
            ".parts[0].parts[1].shape.factr: unknown key, did you mean 'factor'?",
        ),
        (
            superposed({"kind": "gamma", "rate": "5/s"}),
            ".parts[0]: needs exactly one of cv and burstiness",
        ),
        (
            {"kind": "superpose", "parts": {"kind": "gamma"}},
            ".parts: {'kind': 'gamma'} is not a list",
        ),
        (stretch({"kind": "poisson"}), ".parts[0].arrivals.rate: missing, it must be given"),
        (stretch(POISSON, duration="0s"), ".parts[0].duration: '0s' must be above 0"),
        (stretch({"kind": "xyz"}), f".parts[0].arrivals: kind 'xyz' is unknown, use {KINDS}"),
        (
            stretch(stretch({"kind": "clients", "rate": "1/s", "clients": 2, "zipf": -1, "cv": 1})),
            ".parts[0].arrivals.parts[0].arrivals.zipf: -1 must be at least 0",
        ),
        (
            {"kind": "concatenate", "parts": [POISSON]},
            ".parts[0].kind: unknown key, allowed are arrivals, duration (and 3 more)",
        ),
    ],
)
def test_a_fault_of_arrivals_names_its_place_however_deep(arrivals: dict[str, Any], problem: str) -> None:
    assert problem_of(changed(ARRIVALS, arrivals)) == f"phases[0].arrivals{problem}"


@pytest.mark.parametrize(
    "arrivals",
    [
        superposed({"kind": "poisson", "rate": "2e7/s"}, {"kind": "poisson", "rate": "2e7/s"}),
        stretch({"kind": "poisson", "rate": "4e7/s"}, duration="3s"),
    ],
)
def test_the_requests_of_all_parts_are_counted(arrivals: dict[str, Any]) -> None:
    assert (
        problem_of(changed(ARRIVALS, arrivals))
        == "phases[0]: 120,000,000 requests are above the 100,000,000 of a phase"
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"kind": "zipf", "exponent": -1, "max": 3}, "phases[0].rows.exponent: -1 must be at least 0"),
        ({"kind": "zipf", "exponent": 1}, "phases[0].rows.max: missing, it must be given"),
        (
            {"kind": "zipf", "exponent": 1, "max": 17},
            "phases.main.rows: up to 17 rows are above model.max_batch_size 16",
        ),
        ({"kind": "empirical"}, "phases[0].rows: needs exactly one of values and file"),
        ({"kind": "empirical", "values": [0]}, "phases[0].rows.values[0]: 0 must be at least 1"),
        (
            {"kind": "empirical", "values": []},
            "phases[0].rows.values: [] is empty, it needs at least one entry",
        ),
        (
            {"kind": "empirical", "values": [1], "weights": [1, 2]},
            "phases[0].rows: weights need as many values",
        ),
        (
            {"kind": "empirical", "values": [1, 2], "weights": [0, 0]},
            "phases[0].rows: weights need one above 0",
        ),
        (
            {"kind": "empirical", "values": [2, 17]},
            "phases.main.rows: up to 17 rows are above model.max_batch_size 16",
        ),
        (
            {"kind": "empirical", "file": "x"},
            "phases[0].rows: rows from a file need size, the column, and max, the most rows of a request",
        ),
        (
            {"kind": "trace", "size": "a", "max": 4},
            "phases.main.rows: kind 'trace' is for phases whose arrivals are a trace; give phases.main.rows of its"
            " own, such as kind 'empirical' with the same file",
        ),
    ],
)
def test_a_fault_of_the_rows_of_a_phase_names_it(rows: dict[str, Any], problem: str) -> None:
    assert problem_of(changed(("phases", 0, "rows"), rows)) == problem


def test_rows_of_a_trace_go_with_arrivals_of_a_trace() -> None:
    mapping = changed(ARRIVALS, {"kind": "trace", "file": "a"})
    mapping["clients"] = {"rows": {"kind": "trace", "size": "tokens", "max": 16}}
    scenario = scenario_from_mapping(mapping, "s.yaml")
    assert scenario.rows_of(scenario.phases[0]).kind == "trace"
    mapping["phases"][0]["rows"] = {"kind": "constant", "value": 2}
    scenario = scenario_from_mapping(mapping, "s.yaml")
    assert scenario.rows_of(scenario.phases[0]).kind == "constant"
