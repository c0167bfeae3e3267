"""The flags of perf_analyzer 2.60 and ours beside them, and a command line read into them.

The flags are those of its `src/command_line_parser.cc`; it reads them as getopt_long does, and so does `parse`: a
value stands behind `=`, in the next word or, of a short flag, in the same one; a long flag may be cut short where that
is still one flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Literal

from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen

Kept = Literal["kept", "told", "refused", "ours"]
"""What becomes of a flag: `kept` as perf_analyzer has it, `told` that it changes nothing here, `refused`; or it is
ours."""


class Flag(Frozen):
    """A flag. `name`: long, else short; `short`: the other one; `value`: what stands behind it, None where nothing
    does. `why`: what becomes of it; of one that is told or refused only in some cases, which."""

    name: str
    short: str | None
    value: str | None
    kept: Kept
    why: str

    @property
    def shown(self) -> str:
        """As it is typed: `--shape NAME:D,D`."""
        first = f"-{self.name}" if len(self.name) == 1 else f"--{self.name}"
        both = f"{first}, -{self.short}" if self.short else first
        return f"{both} {self.value}" if self.value else both


_SEQUENCE = "of a stateful model; of any other told that it changes nothing"
_PERIODIC = "no user of a scenario begins when others have had so many responses"
_C_API = "read by perf_analyzer for --service-kind=triton_c_api alone"
_TRACE = "squall changes no setting of the server; profile.triton_trace of a scenario reads its traces"
FLAGS = (
    Flag("m", None, "MODEL", "kept", "model.name"),
    Flag("x", None, "VERSION", "kept", "model.version"),
    Flag("u", None, "HOST:PORT", "kept", "server.url; with -i grpc the port is server.grpc_port"),
    Flag("i", None, "http|grpc", "kept", "clients.protocol"),
    Flag("b", None, "N", "kept", "clients.rows"),
    Flag("v", None, None, "kept", "the windows of each level too"),
    Flag("service-kind", None, "KIND", "kept", "triton; the others are refused"),
    Flag("concurrency-range", None, "START:END:STEP", "kept", "a closed loop of so many users"),
    Flag("request-rate-range", None, "START:END:STEP", "kept", "a schedule of that rate"),
    Flag("request-distribution", None, "constant|poisson", "kept", "the kind of arrivals of such a schedule"),
    Flag("request-intervals", None, "FILE", "kept", "a trace of gaps, again and again"),
    Flag("measurement-mode", None, "MODE", "kept", "time_windows or count_windows"),
    Flag("measurement-interval", "p", "MS", "kept", "length of a window"),
    Flag("measurement-request-count", None, "N", "kept", "requests that a window holds at least"),
    Flag("request-count", None, "N", "kept", "one window of the first N requests that were sent"),
    Flag("warmup-request-count", None, "N", "kept", "windows begin when N requests have ended"),
    Flag("stability-percentage", "s", "PERCENT", "kept", "how far three windows may differ"),
    Flag("max-trials", "r", "N", "kept", "windows of a level at most"),
    Flag("percentile", None, "N", "kept", "stable in this percentile, not the average; reported too"),
    Flag("latency-threshold", "l", "MS", "kept", "ends the search at a level that is slower"),
    Flag("binary-search", None, None, "kept", "halves the range"),
    Flag("async", "a", None, "kept", "stable by throughput alone where latency is not; also streams, sequences"),
    Flag("sync", None, None, "told", "squall waits for nothing: users of a closed loop wait for their own replies"),
    Flag("max-threads", None, "N", "told", "squall sends from its workers"),
    Flag("input-data", None, "zero|random|PATH", "kept", "clients.inputs, or clients.data of one file or folder"),
    Flag("data-directory", None, "PATH", "kept", "as a path of --input-data"),
    Flag("z", None, None, "kept", "--input-data=zero"),
    Flag("shape", None, "NAME:D,D", "kept", "model.shapes"),
    Flag("string-length", None, "N", "kept", "clients.inputs.NAME.length of BYTES inputs"),
    Flag("string-data", None, "TEXT", "kept", "clients.inputs.NAME.words of BYTES inputs"),
    Flag("shared-memory", None, "none|system|cuda", "kept", "clients.shared_memory; cuda is refused"),
    Flag("output-shared-memory-size", None, "BYTES", "told", "squall takes the size from the model"),
    Flag("input-tensor-format", None, "binary|json", "kept", "clients.request.binary: json for both or none"),
    Flag("output-tensor-format", None, "binary|json", "kept", "as --input-tensor-format"),
    Flag("H", None, "NAME:VALUE", "kept", "clients.headers, of every call; perf_analyzer leaves it out with -i grpc"),
    Flag("grpc-compression-algorithm", None, "NAME", "kept", "clients.request.compression; deflate is refused"),
    Flag("streaming", None, None, "kept", "clients.stream"),
    Flag("request-parameter", None, "NAME:VALUE:TYPE", "kept", "clients.request, over HTTP too"),
    Flag("ssl-grpc-use-ssl", None, None, "kept", "clients.tls"),
    Flag("ssl-grpc-root-certifications-file", None, "FILE", "kept", "clients.tls.ca"),
    Flag("ssl-grpc-private-key-file", None, "FILE", "kept", "clients.tls.key"),
    Flag("ssl-grpc-certificate-chain-file", None, "FILE", "kept", "clients.tls.certificate"),
    Flag("ssl-https-verify-peer", None, "0|1", "kept", "clients.tls.verify"),
    Flag("ssl-https-verify-host", None, "0|1|2", "kept", "2; 0 and 1 are refused beside a peer that is verified"),
    Flag("ssl-https-ca-certificates-file", None, "FILE", "kept", "clients.tls.ca"),
    Flag("ssl-https-client-certificate-file", None, "FILE", "kept", "clients.tls.certificate"),
    Flag("ssl-https-client-certificate-type", None, "PEM|DER", "kept", "PEM; DER is refused"),
    Flag("ssl-https-private-key-file", None, "FILE", "kept", "clients.tls.key"),
    Flag("ssl-https-private-key-type", None, "PEM|DER", "kept", "PEM; DER is refused"),
    Flag("latency-report-file", "f", "FILE", "kept", "the CSV; the long name is Model Analyzer's"),
    Flag("verbose-csv", None, None, "kept", "further columns of the CSV"),
    Flag("profile-export-file", None, "FILE", "kept", "requests as JSON; the file must not be there yet"),
    Flag("collect-metrics", None, None, "kept", "GPU columns, from NVML on the server's node"),
    Flag("metrics-url", None, "URL", "kept", "server.metrics_port; with http, at the host of -u"),
    Flag("metrics-interval", None, "MS", "kept", "profile.gpu_interval"),
    Flag("num-of-sequences", None, "N", "kept", f"of a schedule clients.sequences.concurrent, {_SEQUENCE}"),
    Flag("sequence-length", None, "N", "kept", f"clients.sequences.length, {_SEQUENCE}"),
    Flag("sequence-length-variation", None, "PERCENT", "kept", f"as --sequence-length, {_SEQUENCE}"),
    Flag("sequence-id-range", None, "START:END", "kept", f"refused {_SEQUENCE}"),
    Flag("serial-sequences", None, None, "kept", f"users do; refused for a schedule {_SEQUENCE}"),
    Flag("bls-composing-models", None, "NAMES", "told", "squall reads the statistics of every model that took part"),
    Flag("model-signature-name", None, "NAME", "told", "read by perf_analyzer for --service-kind=tfserving alone"),
    Flag("endpoint", None, "PATH", "told", "read by perf_analyzer for --service-kind=openai alone"),
    Flag("triton-server-directory", None, "PATH", "told", _C_API),
    Flag("model-repository", None, "PATH", "told", _C_API),
    Flag("trace-level", None, "LEVEL", "told", _TRACE),
    Flag("trace-rate", None, "N", "told", _TRACE),
    Flag("trace-count", None, "N", "told", _TRACE),
    Flag("log-frequency", None, "N", "told", _TRACE),
    Flag("periodic-concurrency-range", None, "START:END:STEP", "refused", _PERIODIC),
    Flag("request-period", None, "N", "refused", _PERIODIC),
    Flag("session-concurrency", None, "N", "refused", "is for --service-kind=openai"),
    Flag("grpc-method", None, "NAME", "refused", "is for --service-kind=dynamic_grpc"),
    Flag("schedule", None, "SECONDS", "refused", "use a trace in a scenario (docs/arrivals.md, fixed-schedule)"),
    Flag("enable-mpi", None, None, "refused", "squall spreads one load over client nodes itself: --ray"),
    Flag("version", None, None, "kept", "squall's own"),
    Flag("t", None, "N", "kept", "as --concurrency-range N"),
    Flag("c", None, "N", "kept", "end of the range of -d"),
    Flag("d", None, None, "kept", "as --concurrency-range from -t to -c"),
    Flag("http-url", None, "URL", "ours", "beside -i grpc: where model and statistics are asked"),
    Flag("seed", None, "N", "ours", "of arrivals and inputs"),
    Flag("random-seed", None, "N", "ours", "the same, by GenAI-Perf's name"),
    Flag("ray", None, "ADDRESS", "ours", "a Ray cluster to join; none: this machine alone, without Ray"),
    Flag("out", None, "DIR", "ours", "keeps the run directories"),
    Flag("save-scenario", None, "FILE", "ours", "writes the scenario of the first level, for squall run"),
    Flag("dry-run", None, None, "ours", "says what would be run, and sends nothing"),
    Flag("help", "h", None, "ours", "this list"),
)  # fmt: skip
"""In the order in which they are told."""
_LONG = {flag.name: flag for flag in FLAGS if len(flag.name) > 1}
_SHORT = {short: flag for flag in FLAGS for short in (flag.name, flag.short) if short and len(short) == 1}

_OTHER_NAMES = {
    "model": "-m", "model-name": "-m", "model-version": "-x", "url": "-u", "protocol": "-i", "batch-size": "-b",
    "verbose": "-v", "header": "-H", "zero-input": "-z", "concurrency": "--concurrency-range",
    "request-rate": "--request-rate-range",
}  # fmt: skip
"""What some call a flag, Model Analyzer among them."""

Typed = Mapping[str, Sequence[str]]
"""By the flag's name the values that stand behind it, in their order; of a flag without one as many empty texts."""


