"""Timing on the GPU, and the tensors of a case."""

import random
import statistics

import torch

WARM_UPS = 10


def time_in_turns(calls, runs):
    """ms of each run of each call, by CUDA events. A round runs every call once, in an order drawn
    anew: a card at its power limit runs a call at the clock that the calls before it left, so no
    call may have the same ones before it in every round."""
    for call in calls:
        for _ in range(WARM_UPS):
            call()
    events = [[] for _ in calls]
    torch.cuda.synchronize()
    orders = random.Random(1)
    for _ in range(runs):
        for which in orders.sample(range(len(calls)), len(calls)):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            calls[which]()
            stop.record()
            events[which].append((start, stop))
    torch.cuda.synchronize()
    return [[start.elapsed_time(stop) for start, stop in pairs] for pairs in events]


def median_ms(call, runs):
    return statistics.median(time_in_turns([call], runs)[0])


class Tensors:
    """q, dout [total_q, heads, dim], k, v [total_k, heads, dim] of N(0, 1), and their offsets."""

    def __init__(self, case):
        self.case = case
        generator = torch.Generator(device="cuda").manual_seed(case.seed)

        def normal(tokens):
            shape = (tokens, case.num_heads, case.head_dim)
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

        total_q, total_k = case.batch * case.seqlen_q, case.total_k()
        self.q, self.dout = normal(total_q), normal(total_q)
        self.k, self.v = normal(total_k), normal(total_k)
        self.lengths_k = torch.tensor(case.key_lengths(), device="cuda", dtype=torch.int32)
        self.lengths_q = torch.full_like(self.lengths_k, case.seqlen_q)

        def offsets(lengths):
            zero = torch.zeros(1, device="cuda", dtype=torch.int32)
            return torch.cat([zero, lengths.cumsum(0, dtype=torch.int32)])

        self.cu_q, self.cu_k = offsets(self.lengths_q), offsets(self.lengths_k)

    def dense(self, tensor):
        """[batch, seqlen, heads, dim] of a case whose sequences are equally long."""
        case = self.case
        return tensor.view(case.batch, -1, case.num_heads, case.head_dim)
