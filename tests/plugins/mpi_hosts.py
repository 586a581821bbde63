#!/usr/bin/env python3
"""One launcher of an MPI over two hosts (network namespaces), two ranks each: the backend mpi between hosts.

    tests/plugins/mpi_hosts.py openmpi|mpich [--two-jobs] -- ./program args

--two-jobs: a launcher on each host, with two ranks that are told that all are one world of four; each must be told that it cannot be.
"""
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
import hosts  # noqa: E402

NOT_PERMITTED = 77
# As ssh is called: HOST COMMAND... Each host has a name of its own, or the launchers take them for one.
AGENT = """#!/bin/sh
host=$1
shift
case $host in
{cases}
*) echo "agent: no host $host" >&2; exit 1 ;;
esac
exec ip netns exec $space unshare --uts sh -c "hostname $name; $*"
"""
HOSTS = (0, 1)
ADDRESSES = [hosts.address(host) for host in HOSTS]


def make_agent(network, folder):
    cases = "\n".join(f"{hosts.address(host)}) space={network.name(host)} name=host-{host} ;;" for host in HOSTS)
    agent = pathlib.Path(folder) / "agent"
    agent.write_text(AGENT.format(cases=cases))
    agent.chmod(0o755)
    return str(agent)


def openmpi(agent, variables, where, ranks, program):
    given = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
    # Of two jobs all ranks are to say why they end. Over hosts the launcher would not return with that flag once a rank is killed.
    recovery = ["--enable-recovery"] if len(where) == 1 else []
    return ["mpirun.openmpi", "--allow-run-as-root", *recovery, "-H", ",".join(f"{each}:2" for each in where), "-n", str(ranks),
            "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "eth0", "--mca", "pml", "ob1",
            "--mca", "btl", "tcp,vader,self", "--mca", "btl_tcp_if_include", "eth0", *given, *program]


def mpich(agent, variables, where, ranks, program):
    given = [word for name, value in variables.items() for word in ("-genv", name, value)]
    return ["mpiexec.mpich", "-hosts", ",".join(where), "-ppn", "2", "-n", str(ranks), "-localhost", where[0],
            "-launcher", "rsh", "-launcher-exec", agent, *given, *program]


def start(agent, host, command, **options):
    return subprocess.Popen([agent, ADDRESSES[host], *map(shlex.quote, command)], stdin=subprocess.DEVNULL, **options)


def one_job(agent, launch, variables, program):
    return start(agent, 0, launch(agent, variables, ADDRESSES, 4, program)).wait(timeout=500)


def two_jobs(agent, launch, variables, program):
    jobs = []
    for host in HOSTS:
        ranks = ["sh", "-c", f'TUTTI_WORLD_SIZE=4 TUTTI_RANK=$((2 * {host} + ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}})) exec "$0" "$@"']
        command = launch(agent, variables, ADDRESSES[host:host + 1], 2, ranks + program)
        jobs.append(start(agent, host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = "".join(job.communicate(timeout=100)[0] for job in jobs)
    why = 'backend "mpi": the world has 4 ranks, but MPI_COMM_WORLD of its rank 0 has 2: the processes were not started as one job'
    told = [rank for rank in range(4) if f"(rank {rank}): {why}" in said]
    print(said if len(told) != 4 else "all ranks were told that they are of two jobs")
    return 0 if len(told) == 4 else 1


def main():
    if "--" not in sys.argv:
        sys.exit(__doc__)
    own, program = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
    launch = {"openmpi": openmpi, "mpich": mpich}[own[0]]
    if os.geteuid() != 0:
        print("mpi_hosts: network namespaces need root", file=sys.stderr)
        return NOT_PERMITTED
    variables = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500", "TUTTI_BACKEND": "mpi"}
    network = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            hosts.remove_stale()
            network = hosts.Network()
            network.build(len(HOSTS), "")
            agent = make_agent(network, folder)
            return (two_jobs if "--two-jobs" in own else one_job)(agent, launch, variables, program)
        except (hosts.NotPermitted, FileNotFoundError) as failure:
            if isinstance(failure, FileNotFoundError) and not hosts.is_not_installed(failure):
                raise
            print(f"mpi_hosts: {failure}", file=sys.stderr)
            return NOT_PERMITTED
        finally:
            if network:
                network.take_down()


if __name__ == "__main__":
    sys.exit(main())
