"""What ./dev gpu runs beside the GoogleTest programs: jobs of several ranks, which share the GPU."""
import collections

# `command`: for a shell, with {build} and {data} filled in. `must`: a pattern that its output has so often, besides ending with 0
# (`ends_well` False: the launcher reports the rank that killed itself).
Job = collections.namedtuple("Job", "name seconds command must times ends_well", defaults=(None, 1, True))

CONFORMANCE = "{build}/tests/conformance/conformance_rank --device cuda --one-variant-in 4 --counts 0,1,1000 --write --matrix {build}/matrix/{name}.json"
MPIRUN = "mpirun.openmpi --oversubscribe"
LOSS = "{build}/tests/device/loss_rank"
SUM = "told of rank .* the survivors' sum is right"
# Ranks that say they are on hosts of their own: NCCL 2.28 refuses two on one GPU of one host. Nothing that NCCL supports.
AS_HOSTS = "bash -c 'NCCL_HOSTID=rank$RANK NCCL_SOCKET_IFNAME=lo exec \"$@\"' rank"
# NCCL 2.30 takes several ranks on one GPU, as an experiment, where each has few channels and NVLS is not asked for. Where that
# fails or hangs its documentation advises fewer (NCCL_MAX_CTAS=1 ./dev gpu) and NCCL_NET_GDR_LEVEL=LOC.
SHARED = ("NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=${{NCCL_MAX_CTAS:-4}} "
          "TUTTI_NCCL_LIBRARY=${{TUTTI_TEST_GPU_NCCL:?none was carried}} tutti run")
FASHION = "{build}/examples/07_fashion_mnist/fashion_mnist --data {data}"

JOBS = [
    *(Job(f"conformance_native_{n}", 120, f"tutti run -n {n} {CONFORMANCE} --backend native --canonical") for n in (1, 2, 4, 8)),
    *(Job(f"conformance_native_mixed_{n}", 120, f"tutti run -n {n} {CONFORMANCE} --backend native --canonical --mixed") for n in (2, 4)),
    *(Job(f"conformance_gloo_{n}", 120, f"tutti run -n {n} {CONFORMANCE} --backend gloo --canonical") for n in (1, 2, 4, 8)),
    *(Job(f"conformance_mpi_{n}", 120, f"{MPIRUN} -n {n} {CONFORMANCE} --backend mpi") for n in (1, 2, 4, 8)),
    Job("conformance_nccl_1", 120, f"tutti run -n 1 {CONFORMANCE} --backend nccl"),
    Job("conformance_nccl_2_hostid", 120, f"tutti run -n 2 {AS_HOSTS} {CONFORMANCE} --backend nccl"),
    Job("conformance_nccl_2", 120, f"{SHARED} -n 2 {CONFORMANCE} --backend nccl"),
    Job("conformance_nccl_4", 180, f"{SHARED} -n 4 {CONFORMANCE} --backend nccl"),
    *(Job(f"loss_native_{n}", 60, f"tutti run -n {n} {LOSS} native", SUM, n - 1, False) for n in (2, 4)),
    Job("loss_gloo_3", 60, f"tutti run -n 3 {LOSS} gloo", SUM, 2, False),
    Job("loss_nccl_2_hostid", 60, f"tutti run -n 2 {AS_HOSTS} {LOSS} nccl", SUM, 1, False),
    Job("loss_nccl_2", 60, f"{SHARED} -n 2 {LOSS} nccl", SUM, 1, False),
    Job("memcheck_native_1", 200, f"compute-sanitizer --error-exitcode 9 {CONFORMANCE} --backend native --counts 5", "ERROR SUMMARY: 0 errors"),
    Job("bench_staging_1", 90, "tutti run -n 1 {build}/bench/device/bench_staging 64"),
    Job("bench_staging_2", 90, "tutti run -n 2 {build}/bench/device/bench_staging"),
    Job("bench_nccl_1", 90, "tutti run -n 1 {build}/bench/device/bench_nccl"),
    *(Job(f"fashion_mnist_cuda_{n}", 120, f"tutti run -n {n} {FASHION} --device cuda") for n in (1, 2)),
    Job("fashion_mnist_cpu_2", 120, f"tutti run -n 2 {FASHION}"),
]
