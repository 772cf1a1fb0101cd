"""PyTorch's own attention: scaled_dot_product_attention with its flash kernels, or varlen_attn."""

import torch

IMPL = "torch bf16"


def calls(tensors):
    """{"forward": call, "backward": call}"""
    case = tensors.case
    q, k, v = (t.detach().requires_grad_(True) for t in (tensors.q, tensors.k, tensors.v))
    if case.jagged:
        from torch.nn.attention.varlen import varlen_attn

        def attend():
            return varlen_attn(q, k, v, tensors.cu_q, tensors.cu_k, case.seqlen_q, case.seqlen_k)

        dout = tensors.dout
    else:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        heads_first = [tensors.dense(t).transpose(1, 2) for t in (q, k, v)]

        def attend():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return scaled_dot_product_attention(*heads_first, is_causal=case.causal)

        dout = tensors.dense(tensors.dout).transpose(1, 2)
    out = attend()

    def forward():
        with torch.no_grad():
            attend()

    def backward():
        torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    return {"forward": forward, "backward": backward}
