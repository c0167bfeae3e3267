#!/bin/bash
#SBATCH --job-name=squall
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
# A run of squall @SQUALL@ (Ray @RAY@) on the nodes of a Slurm job: sbatch slurm.sh SCENARIO.yaml [options of squall run]
# squall's environment must be active on every node. The first node is Ray's head and the driver's. Ray's token is new for each job
# and goes by the environment alone. On nodes with GPUs add --gpus-per-node: Slurm then shows them to Ray.
set -euo pipefail
: "${1:?"names a scenario: sbatch slurm.sh SCENARIO.yaml"}"
umask 077
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts[0]}
on=(srun --overlap --nodes=1 --ntasks=1)
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

address=$("${on[@]}" --nodelist="$head" hostname --ip-address | awk '{print $1}')
"${on[@]}" --nodelist="$head" sh -c "squall deploy ray-start | NODE_ADDRESS=$address sh -s -- head --block" &
for host in "${hosts[@]:1}"; do
    "${on[@]}" --nodelist="$host" sh -c "squall deploy ray-start | sh -s -- node $address --block" &
done
count='import ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(sum(one["Alive"] for one in ray.nodes()))'
for attempt in $(seq 1 30); do
    found=$("${on[@]}" --nodelist="$head" python3 -c "$count" "$address:6379" 2>/dev/null || true)
    [ "${found:-0}" = "${#hosts[@]}" ] && break
    [ "$attempt" = 30 ] && { echo "slurm.sh: ${found:-0} of ${#hosts[@]} nodes are in Ray" >&2; exit 1; }
    sleep 2
done
"${on[@]}" --nodelist="$head" squall run --ray "$address:6379" "$@"
