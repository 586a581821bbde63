"""Tests of PyTorch's suite that fail over the backend "tutti", each with its reason. None of the reasons is Tutti's."""
SYNC_BATCH_NORM = "torch's SyncBatchNorm refuses modules on the CPU, over gloo too"
NCCL = "makes a group of NCCL's by its name"
DEVICE_IDS = "looks at device_ids, which cuda_is_cpu.py takes away"

OF_GLOO = "torch before 2.15 gives monitored_barrier to gloo alone"

ALWAYS = {"test_ddp_logging_data_cpu": "torch logs the name of every backend that is not its own as 'custom'"}
OF_GPU_TESTS = {
    "test_DistributedDataParallel_SyncBatchNorm": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Channels_Last": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_half": SYNC_BATCH_NORM,
    "test_ddp_inference": SYNC_BATCH_NORM,
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": SYNC_BATCH_NORM,
    "test_sync_bn_logged": SYNC_BATCH_NORM,
    "test_ddp_device": DEVICE_IDS,
    "test_ddp_logging_data_gpu": DEVICE_IDS,
    "test_monitored_barrier_allreduce_hang": NCCL,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": NCCL,
    "test_nccl_high_priority_stream": NCCL,
}
OF_OLDER_TORCH = {"test_monitored_barrier_gloo": OF_GLOO, "test_monitored_barrier_gloo_subgroup": OF_GLOO}


def of(options, torch_version):
    older = tuple(map(int, torch_version.split(".")[:2])) < (2, 15)
    return {**ALWAYS, **(OF_GPU_TESTS if options.gpu_tests else {}), **(OF_OLDER_TORCH if older else {})}
