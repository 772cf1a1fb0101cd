"""Writes tests/data/cross_attention_golden.txt: the cross-attention module differentiated by JAX.

Inputs and all 24 tensors of src/reference/cross_attention.h in double precision, from an
implementation that shares nothing with the library: the forward is written with jax.numpy and every
gradient comes from automatic differentiation. Gradients of intermediate tensors are those of zero
"taps" added to them.

    python -m venv venv && venv/bin/pip install jax
    venv/bin/python tools/golden/make_module_golden.py
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

OUTPUT = pathlib.Path(__file__).parents[2] / "tests" / "data" / "cross_attention_golden.txt"
CU_SEQLENS_K = [0, 4, 4, 9]
SEQLEN_Q, DIM, NUM_HEADS, NUM_HEADS_KV, HEAD_DIM = 2, 10, 4, 2, 8
EPS = 1e-3
BATCH = len(CU_SEQLENS_K) - 1
TOTAL_K = CU_SEQLENS_K[-1]
WIDTH_Q, WIDTH_K = NUM_HEADS * HEAD_DIM, NUM_HEADS_KV * HEAD_DIM

TAP_SHAPES = {
    "seed_norm": (SEQLEN_Q, DIM),
    "kv_norm": (TOTAL_K, DIM),
    "q": (SEQLEN_Q, WIDTH_Q),
    "q_seq": (BATCH * SEQLEN_Q, WIDTH_Q),
    "k": (TOTAL_K, WIDTH_K),
    "v": (TOTAL_K, WIDTH_K),
    "o": (BATCH * SEQLEN_Q, WIDTH_Q),
}


def rms_norm(x, weight):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def attend(q, k, v):
    """q [seqlen_q, heads, D], k, v [seqlen_k, heads_kv, D]; returns o and lse [heads, seqlen_q]."""
    if k.shape[0] == 0:
        return jnp.zeros_like(q), jnp.full((NUM_HEADS, q.shape[0]), -jnp.inf)
    k = jnp.repeat(k, NUM_HEADS // NUM_HEADS_KV, axis=1)
    v = jnp.repeat(v, NUM_HEADS // NUM_HEADS_KV, axis=1)
    scores = jnp.einsum("ihd,jhd->hij", q, k) / np.sqrt(HEAD_DIM)
    probabilities = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("hij,jhd->ihd", probabilities, v), jax.nn.logsumexp(scores, axis=-1)


def module(inputs, taps):
    seed_norm = rms_norm(inputs["seeds"], inputs["seed_norm_weight"]) + taps["seed_norm"]
    kv_norm = rms_norm(inputs["kv"], inputs["kv_norm_weight"]) + taps["kv_norm"]
    q = seed_norm @ inputs["wq"].T + taps["q"]
    k = kv_norm @ inputs["wk"].T + taps["k"]
    v = kv_norm @ inputs["wv"].T + taps["v"]
    q_seq = jnp.tile(q, (BATCH, 1)) + taps["q_seq"]
    outputs, lses = [], []
    for s in range(BATCH):
        rows, keys = slice(s * SEQLEN_Q, (s + 1) * SEQLEN_Q), slice(*CU_SEQLENS_K[s : s + 2])
        o, lse = attend(
            q_seq[rows].reshape(SEQLEN_Q, NUM_HEADS, HEAD_DIM),
            k[keys].reshape(-1, NUM_HEADS_KV, HEAD_DIM),
            v[keys].reshape(-1, NUM_HEADS_KV, HEAD_DIM),
        )
        outputs.append(o.reshape(SEQLEN_Q, WIDTH_Q))
        lses.append(lse)
    o = jnp.concatenate(outputs) + taps["o"]
    y = o @ inputs["wo"].T
    forward = dict(seed_norm=seed_norm, kv_norm=kv_norm, q=q, k=k, v=v, o=o, y=y)
    forward["lse"] = jnp.concatenate(lses, axis=1)
    return forward


def main():
    rng = np.random.default_rng(7)
    normal = lambda *shape, scale=1.0: jnp.asarray(rng.standard_normal(shape) * scale)
    inputs = {
        "seeds": normal(SEQLEN_Q, DIM),
        "kv": normal(TOTAL_K, DIM, scale=2.0),
        "seed_norm_weight": 1 + normal(DIM, scale=0.2),
        "kv_norm_weight": 1 + normal(DIM, scale=0.2),
        "wq": normal(WIDTH_Q, DIM, scale=0.6),
        "wk": normal(WIDTH_K, DIM, scale=0.6),
        "wv": normal(WIDTH_K, DIM, scale=0.3),
        "wo": normal(DIM, WIDTH_Q, scale=0.2),
    }
    dy = normal(BATCH * SEQLEN_Q, DIM)
    taps = {name: jnp.zeros(shape) for name, shape in TAP_SHAPES.items()}
    forward = module(inputs, taps)
    loss = lambda i, t: jnp.sum(module(i, t)["y"] * dy)
    of_inputs, of_taps = jax.grad(loss, argnums=(0, 1))(inputs, taps)
    heads = lambda x: x.reshape(-1, NUM_HEADS, HEAD_DIM)
    gradients = {"d" + name: value for name, value in of_inputs.items()}
    gradients |= {"dseed_norm": of_taps["seed_norm"], "dkv_norm": of_taps["kv_norm"]}
    gradients |= {"dq": of_taps["q"], "dq_seq": of_taps["q_seq"], "dk": of_taps["k"]}
    gradients |= {"dv": of_taps["v"], "dout": of_taps["o"]}
    gradients["delta"] = jnp.sum(heads(forward["o"]) * heads(of_taps["o"]), axis=-1).T
    assert len(forward | gradients) == 24

    lines = []
    for name, value in (inputs | {"dy": dy} | forward | gradients).items():
        array = np.atleast_2d(np.asarray(value))
        numbers = " ".join(f"{x:.17g}" for x in array.ravel())
        lines.append(f"{name} {array.shape[0]} {array.shape[1]} {numbers}\n")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text("".join(lines))


if __name__ == "__main__":
    main()
