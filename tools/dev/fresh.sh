# ./dev fresh -- CMD: CMD in a copy of this checkout inside a new, minimal Debian 12.
[ "${1:-}" = -- ] && shift
[ $# -gt 0 ] || die 2 "nothing to run; usage: ./dev fresh -- CMD"
[ "$(id -u)" = 0 ] || die 2 "fresh needs root: it makes a Debian with debootstrap and mounts into it; try: sudo ./dev fresh -- $*"
install_packages debootstrap util-linux git
machine=$(mktemp -d "${TMPDIR:-/tmp}/tutti-fresh.XXXXXX")
# Mounts live in the mount namespace of the run below and go with it; the folder is ours to remove.
trap 'rm -rf --one-file-system "$machine"' EXIT

start=$SECONDS
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' 2>/dev/null | head -n 1)
mirror=${mirror:-http://deb.debian.org/debian}
say "making a minimal Debian 12"
debootstrap --variant=minbase --include=ca-certificates bookworm "$machine/root" "$mirror" >"$machine/log" 2>&1 ||
  { tail -n 5 "$machine/log" >&2; die 1 "debootstrap failed; its last lines stand above"; }

# How the host reaches its packages comes along: sources, certificates, pip's configuration.
copy() { # copy PATH...: from the host, where it exists
  local path
  for path in "$@"; do
    if [ -e "$path" ]; then mkdir -p "$machine/root$(dirname "$path")" && cp -aL --remove-destination "$path" "$machine/root$(dirname "$path")/"; fi
  done
}
echo "deb $mirror bookworm main" >"$machine/root/etc/apt/sources.list"
copy /etc/apt/auth.conf.d /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates /etc/pip.conf /root/.config/pip /etc/resolv.conf /etc/hosts
for file in /etc/apt/apt.conf.d/*; do
  if grep -q 'Acquire' "$file"; then copy "$file"; fi
done
mkdir -p "$machine/root/tutti"
git ls-files -z -co --exclude-standard | tar --null -T - -c --ignore-failed-read 2>/dev/null | tar -x -C "$machine/root/tutti"
say "ready ($((SECONDS - start)) s): running $*"

cat >"$machine/root/enter.sh" <<'INNER'
set -e
mount -t proc proc /proc
mount -t sysfs sys /sys 2>/dev/null || true
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
cd /tutti
exec "$@"
INNER
status=0
unshare --mount --pid --fork --kill-child --propagation private sh -c '
  root=$1; shift
  mount --bind "$root" "$root" && mount --rbind /dev "$root/dev" && mount --make-rslave "$root/dev" &&
  exec chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    PIP_BREAK_SYSTEM_PACKAGES=1 SSL_CERT_DIR=/etc/ssl/certs $(env | grep -E "^(PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL)|CI)=" || true) sh /enter.sh "$@"
' sh "$machine/root" "$@" || status=$?
say "fresh run ended with exit code $status after $((SECONDS - start)) s"
exit "$status"
