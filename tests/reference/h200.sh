# first call: pieces; second: the runs
set -e
cat > /tmp/gpu.yaml <<X
name: gpu-nsys
seed: 7
model: {name: seqlen_head, framework: torch, device: gpu, precision: fp16, max_batch_size: 64, preferred_batch_sizes: [32], queue_delay: 1ms, settings: {width: 256, layers: 4, sequence: 32, classes: 2}}
clients: {workers_per_node: 2, timeout: 5s, rows: {kind: uniform, low: 1, high: 8}}
promises: {response: ["p(95)<5ms", "p(99)<100ms"]}
phases:
- {name: warmup, kind: warmup, duration: 1s, arrivals: {kind: poisson, rate: 40/s}}
- {name: burst, kind: measure, duration: 2s, arrivals: {kind: envelope, preset: nasa-flash-crowd, bin: 34ms, rate: 60/s}}
- {name: drain, kind: drain, duration: 5s}
profile: {nsys: required, nvml: required, osrt_threshold: 100us}
X
sed 's/gpu-nsys/gpu-kernels/; s/nsys: required/nsys: "off", kernels: required, duty: whole, kernel_kinds: [kernels, copies, sync, events]/' /tmp/gpu.yaml > /tmp/gpu2.yaml
source /opt/squall/env.sh
mkdir -p /tmp/ref && tar -xJf /tmp/ref.tar.xz -C /tmp/ref && cd /tmp/ref
python3 -c "import locust, typer, pyarrow, jinja2, psutil, fsspec, matplotlib, scipy; print('all there')" || true
[ -d /tmp/wheel ] || python3 -m pip wheel -q --no-index --no-build-isolation --no-deps -w /tmp/wheel . 2>&1 | tail -5
python3 -m pip install -q --no-index --no-deps --target /opt/squall/site /tmp/wheel/*.whl
cd /tmp
for s in gpu gpu2; do timeout 150 python3 -m squall.cluster.cli run /tmp/$s.yaml --out /tmp/out/$s 2>&1 | tail -30 || true; done
for s in gpu gpu2; do for r in /tmp/out/$s/*/; do rm -f $r/report.html; du -sk $r; done; done
tar -C /tmp/out -cJf $OUT/gpu.tar.xz .
ls -la $OUT
