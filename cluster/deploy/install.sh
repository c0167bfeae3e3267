#!/bin/sh
# Installs squall from this folder into a new environment; asks no package index, and needs no network.
#   sh install.sh FOLDER        the environment; PYTHON=… names the Python that makes it
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?"names the folder of the environment to be made: sh install.sh FOLDER"}
version=$(cat "$here/python-version")
python=${PYTHON:-python$version}

cd "$here"
sha256sum --check --quiet SHA256SUMS
cd - >/dev/null
"$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" || {
    echo "install.sh: these are packages for Python $version: name one with PYTHON=…" >&2
    exit 1
}
"$python" -m venv --without-pip "$folder"
# pip of the folder installs itself and all else, each file held to its digest
"$folder/bin/python" "$(echo "$here"/wheels/pip-*.whl)/pip" install --quiet --no-index --no-deps --require-hashes \
    --disable-pip-version-check --find-links "$here/wheels" --requirement "$here/requirements.txt"
if [ -f "$here/triton.tar" ]; then
    cache=${SQUALL_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/squall}
    mkdir -p "$cache"
    tar -xf "$here/triton.tar" -C "$cache"
fi
"$folder/bin/squall" --version
