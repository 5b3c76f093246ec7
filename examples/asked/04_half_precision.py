"""Send fp16 and bf16 by an MPI backend of PyTorch, from the wheel (pytorch #139178, #170073)."""
import torch
import torch.distributed as dist

import mpicoll.torch  # sets RANK

said = ""
try:
    dist.init_process_group("mpi")
except RuntimeError as error:
    said = str(error).partition(".")[0]
mpicoll.torch.init("mpicoll")
if dist.get_rank() == 0:
    print(f"mpi: {said}")
for dtype in torch.float16, torch.bfloat16:
    x = torch.full((2,), 1 + dist.get_rank() / 64, dtype=dtype)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        print("mpicoll:", x)
dist.destroy_process_group()
