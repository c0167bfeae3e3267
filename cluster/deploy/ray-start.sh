#!/bin/sh
# Starts Ray on this host for squall @SQUALL@ (Ray @RAY@, Python @PYTHON@), by its token:
#   sh ray-start.sh head                 on the first host
#   sh ray-start.sh node HEAD_ADDRESS    on every other
# Options that follow go to `ray start`. NODE_ADDRESS: this host's IP where it has several; GPUS: how many Ray is told
# of, those that it finds if empty. The token is the same on every host and where squall is typed: RAY_AUTH_TOKEN,
# RAY_AUTH_TOKEN_PATH, or the file ~/.ray/auth_token, which `ray get-auth-token --generate` makes.
set -eu
role=${1:?"say head, or node HEAD_ADDRESS"}
shift
if [ -z "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ] && [ ! -s "$HOME/.ray/auth_token" ]; then
    echo "ray-start.sh: no token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or ray get-auth-token --generate" >&2
    exit 1
fi
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
# nothing of Ray's hinders a run that is well
@SETTINGS@
case $role in
    head) set -- --head --port=6379 --include-dashboard=false "$@" ;;
    node)
        address=${1:?"node HEAD_ADDRESS"}
        shift
        set -- --address="$address:6379" "$@"
        ;;
    *)
        echo "ray-start.sh: $role: say head or node" >&2
        exit 1
        ;;
esac
if [ -n "${NODE_ADDRESS:-}" ]; then set -- --node-ip-address="$NODE_ADDRESS" "$@"; fi
if [ -n "${GPUS:-}" ]; then set -- --num-gpus="$GPUS" "$@"; fi
exec ray start --disable-usage-stats "$@"
