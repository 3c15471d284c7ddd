#!/bin/sh
# Inside an image's first stage: `install.sh BUILD TARGET` installs BUILD/wheels into a new environment at TARGET.
# The same wheels give the same files to the byte: nothing is fetched, built or stamped with a time.
set -eu
build=$1 target=$2
python=$target/bin/python

python3 -m venv --without-pip "$target"
# pip runs from its wheel and stays out of the environment.
PYTHONPATH=$(echo "$build"/installer/pip-*.whl) PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH PYTHONDONTWRITEBYTECODE
"$python" -m pip --quiet --disable-pip-version-check install --root-user-action ignore --no-cache-dir --no-compile \
  --no-index --find-links "$build/wheels" --require-hashes --requirement "$build/wheels/requirements.txt"
"$python" -m pip --disable-pip-version-check check
unset PYTHONPATH PYTHONDONTWRITEBYTECODE

# Containers have a read-only root, so what is not compiled here is compiled at every start (`import torch`: 4 s).
# Unchecked hashes, since a time would differ from build to build; fixed groups and a fixed hash seed, since the bytes
# depend on what else the same process has compiled. Packages with templates or files of Python 2 make it exit 1.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find "$packages" -mindepth 1 -maxdepth 1 | LC_ALL=C sort | PYTHONHASHSEED=0 xargs -n 6 -P "$(nproc)" \
  "$python" -m compileall -qq --invalidation-mode unchecked-hash || true
"$python" -c 'import sys, pathlib; sys.exit(not list(pathlib.Path(sys.argv[1]).glob("*/__pycache__")))' "$packages"

find "$target" -exec touch --no-dereference --date=1980-01-01T00:00:00Z {} +
