"""Makes the reference runs with the squall of the checkout in the working folder. Usage: make_reference.py OUT [NAME ...]"""
import json, os, shutil, signal, subprocess, sys, time
from pathlib import Path
import yaml

OUT = Path(sys.argv[1]).resolve(); ONLY = set(sys.argv[2:])
ROOT = Path.cwd(); BIN = ROOT / ".venv/bin"; SQUALL = BIN / "squall"
sys.path.insert(0, str(ROOT))
NULL = [str(BIN / "python"), "-m", "squall.actors.null.triton", "--width=4"]

HEAD = {"name": "seqlen_head", "max_batch_size": 8, "queue_delay": "1ms", "settings": {"width": 16, "layers": 1, "sequence": 2, "classes": 2}}
LINEAR = {"name": "linear_head", "max_batch_size": 16, "settings": {"width": 4, "classes": 2}}
FLASH = {"kind": "envelope", "preset": "nasa-flash-crowd", "bin": "50ms", "rate": "100/s"}
def P(rate): return {"kind": "poisson", "rate": f"{rate}/s"}
def phases(burst, duration="3s", drain="5s", warm=60):
    return [{"name": "warmup", "kind": "warmup", "duration": "500ms", "arrivals": P(warm)},
            {"name": "burst", "kind": "measure", "duration": duration, "arrivals": burst},
            {"name": "drain", "kind": "drain", "duration": drain}]
ROWS = {"kind": "uniform", "low": 1, "high": 4}
CLIENTS = {"workers_per_node": 2, "timeout": "5s", "rows": ROWS}
QUIET = {"nsys": "off", "nvml": "off"}
def scenario(name, **changes):
    return {"name": name, "seed": 7, "model": HEAD, "clients": CLIENTS, "phases": phases(FLASH), "profile": QUIET,
            "promises": {"response": ["p(95)<20ms", "p(99)<100ms"], "failures": "rate<1%"}, **changes}
def null_scenario(name, port, **changes):
    model = {k: v for k, v in LINEAR.items() if k != "queue_delay"}
    return scenario(name, model=model, server={"url": f"http://127.0.0.1:{port}"}, **changes)

class Null:
    def __init__(self, *args): self.args = args
    def __enter__(self):
        self.p = subprocess.Popen([*NULL, *self.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.ready = json.loads(self.p.stdout.readline()); return self
    @property
    def http(self): return self.ready["http_port"]
    def kill(self): self.p.kill()
    def __exit__(self, *_): self.p.kill(); self.p.wait()

def call(name, *args, expect=None, **kw):
    folder = OUT / name; folder.mkdir(parents=True, exist_ok=True)
    with (folder / "screen.log").open("a") as log:
        p = subprocess.Popen([str(SQUALL), *map(str, args)], stdout=log, stderr=log, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True, **kw)
    return p
def run(name, mapping, *args, command="run", wait=True, **kw):
    folder = OUT / name; folder.mkdir(parents=True, exist_ok=True)
    (folder / "scenario.yaml").write_text(yaml.safe_dump(mapping, sort_keys=False))
    p = call(name, command, "scenario.yaml", "--out", folder / "runs", *args, **kw)
    if wait: p.wait(timeout=400)
    return p
def wait_log(name, text, timeout=90):
    end = time.time() + timeout
    while time.time() < end:
        import re
        if re.search(text, (OUT / name / "screen.log").read_text(errors="replace")): return
        time.sleep(0.1)
    raise SystemExit(f"{name}: no {text!r}")
def pids(pattern):
    return [int(x) for x in subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True).stdout.split()]

KINDS = {}
def kind(f): KINDS[f.__name__] = f; return f

@kind
def demo(n):
    call(n, "demo", "--out", OUT / n / "runs", "--set", "phases.burst.duration=5s", "--set", "phases.warmup.duration=1s").wait(timeout=300)
@kind
def servers(n):
    run(n, scenario(n, servers=[{}, {"nice": 1}], clients={**CLIENTS, "routing": {"kind": "least-in-flight"}},
        phases=[phases(FLASH)[0], {"name": "calm", "kind": "measure", "duration": "2s", "arrivals": P(40)}, *phases(FLASH, "2s")[1:]]))
@kind
def models(n):
    m = scenario(n); del m["model"]
    m["models"] = [{**HEAD, "share": 2, "rows": ROWS}, {**LINEAR, "name": "linear_head", "settings": {"width": 16, "layers": 1, "classes": 2}, "share": 1}]
    m["phases"] = [*phases(P(80), "2s")[:2], {"name": "turned", "kind": "measure", "duration": "2s", "arrivals": {"kind": "gamma", "cv": 3, "rate": "60/s"}, "shares": {"linear_head": 3, "seqlen_head": 1}}, phases(P(1))[2]]
    m["clients"] = {k: v for k, v in CLIENTS.items() if k != "rows"}
    run(n, m)
@kind
def closed(n):
    users = {"kind": "closed", "users": 6, "think": {"kind": "exponential", "mean": "30ms"}}
    run(n, scenario(n, phases=[*[{**p, "arrivals": users} for p in phases(FLASH)[:2]], phases(FLASH)[2]], promises={"service": "p(95)<20ms"}))
def model_text(module):
    """MODEL and CONFIG of a test module, without importing it."""
    import ast
    tree = ast.parse((ROOT / "tests/integration" / module).read_text())
    return {t.id: n.value.value for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)}