def parse(words: Sequence[str]) -> dict[str, list[str]]:
    """The flags of a command line. Raises ScenarioError for a flag that there is not, with one that is near, for a
    value that is missing or too many, and for a word that belongs to no flag."""
    found: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if word.startswith("--") and len(word) > 2:
            _take_long(word[2:], rest, found)
        elif word.startswith("-") and len(word) > 1:
            _take_short(word[1:], rest, found)
        else:
            raise ScenarioError(f"perf: {word!r} belongs to no flag")
    return found


def _take_long(text: str, rest: Iterator[str], found: dict[str, list[str]]) -> None:
    name, equals, value = text.partition("=")
    flag = _long(name)
    if flag.value is None and equals:
        raise ScenarioError(f"perf: --{flag.name} takes no value, and has {value!r}")
    if flag.value is not None and not equals:
        value = _next(f"--{flag.name}", flag, rest)
    found.setdefault(flag.name, []).append(value)


def _long(name: str) -> Flag:
    if name in _LONG:
        return _LONG[name]
    begun = [flag for flag in _LONG.values() if flag.name.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise ScenarioError(f"perf: --{name} may be {', '.join(f'--{flag.name}' for flag in begun)}")
    near = (
        [_OTHER_NAMES[name]]
        if name in _OTHER_NAMES
        else [f"--{one}" for one in get_close_matches(name, _LONG, 1)]
    )
    hint = f"did you mean {near[0]}?" if near else "squall perf --help lists them"
    raise ScenarioError(f"perf: --{name}: perf_analyzer has no such flag, {hint}")


def _take_short(text: str, rest: Iterator[str], found: dict[str, list[str]]) -> None:
    """One letter or several: of those the last may have a value, in the same word or the next."""
    while text:
        letter, text = text[0], text[1:]
        if letter not in _SHORT:
            raise ScenarioError(
                f"perf: -{letter}: perf_analyzer has no such flag, squall perf --help lists them"
            )
        flag = _SHORT[letter]
        value = ""
        if flag.value is not None:
            value, text = (text.removeprefix("="), "") if text else (_next(f"-{letter}", flag, rest), "")
        found.setdefault(flag.name, []).append(value)


def _next(shown: str, flag: Flag, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None:
        raise ScenarioError(f"perf: {shown} needs a value: {flag.value}")
    return value


def help_text() -> str:
    """Every flag with what becomes of it."""
    widest = max(len(flag.shown) for flag in FLAGS if len(flag.shown) < 40)
    lines = [
        "Usage: squall perf -m MODEL [FLAG]...",
        "",
        "perf_analyzer's flags, run by squall (docs/perf.md).",
        "",
    ]
    return "\n".join([*lines, *(f"  {flag.shown:<{widest}}  {_told(flag)}" for flag in FLAGS)])


def _told(flag: Flag) -> str:
    return {"kept": "", "ours": "(ours) ", "told": "(changes nothing) ", "refused": "(refused) "}[
        flag.kept
    ] + flag.why
