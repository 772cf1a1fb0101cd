"""mxfa's attention for PyTorch: MXFP8 forward and backward, sequences of uneven lengths."""

import torch

import _mxfa_torch

__all__ = ["mxfa_attention"]


def mxfa_attention(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, causal=False,
                   softmax_scale=None, *, return_lse=False, **options):
    """Softmax attention in MXFP8, differentiable in q, k and v, on the CPU or a Hopper GPU.

    q: [total_q, num_heads, head_dim], k and v: [total_k, num_heads_kv, head_dim], torch.bfloat16
        (autocast casts them); head_dim is a multiple of 8 up to 128; num_heads_kv divides
        num_heads. Sequence s has the rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]) of q and
        [cu_seqlens_k[s], cu_seqlens_k[s + 1]) of k and v.
    cu_seqlens_q, cu_seqlens_k: torch.int32 or torch.int64 [batch + 1], on the device of q, where a
        GPU's are not checked. Without both of them the batch is dense: q [batch, seqlen_q,
        num_heads, head_dim], k and v [batch, seqlen_k, num_heads_kv, head_dim].
    causal: query i sees keys j <= i + seqlen_k - seqlen_q; with top_left=True, as in
        torch.nn.functional.scaled_dot_product_attention, j <= i.
    softmax_scale: default 1 / sqrt(head_dim).
    return_lse: (o, lse) in place of o. lse: torch.float32 [num_heads, total_q], or [batch,
        num_heads, seqlen_q]; no gradient passes through it.
    options: top_left, window_left, window_right, deterministic, half_scores, qk_bf16, dp_bf16,
        leak_free, as in mxfa/attention.h. torch.use_deterministic_algorithms asks for
        `deterministic` too.

    Returns o, as q. A query that sees no key has o = 0 and lse = -inf. Any strides are taken;
    a tensor whose head_dim has gaps is copied. Raises ValueError for a bad
    argument, NotImplementedError for what mxfa does not have, with mxfa's text.
    """
    settings = _settings({"causal": causal, "softmax_scale": softmax_scale, **options})
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check(name, x)
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(x, torch.Tensor | None):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
        q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype != torch.bfloat16:
            raise ValueError(f"{name}: expected torch.bfloat16, got {x.dtype}")
    dense = q.shape[:2] if cu_seqlens_q is None and cu_seqlens_k is None else None
    if dense and kind == "cpu":
        q, k, v, cu_seqlens_q, cu_seqlens_k = _packed(q, k, v)
    q, k, v = (_rows(x) for x in (q, k, v))
    o, lse = _Attention.apply(q, k, v, cu_seqlens_q, cu_seqlens_k, settings)
    if dense:
        o = o if o.dim() == 4 else o.unflatten(0, dense)
        lse = lse.unflatten(1, dense).transpose(0, 1)
    return (o, lse) if return_lse else o


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens_q, cu_seqlens_k, settings):
        inputs = (q, k, v, cu_seqlens_q, cu_seqlens_k)
        o, lse, row_max = _mxfa_torch.forward(inputs, settings, _stream(q))
        ctx.save_for_backward(*inputs, o, lse, row_max)
        ctx.settings = settings
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, dout, _):
        if torch.is_grad_enabled():
            raise NotImplementedError("create_graph: expected False, as mxfa_attention has no "
                                      "second derivative, got True")
        if dout is None:
            return (None,) * 6
        wanted = ctx.needs_input_grad[:3]
        gradients = _mxfa_torch.backward(ctx.saved_tensors, _rows(dout), wanted, ctx.settings,
                                _stream(dout))
        return *gradients, None, None, None


def _settings(options):
    settings = _mxfa_torch.Options()
    for name, value in options.items():
        if not hasattr(settings, name):
            raise TypeError(f"mxfa_attention() got an unexpected keyword argument {name!r}")
        try:
            setattr(settings, name, value)
        except TypeError:
            raise TypeError(f"{name}: got a {type(value).__name__}, {value!r}") from None
    return settings


def _check(name, x):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.is_nested:
        raise ValueError(f"{name}: expected a plain tensor, got a nested one: give .values() of "
                         "jagged tensors, and their .offsets() as cu_seqlens")
    if x.layout != torch.strided or x.dim() not in (3, 4):
        raise ValueError(f"{name}: expected a strided tensor of 3 or 4 dimensions, got "
                         f"{list(x.shape)}, {x.layout}")
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: expected a tensor on a CPU or a CUDA device, got {x.device}")


def _rows(x):
    """x, copied where elements of a row do not lie side by side, as a GPU's kernels want them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _packed(q, k, v):
    """A dense batch as mxfa's CPU takes it, jagged, with the offsets of its sequences."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or x.shape[0] != q.shape[0]:
            raise ValueError(f"{name}: expected [batch, seqlen, heads, head_dim] of one batch "
                             f"where no cu_seqlens are given, got {list(x.shape)}")
    batch = torch.arange(q.shape[0] + 1)
    return (*(x.flatten(0, 1) for x in (q, k, v)), batch * q.shape[1], batch * k.shape[1])


def _stream(x):
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