def repository(n, model, module, **fields):
    texts = model_text(module); version = OUT / n / "models" / model / "1"; version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(texts["MODEL"])
    (version.parent / "config.pbtxt").write_text(texts["CONFIG"].format(**fields))
@kind
def streams(n):
    repository(n, "writer", "test_streams.py", told="/dev/null")
    run(n, scenario(n, model={"name": "writer", "repository": "models", "max_batch_size": 4},
        clients={"workers_per_node": 2, "timeout": "20s", "protocol": "grpc", "payload_variants": 1, "stream": {"tokens": "tokens"},
            "inputs": {"n": {"low": 5, "high": 5}, "gap_us": {"low": 20000, "high": 20000}}},
        phases=[{"name": "main", "kind": "measure", "duration": "3s", "arrivals": P(40)}, {"name": "drain", "kind": "drain", "duration": "10s"}],
        promises={"first_response": ["p(50)<15ms", "max<80ms"], "gap": "med<21ms"}))
@kind
def sequences(n):
    repository(n, "adder", "test_sequences.py", seen="/dev/null", strategy="oldest { max_candidate_sequences: 16 }")
    run(n, scenario(n, model={"name": "adder", "repository": "models", "max_batch_size": 4},
        clients={"workers_per_node": 2, "timeout": "20s", "protocol": "http", "sequences": {"length": {"kind": "uniform", "low": 1, "high": 9}, "concurrent": 16}},
        phases=[{"name": "main", "kind": "measure", "duration": "3s", "arrivals": P(150)}, {"name": "drain", "kind": "drain", "duration": "10s"}]))
@kind
def locust(n):
    (OUT / n).mkdir(parents=True, exist_ok=True)
    (OUT / n / "locustfile.py").write_text('''from locust import HttpUser, between, task


class Caller(HttpUser):
    wait_time = between(0.05, 0.15)

    def on_start(self):
        (tensor,) = self.client.get("/v2/models/seqlen_head").json()["inputs"]
        shape = [1, *tensor["shape"][1:]]
        n_values = 1
        for one in shape:
            n_values *= one
        self.body = {"inputs": [{**tensor, "shape": shape, "data": [0.5] * n_values}]}

    @task(10)
    def infer(self):
        with self.client.post("/v2/models/seqlen_head/infer", json=self.body, catch_response=True) as reply:
            if not reply.ok or "outputs" not in reply.json():
                reply.failure("no outputs")

    @task
    def look(self):
        self.client.get("/v2/health/ready")
''')
    m = {"name": n, "seed": 7, "model": HEAD, "profile": QUIET, "load": {"locust": {"file": "locustfile.py", "users": 8, "spawn_rate": 8, "run_time": "4s"}}, "promises": {"service": "p(95)<50ms"}}
    run(n, m)
