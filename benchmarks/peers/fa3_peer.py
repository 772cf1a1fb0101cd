"""FlashAttention-3 where one of its packages is installed: flash_attn_interface, or
fa3_fwd_interface, which has the forward only. FP8 has a forward only."""

import importlib
import importlib.util

import torch

MODULES = ("flash_attn_interface", "fa3_fwd_interface")

BF16, FP8 = "fa3 bf16", "fa3 fp8"


def calls(tensors, fp8=False):
    """{"forward": call, "backward": call}; ImportError where no package is there."""
    found = [name for name in MODULES if importlib.util.find_spec(name) is not None]
    if not found:
        raise ImportError(f"none of {', '.join(MODULES)} is installed")
    library = importlib.import_module(found[0])
    case = tensors.case
    inputs = [tensors.q, tensors.k, tensors.v]
    if fp8:
        inputs = [t.to(torch.float8_e4m3fn) for t in inputs]
    q, k, v = (t.detach() if fp8 else t.detach().requires_grad_(True) for t in inputs)
    if case.jagged:

        def attend():
            return library.flash_attn_varlen_func(q, k, v, tensors.cu_q, tensors.cu_k,
                                                  case.seqlen_q, case.seqlen_k,
                                                  causal=case.causal)

        dout = tensors.dout
    else:
        batched = [tensors.dense(t) for t in (q, k, v)]

        def attend():
            return library.flash_attn_func(*batched, causal=case.causal)

        dout = tensors.dense(tensors.dout)

    def forward():
        with torch.no_grad():
            attend()

    if fp8:
        return {"forward": forward}
    out = attend()
    out = out[0] if isinstance(out, tuple) else out

    def backward():
        torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    return {"forward": forward, "backward": backward}
