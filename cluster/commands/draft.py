"""The text of a scenario for a model of a running server: every key with a comment, guesses marked as such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from shlex import quote
from typing import Literal

from squall.analysis.wording import duration_text
from squall.cluster.commands.draft_lines import Line, scalar, written
from squall.cluster.commands.guessed_inputs import N_VARIANTS, input_lines, is_drawn
from squall.cluster.commands.headers import allowing
from squall.cluster.commands.served_models import ServedModel
from squall.scenarios.fields import slug
from squall.scenarios.records import Frozen
from squall.scenarios.sizes import LARGEST_BATCH
from squall.scenarios.units import NS_PER_S, format_rate

Protocol = Literal["http", "grpc"]
_RATE_HZ = 20.0
_BUSY_SHARE = 0.3
"""Of one instance, which at that rate is the most that requests keep busy if each is executed alone."""
_NAME_CHARACTERS = 64
_RAISE = (
    "modest: raise it here, or with --set phases.measure.arrivals.rate=200/s, and the warm-up's to twice that; the"
    " most: `squall capacity`"
)


class Wanted(Frozen):
    """What the user asked for beside the model; `version` None: the latest that is ready when a run starts."""

    urls: tuple[str, ...]
    protocol: Protocol
    version: str | None
    grpc_port: int | None
    file: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def draft(model: ServedModel, steps: Sequence[str], wanted: Wanted) -> str:
    """The scenario file. `steps`: of an ensemble the models that its steps end in."""
    return written(
        [
            *_head(model, steps, wanted), Line(""),
            *_model(model, wanted), Line(""),
            *_server(wanted), Line(""),
            *_clients(model, wanted), Line(""),
            *_phases(model), Line(""),
            *_profile(), Line(""),
            *_promises(),
        ]
    )  # fmt: skip


def _head(model: ServedModel, steps: Sequence[str], wanted: Wanted) -> Iterator[Line]:
    yield Line(
        "", f"Written by `squall init` from what {wanted.urls[0]} says of its model {scalar(model.name)}."
    )
    command = f"squall run {quote(wanted.file)}{allowing(wanted.headers)}"
    yield Line("", f"`{command}` sends the load; with --dry-run it says what it would send.")
    yield Line(
        "", "What it calls a guess is one: put there what your callers send. All keys: docs/scenario.md."
    )
    if steps:
        yield Line("", f"The model is an ensemble, its steps end in {', '.join(map(scalar, steps))}.")
    if model.n_answered:
        yield Line(
            "",
            f"It has answered {model.n_answered:,} requests; an execution took {duration_text(model.infer_ns)} on"
            " average.",
        )
    yield Line(
        f"name: {scalar(slug(model.name)[:_NAME_CHARACTERS])}",
        "names the run: small letters, digits and hyphens",
    )
    yield Line("seed: 1", "the same seed gives the same schedule and payloads on any cluster")


def _model(model: ServedModel, wanted: Wanted) -> Iterator[Line]:
    yield Line("model:", "what is loaded")
    yield Line(f"  name: {scalar(model.name)}", "as the server calls it")
    if wanted.version is not None:
        yield Line(f'  version: "{wanted.version}"', "as asked for; without it the latest that is ready")
    if model.spec.is_batched:
        most = min(model.spec.max_batch_size, LARGEST_BATCH)
        yield Line(f"  max_batch_size: {most}", "most rows of a request, of the server's configuration")
    else:
        yield Line("  max_batch_size: 1", "the model has no batch dimension: a request is one row")


def _server(wanted: Wanted) -> Iterator[Line]:
    if len(wanted.urls) == 1:
        yield Line("server:", "where it runs; squall starts none")
        yield Line(f"  url: {scalar(wanted.urls[0])}", "its HTTP port, which says what it serves")
        yield from _ports(wanted, "  ")
        return
    yield Line("servers:", "several under one schedule: docs/servers.md")
    for url in wanted.urls:
        yield Line(f"  - url: {scalar(url)}", "its HTTP port, which says what it serves")
        yield from _ports(wanted, "    ")


def _ports(wanted: Wanted, indent: str) -> Iterator[Line]:
    if wanted.grpc_port is not None:
        yield Line(f"{indent}grpc_port: {wanted.grpc_port}", "its gRPC port")
    yield Line(
        f"{indent}# metrics_port: 8002", "its metrics, sampled too where they are served: Triton's default"
    )


def _clients(model: ServedModel, wanted: Wanted) -> Iterator[Line]:
    spec = model.spec
    is_several = is_drawn(spec)
    yield Line("clients:", "who sends")
    yield Line("  workers_per_node: 2", "load generators, one core each")
    yield Line(f"  protocol: {wanted.protocol}", "or grpc" if wanted.protocol == "http" else "or http")
    yield Line("  timeout: 5s", "a request without an answer by then has the outcome `timeout`")
    yield Line("  rows:", "rows of each request")
    yield Line("    kind: constant", "or uniform, lognormal, pareto, zipf, empirical: docs/arrivals.md")
    most = spec.max_batch_size if spec.is_batched else 1
    yield Line("    value: 1", f"up to max_batch_size, {most}" if most > 1 else "the model takes no more")
    yield Line(
        f"  payload_variants: {N_VARIANTS if is_several else 4}",
        "different seeded inputs for each row count"
        + (", and so many draws of each law" if is_several else ""),
    )
    yield Line("  inputs:", "how each input is made, for each variant anew")
    yield from input_lines(spec)
    if spec.is_stateful:
        yield Line("  sequences:", "the model is stateful: each request is of a sequence")
        yield Line("    length: 10", "requests of a sequence, or a law: a guess; docs/scenario.md")
        yield Line(
            "    concurrent: 8",
            "sequences that go on at once: as many as there are workers on all nodes, or more",
        )
    if spec.is_decoupled:
        yield Line(
            f"  # stream: {{tokens: {scalar(spec.outputs[0].name)}}}" if spec.outputs else "  # stream: {}",
            "its responses come one by one; the output whose elements are tokens: docs/streaming.md",
        )
    if len(spec.outputs) > 1:
        names = [scalar(tensor.name) for tensor in spec.outputs]
        yield Line(
            f"  # request: {{outputs: [{names[0]}]}}",
            f"where callers ask for some outputs only, of {', '.join(names)}",
        )
    if wanted.headers:
        yield Line("  headers:", "of every call to the server, as asked for; gRPC: metadata")
        for name, value in wanted.headers.items():
            yield Line(f"    {scalar(name)}: {scalar(value)}")
    else:
        yield _no_headers()
    if wanted.protocol == "grpc":
        yield Line("  # tls: {}", "where the gRPC port speaks TLS: ca, certificate, key, server_name")
    elif wanted.urls[0].startswith("https:"):
        yield Line(
            "  # tls: {server_name: triton.example.org}",
            "where its certificate has another name than the URL",
        )


def _no_headers() -> Line:
    return Line(
        '  # headers: {Authorization: "Bearer ${TOKEN}"}',
        "where callers must say who they are; gRPC: metadata",
    )


def _phases(model: ServedModel) -> Iterator[Line]:
    modest_hz = _modest_hz(model)
    yield Line("phases:", "laid end to end; the last one is a drain")
    for name, kind, duration, rate_hz, why in (
        ("warmup", "warmup", "10s", 2 * modest_hz, "kept in the tables, left out of the figures"),
        ("measure", "measure", "30s", modest_hz, "what the figures are about"),
    ):
        yield Line(f"  - name: {name}", "as promises and --set call it")
        yield Line(f"    kind: {kind}", why)
        yield Line(f"    duration: {duration}", "length of the phase")
        yield Line("    arrivals:", "when requests are due, whatever the server does: an open loop")
        rate = format_rate(rate_hz)
        if kind == "warmup":
            yield Line("      kind: gamma", "in bursts, so that it executes larger batches than are measured")
            yield Line("      cv: 3", "of the gaps between arrivals; Poisson has 1")
            yield Line(
                f"      rate: {rate}",
                "twice what is measured, so that no batch size is new there: raise it too",
            )
            continue
        yield Line(
            "      kind: poisson",
            "or any of docs/arrivals.md; bursts of a service: envelope with preset and bin",
        )
        yield Line(f"      rate: {rate}", _RAISE)
    yield Line("  - name: drain", "the end")
    yield Line("    kind: drain", "sends nothing, waits for the last answers")
    yield Line("    duration: 10s", "at most: it ends with the last answer")


def _modest_hz(model: ServedModel) -> float:
    """A rate that the server's own figures let expect to be little; whole from 1/s on."""
    if not model.infer_ns:
        return _RATE_HZ
    alone_hz = _BUSY_SHARE * NS_PER_S / model.infer_ns
    return min(_RATE_HZ, float(int(alone_hz)) if alone_hz >= 1 else max(0.1, round(alone_hz, 1)))


def _profile() -> Iterator[Line]:
    yield Line("profile:", "what is observed beside the requests")
    yield Line("  triton_interval: 100ms", "between two reads of the server's statistics")
    yield Line(
        "  host_interval: 1s",
        "between two samples of CPU and network, where the server is on a node of the run",
    )
    yield Line("  nvml: auto", "GPU samples, where the server is on a node of the run; or off, required")
    yield Line("  gpu_interval: 100ms", "between two of them")
    yield Line(
        "  batches: auto",
        "which requests were in which batch: start the server with `env $(squall inject) …`",
    )
    yield Line(
        "  kernels: auto", "its kernels and copies on a GPU: likewise; `squall inject --as docker` and others"
    )
    yield Line("  nsys: off", "for a server under `nsys launch`, with nsys_session: docs/profiling.md")


def _promises() -> Iterator[Line]:
    yield Line("# promises:", "what the service is held to, and `squall check` and `squall capacity` with it")
    yield Line("#   response: p(95)<100ms", "from the scheduled instant to the last byte; state your limit")
    yield Line("#   failures: rate<0.1%", "share of the requests that may end otherwise than ok")
