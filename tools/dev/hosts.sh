# ./dev hosts N [--ranks M] [--rate R] [--cut WHAT@AT[+FOR]]... [--bytes] [--port P] [--grace S] -- CMD
for program in ip tc python3; do
  # shellcheck disable=SC2086
  command -v "$program" >/dev/null || install_packages $packages_hosts
done
cd "$from" # CMD may be a path from there
exec python3 "$root/tools/hosts.py" "$@"
