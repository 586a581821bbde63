"""An overflow inside libtutti, which a libtutti with AddressSanitizer reports: a tensor says that it has more memory than it has.

With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""
import torch
import torch.distributed as dist

dist.init_process_group("tutti")
x = torch.ones(4096)
x.untyped_storage().resize_(1024)
dist.all_reduce(x)
print("nobody has seen it")
