"""Trains a toy cross-attention over histories of uneven lengths: with mxfa in MXFP8, and from the
same start on the same data with PyTorch's attention in FP32. Prints both losses, and how far the
last step's o, dq, dk and dv are from what PyTorch makes of the same q, k, v and dout in FP32."""

import argparse
import sys
import time

import torch
from torch.nn.functional import mse_loss, scaled_dot_product_attention

from mxfa_torch import mxfa_attention

HEADS, HEAD_DIM, FEATURES = 2, 64, 16
USERS, QUERIES, LONGEST = 12, 16, 200


class CrossAttention(torch.nn.Module):
    """Queries of each user read the events of that user's history."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.q, self.k, self.v = (
            torch.nn.Linear(FEATURES, HEADS * HEAD_DIM, bias=False) for _ in range(3)
        )
        self.out = torch.nn.Linear(HEADS * HEAD_DIM, 1)

    def forward(self, queries, events, cu_seqlens_q, cu_seqlens_k):
        inputs = ((self.q, queries), (self.k, events), (self.v, events))
        self.seen = [layer(x).unflatten(-1, (HEADS, HEAD_DIM)).bfloat16() for layer, x in inputs]
        self.seen.append(self.attention(*self.seen, cu_seqlens_q, cu_seqlens_k))
        return self.out(self.seen[-1].flatten(1).float())


def torch_attention(q, k, v, cu_seqlens_q, cu_seqlens_k):
    """In FP32, one sequence after the other."""
    parts = [x.float().split(cu.diff().tolist())
             for x, cu in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))]
    return torch.cat([
        scaled_dot_product_attention(*(x.transpose(0, 1) for x in sequence)).transpose(0, 1)
        for sequence in zip(*parts)
    ])


def offsets(lengths):
    return torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()


def batch(generator, device):
    """Each query asks for the event that is most like it, and wants its last feature."""
    lengths_q = torch.randint(1, QUERIES + 1, (USERS,), generator=generator)
    lengths_k = torch.randint(1, LONGEST + 1, (USERS,), generator=generator)
    events = torch.randn(int(lengths_k.sum()), FEATURES, generator=generator)
    queries, wanted = [], []
    for mine, count in zip(events.split(lengths_k.tolist()), lengths_q.tolist()):
        picked = mine[torch.randint(len(mine), (count,), generator=generator)]
        wanted.append(picked[:, -1:])
        queries.append(torch.cat([picked[:, :-1], torch.zeros(count, 1)], 1))
    tensors = torch.cat(queries), events, offsets(lengths_q), offsets(lengths_k), torch.cat(wanted)
    return [x.to(device) for x in tensors]


def progress(label, done, total, start):
    """One line on a terminal, erased at the end; nothing elsewhere."""
    if not sys.stderr.isatty():
        return
    filled = 24 * done // total
    left = (time.monotonic() - start) * (total - done) / done
    line = f"{label} [{'#' * filled:.<24}] {100 * done // total:3}%  {left:.0f} s left"
    print("\r" + (line if done < total else "") + "\x1b[K", end="", file=sys.stderr, flush=True)


def train(label, attention, options):
    """(the model, losses of the steps)"""
    torch.manual_seed(options.seed)
    model = CrossAttention(attention).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(options.seed)
    losses, start = [], time.monotonic()
    for step in range(options.steps):
        *inputs, wanted = batch(generator, options.device)
        loss = mse_loss(model(*inputs), wanted)
        optimizer.zero_grad()
        for x in model.seen:
            x.retain_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        progress(label, step + 1, options.steps, start)
    model.lengths = inputs[2:]
    return model, losses


def sqnr(reference, x):
    error = (reference.double() - x.double()).square().sum()
    return 10 * torch.log10(reference.double().square().sum() / error).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps: expected at least 1")

    model, losses = train("MXFP8", mxfa_attention, options)
    _, in_fp32 = train("FP32", torch_attention, options)
    *inputs, o = model.seen
    again = [x.detach().float().requires_grad_() for x in inputs]
    o_again = torch_attention(*again, *model.lengths)
    o_again.backward(o.grad.float())
    figures = [("o", o_again, o)]
    figures += [(f"d{name}", x.grad, y.grad) for name, x, y in zip("qkv", again, inputs)]
    print("SQNR against torch in FP32: "
          + ", ".join(f"{name} {sqnr(x, y):.1f} dB" for name, x, y in figures))
    last = max(options.steps // 10, 1)
    for name, all_losses in (("mxfa, MXFP8", losses), ("torch, FP32", in_fp32)):
        print(f"loss, {name}: {all_losses[0]:.4f} at the first step, "
              f"{sum(all_losses[-last:]) / last:.4f} over the last {last}")


if __name__ == "__main__":
    main()
