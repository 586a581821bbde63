# ./dev soak NAME [--rounds N] [--seed S] [--hosts N]; ./dev soak fuzz [--seconds N] [--seed S] [--only PARSERS]
soaks="kills, deadlocks, disagreements, endings, failing-jobs, faults, flood, fuzz, orphans, groups, init, layouts, links, mutate, planted, pytorch, pytorch-failures, real, side-by-side, simulate, spawn, strangers, votes"
name=${1:-}
case "$name" in
  -h | --help)
    echo "./dev soak NAME [--rounds N] [--seed S] [--hosts N]: at full length unless told otherwise; figures go to docs/evidence, those of fewer rounds to build."
    echo "NAME: $soaks."
    echo "./dev soak NAME --help, once it is built: what else it takes. --hosts: kills, deadlocks, real, groups and disagreements."
    exit 0
    ;;
esac
[ $# -gt 0 ] && shift
given="$*"
hosts= words=()
while [ $# -gt 0 ]; do
  if [ "$1" = --hosts ] && [ "$name" != simulate ]; then # simulate has worlds of its own
    hosts=${2:?N is missing: --hosts N}
    shift
  else
    words+=("$1")
  fi
  shift
done
set -- "${words[@]}"
case "$name/$hosts" in
  */ | kills/* | deadlocks/* | real/* | groups/2 | links/3 | disagreements/2) ;;
  *) die 2 "soak $name --hosts $hosts: there are kills, deadlocks and real --hosts N, groups and disagreements --hosts 2, links --hosts 3" ;;
esac
if [ "$name" = fuzz ]; then # of the library alone, by clang
  # shellcheck disable=SC2086
  install_packages $packages_build $packages_test zlib1g-dev
  build_target=fuzzers build fuzz
  hold_lock
  mkdir -p docs/evidence
  exec python3 tests/soak/fuzz.py --build build/fuzz --out docs/evidence/fuzz.json "$@"
fi
# Rounds at full length: the counts of the promises.
case "$name" in
  kills | orphans | side-by-side | spawn) rounds=100 ;; # spawn: of each way
  endings | failing-jobs | real) rounds=200 ;;
  faults) rounds=1600 ;; # 200 of each harm
  flood) rounds=50 ;;
  deadlocks | disagreements) rounds=1000 ;;
  groups) rounds=10000 ;;
  simulate | votes) rounds=1000000 ;;
  pytorch) rounds=30000 ;;
  pytorch-failures) rounds=10 ;; # of each case; of torchrun's restarts twice as many
  links) rounds=20 hosts=3 ;; # of each cut
  mutate | planted) rounds=10000 ;; # with each condition of a judge inverted, each fault planted
  layouts | strangers) rounds= hosts=3 ;; # each thing once
  init) rounds= ;; # every system call once; goes on where it stopped (--minutes, 90 unless given)
  *) die 2 "unknown soak '$name' ($soaks)" ;;
esac
case "$rounds $* " in " "* | *" --rounds "*) ;; *) set -- --rounds "$rounds" "$@" ;; esac
# shellcheck disable=SC2086
install_packages $packages_build $packages_torch $packages_backends libgtest-dev libboost-context-dev
[ -z "$hosts" ] || command -v ip >/dev/null || install_packages $packages_hosts
use_libtorch
case "$name" in
  pytorch*) tools/python_torch.sh "$root/third_party" || die 1 "soak $name needs Python's torch, which could not be had" ;;
esac
build release
hold_lock
mkdir -p docs/evidence
evidence=docs/evidence
# Of some series, or of fewer rounds: the evidence of all stays.
case " $* " in *" --only "*) evidence=build ;; esac
asked=$(sed -n 's/.*--rounds[ =]\([0-9]*\).*/\1/p' <<<"$given")
[ -z "$asked" ] || [ "$asked" -ge "${rounds:-0}" ] || evidence=build
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
fi
if [ "$name" = side-by-side ]; then
  tools/python_torch.sh third_party || true # without it the job of Python is left out
  soak=tests/soak/side_by_side.py
fi
case "$name" in
  pytorch*)
    set -- --python "$(tools/python_torch.sh --where "$root/third_party")/bin/python" "$@"
    soak=tests/soak/${name/-/_}.py
    ;;
esac
if [ "$name" = failing-jobs ]; then
  soak=tests/soak/failing_jobs.py
fi
if [ "$name" = mutate ] || [ "$name" = planted ]; then
  soak=tests/simulate/$name.py
fi
if [ "$name" = layouts ] || [ "$name" = links ] || [ "$name" = strangers ]; then
  soak=tests/soak/$name.py
fi
if [ "$name" = groups ]; then
  install_packages clang-14 libclang-rt-14-dev
  build_target="groups_rank tutti_cli" build tsan
  set -- --tsan build/tsan "$@"
fi
if [ "$name" = init ]; then
  soak=tests/soak/init.py
  set -- --state build/soak_init.json "$@"
fi
case "$name/$hosts" in
  */ | layouts/* | links/* | strangers/*) ;;
  disagreements/*) # started as ranks
    exec python3 tools/hosts.py "$hosts" --ranks 2 -- "$soak" --as rank --hosts "$hosts" --out "$evidence/disagreements_hosts.json" "$@"
    ;;
  kills/*)
    soak=tests/soak/kills_hosts.py name=kills_${hosts}_hosts
    set -- --hosts "$hosts" "$@"
    ;;
  real/*)
    soak=tests/soak/real_hosts.py name=real_hosts
    set -- --hosts "$hosts" "$@"
    ;;
  *)
    set -- --hosts "$hosts" "$@"
    name=${name}_hosts
    ;;
esac
# At full length: each fault at each operation with each answer often enough, and then large worlds.
if [ "$name" = simulate ] && [ "$given" = "" ]; then
  "$soak" --out docs/evidence/simulate.json --each 1000 "$@"
  set -- --script build/simulate-violation.json --rounds 100 --ranks 1024 --hosts 8
  name=simulate_1024
fi
"$soak" --out "$evidence/$name.json" "$@"
