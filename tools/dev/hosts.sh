# ./dev hosts N [--ranks M] [--rate R] [--port P] [--grace S] -- CMD
command -v ip >/dev/null && command -v tc >/dev/null || install_packages iproute2
exec python3 tools/hosts.py "$@"
