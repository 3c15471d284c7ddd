#!/usr/bin/env bash
# A Debian base image made from packages, for machines that reach no image registry (CI):
#   containers/base_image.sh [CACHE_FOLDER] [TAG]
# The root file system is kept as a tarball in CACHE_FOLDER, so only the first run needs debootstrap, root and 90 s.
set -euo pipefail
cache=${1:-$HOME/.cache/ratchet/containers}
tag=${2:-ratchet-debian:bookworm}
suite=bookworm
version=1 # to be raised when what is in it shall change
tarball=$cache/debian-$suite-$version.tar.gz

say() { echo "base image: $*" >&2; }

make_tarball() {
  local work
  work=$(mktemp -d)
  trap 'rm -rf "$work"' RETURN
  say "debootstrap $suite with python3 (once, about 90 s)"
  # No python3-venv: it brings pip and setuptools, and `venv --without-pip` needs neither.
  debootstrap --variant=minbase --include=python3 "$suite" "$work/root" >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; say "debootstrap failed, see above; is the package mirror reachable?"; return 1; }
  mkdir -p "$cache"
  # Fixed order, owners and times; no caches, logs, manuals or translations.
  tar --create --gzip --directory "$work/root" --one-file-system --numeric-owner --sort=name --mtime=@315532800 \
    --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' --exclude='./run/*' --exclude='./tmp/*' \
    --exclude='./var/cache/*' --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*' \
    --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' \
    --exclude='./usr/share/info/*' --file "$tarball.new" .
  mv "$tarball.new" "$tarball"
}

there=$(docker image inspect --format '{{index .Config.Labels "ratchet.base"}}' "$tag" 2>/dev/null || true)
if [ "$there" != "$suite-$version" ]; then
  [ -s "$tarball" ] || make_tarball
  say "importing $tag"
  docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV LANG=C.UTF-8' --change 'CMD ["bash"]' \
    --change "LABEL ratchet.base=$suite-$version" "$tarball" "$tag" >/dev/null
fi
say "$tag is there"
