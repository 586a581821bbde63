# ./dev hosts N [--ranks M] [--rate R] [--cut WHAT@AT[+FOR]]... [--bytes] [--port P] [--grace S] -- CMD
if ! command -v ip >/dev/null || ! command -v tc >/dev/null; then install_packages iproute2; fi
exec python3 tools/hosts.py "$@"
