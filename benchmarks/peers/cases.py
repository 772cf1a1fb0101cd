"""Shapes that peers are measured at: those of benchmarks/common/attention_case.cc, drawn alike."""

import dataclasses

MASK64 = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Case:
    """head_dim 128. `lengths`: "equal", "uniform" or "skewed" key lengths up to seqlen_k."""

    name: str
    batch: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int
    causal: bool = False
    lengths: str = "equal"
    head_dim: int = 128
    seed: int = 1

    @property
    def jagged(self):
        return self.lengths != "equal"

    def key_lengths(self):
        state = self.seed

        def draw():
            nonlocal state
            state = (state + 0x9E3779B97F4A7C15) & MASK64
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
            return 1 + (z ^ (z >> 31)) % self.seqlen_k

        if self.lengths == "equal":
            return [self.seqlen_k] * self.batch
        if self.lengths == "uniform":
            return [draw() for _ in range(self.batch)]
        return [min(draw(), draw()) for _ in range(self.batch)]

    def total_k(self):
        return sum(self.key_lengths())

    def flops(self, backward):
        pairs = self.seqlen_q * self.total_k()
        forward = 4.0 * self.num_heads * pairs * self.head_dim * (0.5 if self.causal else 1.0)
        return 2.5 * forward if backward else forward

    def record(self):
        return {"batch": self.batch, "num_heads": self.num_heads, "num_heads_kv": self.num_heads,
                "seqlen_q": self.seqlen_q, "seqlen_k": self.seqlen_k,
                "total_q": self.batch * self.seqlen_q, "total_k": self.total_k(),
                "head_dim": self.head_dim, "causal": self.causal, "jagged": self.jagged}


def dense(batch, heads, seqlen, causal=False):
    name = f"b{batch}h{heads}n{seqlen}" + (" causal" if causal else "")
    return Case(name, batch, heads, seqlen, seqlen, causal)


def cross(batch, longest, lengths):
    """Short queries against long keys."""
    return Case(f"b{batch}h3q512 k {lengths} {longest}", batch, 3, 512, longest, lengths=lengths)


PRESETS = {
    "peer": [dense(4, 16, 4096)],
    "dense": [dense(4, 16, 4096), dense(2, 16, 8192), dense(1, 16, 16384),
              cross(96, 16384, "equal")],
    "causal": [dense(1, 16, 16384, True), dense(4, 16, 4096, True)],
    "jagged": [cross(768, 4096, "uniform"), cross(768, 8192, "uniform"),
               cross(768, 16384, "uniform"), cross(768, 16384, "skewed"),
               cross(256, 16384, "uniform")],
}
