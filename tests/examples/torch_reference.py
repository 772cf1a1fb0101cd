"""What tests of PyTorch extensions compare with: PyTorch's attention in double precision, and the
mathematics of mxfa's recipe in the same precision, in doubles."""

import torch

EMPTY = ((0, 40, 16, 0, 1), (30, 0, 50, 0, 1))
UNEVEN = ((70, 1, 33, 128), (130, 5, 64, 257))


def case(lengths=UNEVEN, heads=(4, 2), head_dim=64, dtype=torch.int32, dense=False, **options):
    return dict(lengths=lengths, heads=heads, head_dim=head_dim, dtype=dtype, dense=dense,
                options=options)


CASES = {
    "dense": case(((96, 96), (130, 130)), heads=(4, 4), dense=True),
    "dense_causal": case(((80, 80, 80), (200, 200, 200)), head_dim=128, dense=True, causal=True),
    "jagged": case(),
    "jagged_d128": case(heads=(6, 2), head_dim=128, dtype=torch.int64),
    "jagged_d40": case(heads=(2, 2), head_dim=40, softmax_scale=0.25),
    "causal": case(((70, 1, 40, 128), (130, 5, 20, 257)), heads=(4, 1), causal=True),
    "causal_top_left": case(causal=True, top_left=True),
    "window": case(window_left=30, window_right=10),
    "empty": case(EMPTY),
    "empty_causal": case(EMPTY, heads=(2, 2), causal=True),
}


def offsets(lengths, dtype=torch.int32):
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=dtype)


def normal(*shape, seed=0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.bfloat16()


class Batch:
    """q, k, v and dout of a case, jagged, its offsets, and which keys each sequence's rows see."""

    def __init__(self, lengths, heads, head_dim, dtype, dense, options):
        self.lengths, self.dense, self.options = lengths, dense, options
        total_q, total_k = (sum(side) for side in lengths)
        shapes = ((total_q, heads[0]), (total_k, heads[1]), (total_k, heads[1]),
                  (total_q, heads[0]))
        self.tensors = [normal(*shape, head_dim, seed=i) for i, shape in enumerate(shapes)]
        self.cu_seqlens = [offsets(side, dtype) for side in lengths]
        self.scale = options.get("softmax_scale") or head_dim**-0.5

    def visible(self, seqlen_q, seqlen_k):
        shift = 0 if self.options.get("top_left") else seqlen_k - seqlen_q
        ahead = torch.arange(seqlen_k) - torch.arange(seqlen_q)[:, None] - shift
        seen = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
        if self.options.get("causal"):
            seen &= ahead <= 0
        if self.options.get("window_left", -1) >= 0:
            seen &= ahead >= -self.options["window_left"]
        if self.options.get("window_right", -1) >= 0:
            seen &= ahead <= self.options["window_right"]
        return seen

    def sequences(self, tensors):
        """(q, k, v, dout, visible) of each sequence, [heads, tokens, head_dim]"""
        sides = [self.lengths[i] for i in (0, 1, 1, 0)]
        parts = [x.split(list(side)) for x, side in zip(tensors, sides)]
        for q, k, v, dout in zip(*parts):
            yield *(x.transpose(0, 1) for x in (q, k, v, dout)), self.visible(len(q), len(k))


def of_torch(batch):
    """o, dq, dk, dv: of PyTorch's attention in double. It has no rule for rows that see nothing."""
    leaves = [x.double().requires_grad_() for x in batch.tensors[:3]]
    dout = batch.tensors[3].double()
    parts = []
    for q, k, v, _, seen in batch.sequences([*leaves, dout]):
        rows = seen.any(1)
        part = torch.zeros(q.shape, dtype=torch.double)
        if rows.any():
            part[:, rows] = torch.nn.functional.scaled_dot_product_attention(
                q[:, rows], k, v, attn_mask=seen[rows], scale=batch.scale, enable_gqa=True)
        parts.append(part.transpose(0, 1))
    o = torch.cat(parts)
    o.backward(dout)
    return [o.detach(), *(x.grad for x in leaves)]


def mx(x, rows, columns):
    """x [heads, r, c] as E4M3 payload with a power of two for each `rows` x `columns` values."""
    heads, r, c = x.shape
    padded = torch.nn.functional.pad(x, (0, -c % columns, 0, -r % rows))
    blocks = padded.unflatten(2, (-1, columns)).unflatten(1, (-1, rows))
    amax = blocks.abs().amax((2, 4), keepdim=True)
    scale = torch.where(amax > 0, 2 ** torch.ceil(torch.log2(amax / 448)), 1)
    codes = (blocks / scale).to(torch.float8_e4m3fn).double()
    return (codes * scale).flatten(3, 4).flatten(1, 2)[:, :r, :c]


def twin_of_sequence(q, k, v, dout, seen, scale):
    """The same mathematics in the same precision (docs/numerics.md), in doubles: o, dq, dk, dv, lse
    of one sequence, k and v once for each query head."""
    head_dim = q.shape[2]
    q, k, v, dout = (mx(x.double(), 32, head_dim) for x in (q, k, v, dout))
    s = torch.where(seen, scale * q @ k.mT, -torch.inf)
    m = s.amax(2, keepdim=True) if s.shape[2] else torch.full((*s.shape[:2], 1), -torch.inf)
    e = torch.where(seen, torch.exp(s - m), 0)
    total = e.sum(2, keepdim=True)
    lse = m + torch.log(total)
    o = (e * 256).to(torch.float8_e4m3fn).double() / 256 @ v / total.clamp(min=1)
    p = e / total.clamp(min=1)
    delta = (dout * o.bfloat16().double()).sum(2, keepdim=True)
    ds = p * (dout @ v.mT - delta)
    return (o, scale * mx(ds, 64, 64) @ k, scale * mx(ds, 64, 16).mT @ q,
            mx(p, 32, 32).mT @ dout, lse)


def of_twin(batch):
    """o, dq, dk, dv, lse as run() has them."""
    results = []
    for q, k, v, dout, seen in batch.sequences(batch.tensors):
        group = len(q) // len(k)
        k, v = (x.repeat_interleave(group, 0) for x in (k, v))
        o, dq, dk, dv, lse = twin_of_sequence(q, k, v, dout, seen, batch.scale)
        dk, dv = (x.unflatten(0, (-1, group)).sum(1) for x in (dk, dv))
        results.append([x.transpose(0, 1) for x in (o, dq, dk, dv)] + [lse[:, :, 0]])
    columns = list(zip(*results))
    return [torch.cat(x) for x in columns[:4]] + [torch.cat(columns[4], 1)]


def decibels(reference, x):
    return 10 * torch.log10(reference.square().sum() / (reference - x.double()).square().sum())
