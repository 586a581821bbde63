# ./dev soak NAME [--rounds N] [--seed S]
name=${1:-}
[ $# -gt 0 ] && shift
given="$*"
# Rounds at full length: the counts of the promises.
case "$name" in
  kills | orphans) rounds=100 ;;
  endings | real) rounds=200 ;;
  flood) rounds=50 ;;
  deadlocks | disagreements) rounds=1000 ;;
  groups) rounds=10000 ;;
  simulate | votes) rounds=1000000 ;;
  init) rounds= ;; # every system call once; goes on where it stopped (--minutes, 90 unless given)
  *) die 2 "unknown soak '$name' (kills, deadlocks, disagreements, endings, flood, orphans, groups, init, real, simulate, votes)" ;;
esac
case "$rounds $* " in " "* | *" --rounds "*) ;; *) set -- --rounds "$rounds" "$@" ;; esac
# shellcheck disable=SC2086
install_packages $packages_build $packages_torch $packages_backends libgtest-dev libboost-context-dev
use_libtorch
build release
hold_lock
mkdir -p docs/evidence
soak="build/release/tests/soak/soak_$name"
if [ "$name" = simulate ]; then
  soak=build/release/tests/simulate/soak_simulate
  set -- --script build/simulate-violation.json "$@"
fi
if [ "$name" = real ]; then
  soak=build/release/tests/simulate/real/soak_real
  set -- --script build/real-difference.json "$@"
fi
if [ "$name" = votes ]; then
  soak=build/release/tests/simulate/votes/soak_votes
  set -- --script build/votes-violation.json "$@"
fi
if [ "$name" = groups ]; then
  soak=tests/soak/groups.py
  install_packages clang-14 libclang-rt-14-dev
  build tsan
  set -- --tsan build/tsan "$@"
fi
if [ "$name" = init ]; then
  soak=tests/soak/init.py
  set -- --state build/soak_init.json "$@"
fi
# At full length: each fault at each operation with each answer often enough, and then large worlds.
if [ "$name" = simulate ] && [ "$given" = "" ]; then
  "$soak" --out docs/evidence/simulate.json --each 1000 "$@"
  set -- --script build/simulate-violation.json --rounds 100 --ranks 1024 --hosts 8
  name=simulate_1024
fi
"$soak" --out "docs/evidence/$name.json" "$@"
