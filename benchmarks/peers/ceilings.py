"""What the GPU reaches at best: FP8 and BF16 products, and copying."""

import torch

SIZE = 8192
COPY_BYTES = 2 << 30


def calls():
    """{impl: (call, FLOPs or bytes, whether those are bytes)}"""
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda", dtype=torch.float32)
    source, target = (torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8) for _ in range(2))
    source.fill_(1)
    flops = 2.0 * SIZE**3
    return {
        "fp8_gemm": (lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16), flops,
                     False),
        "bf16_gemm": (lambda: torch.mm(a, b), flops, False),
        "copy": (lambda: target.copy_(source), 2.0 * COPY_BYTES, True),
    }