@kind
def aborted(n):
    p = run(n, scenario(n, phases=phases(FLASH, "8s")), wait=False)
    wait_log(n, r"squall burst +\d"); time.sleep(4); os.killpg(p.pid, signal.SIGINT); p.wait(timeout=120)
@kind
def resumed(n):
    p = run(n, scenario(n, phases=phases(FLASH, "8s")), wait=False)
    wait_log(n, r"squall burst +\d"); time.sleep(4); p.kill(); p.wait(); time.sleep(20)
    (folder,) = (OUT / n / "runs").iterdir()
    call(n, "resume", folder).wait(timeout=120)
@kind
def gone(n):
    with Null("--service=constant:3ms") as null:
        p = run(n, null_scenario(n, null.http), wait=False)
        wait_log(n, r"squall warmup +\d"); time.sleep(2); null.kill(); p.wait(timeout=120)
@kind
def rejects(n):
    with Null("--service=constant:3ms", "--fault=503:0.3") as null:
        run(n, null_scenario(n, null.http))
@kind
def wrong(n):
    with Null("--service=constant:3ms", "--fault=wrong:0.05") as null:
        run(n, null_scenario(n, null.http))
@kind
def late(n):
    with Null("--service=constant:1ms") as null:
        p = run(n, null_scenario(n, null.http, clients={**CLIENTS, "workers_per_node": 1}), wait=False)
        wait_log(n, r"squall warmup +\d"); time.sleep(1.5)
        for pid in pids("squall.cluster.remote.served LoadWorker"):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.7)
        for pid in pids("squall.cluster.remote.served LoadWorker"):
            os.kill(pid, signal.SIGCONT)
        p.wait(timeout=120)
@kind
def starved(n):
    p = run(n, scenario(n), wait=False)
    wait_log(n, r"squall warmup +\d")
    spins = [subprocess.Popen([sys.executable, "-c", "import time\nend=time.time()+4\nwhile time.time()<end: pass"]) for _ in range(8)]
    p.wait(timeout=120); [s.wait() for s in spins]
@kind
def check(n):
    with Null("--service=exponential:4ms", "--seed=3") as null:
        run(n, null_scenario(n, null.http, phases=phases(P(60), "2s", "1s"), promises={"response": "p(90)<40ms"}), "--seeds", "4", "--json", command="check")
@kind
def compare(n):
    with Null("--service=constant:4ms") as a, Null("--service=constant:6ms") as b:
        m = null_scenario(n, a.http, phases=phases(P(60), "2s", "1s"))
        run(n, m, "--pairs", "3", "--server-b", f"http://127.0.0.1:{b.http}", "--json", command="compare")
@kind
def sweep(n):
    with Null("--service=constant:4ms") as null:
        run(n, {"scenario": null_scenario(n, null.http, phases=phases(P(40), "2s", "1s")), "matrix": {"phases.burst.arrivals.rate": ["40/s", "120/s"]}, "repeats": 2, "confirm": 1, "restart": "never"}, "--json", command="sweep")
@kind
def capacity(n):
    with Null("--service=constant:10ms") as null:
        run(n, null_scenario(n, null.http, phases=phases(P(40), "1500ms", "1s"), promises={"response": "p(90)<60ms"}), "--seeds", "2", "--precision", "20%", "--low", "0", "--start", "60/s", "--json", command="capacity")

for name, make in KINDS.items():
    if ONLY and name not in ONLY: continue
    shutil.rmtree(OUT / name, ignore_errors=True)
    began = time.time(); make(name)
    print(name, f"{time.time()-began:.1f}s", subprocess.run(["tail", "-n", "2", str(OUT / name / "screen.log")], capture_output=True, text=True).stdout.strip() if (OUT/name/"screen.log").exists() else "", flush=True)
