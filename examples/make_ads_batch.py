#!/usr/bin/env python3
"""Makes ads.safetensors: a synthetic jagged cross-attention batch as ad ranking has it.

A few learned seed queries, the same for every user, look at each user's event history, whose
length is very uneven. Inputs pass RMSNorm before the projections, as in the fused module; events
of one user share a mean (people repeat themselves) and a few channels are large. dout is the
gradient of a click loss behind an output projection. Needs numpy; all arithmetic is double, so
only the final rounding to BF16 is left, and every machine gives the same bytes.

    python3 examples/make_ads_batch.py
"""

import argparse
from pathlib import Path

import numpy as np
from dump_format import cumulative, from_bf16, to_bf16, write_dump

HERE = Path(__file__).resolve().parent
MODEL_DIM, HEADS, HEAD_DIM, SEEDS = 256, 2, 128, 8
HISTORY = [1, 0, 3, 412, 17, 58, 7, 129, 2, 31]  # events of each user; one has none


def rms_norm(rows, weight):
    """[n, MODEL_DIM] -> the same shape, each row with mean square 1, times weight."""
    return rows / np.sqrt(np.mean(rows * rows, axis=1, keepdims=True) + 1e-6) * weight


def make_events(rng):
    """One [events, MODEL_DIM] array a user: a user mean, noise, and six heavy channels."""
    heavy = np.ones(MODEL_DIM)
    heavy[rng.choice(MODEL_DIM, size=6, replace=False)] = 6.0
    users = []
    for count in HISTORY:
        mean = 0.7 * rng.standard_normal(MODEL_DIM)
        users.append((mean + rng.standard_normal((count, MODEL_DIM))) * heavy)
    return users


def project(rows, weight):
    """[n, MODEL_DIM] x [MODEL_DIM, HEADS * HEAD_DIM] -> BF16 codes [n, HEADS, HEAD_DIM]."""
    return to_bf16((rows @ weight).reshape(len(rows), HEADS, HEAD_DIM))


def attend(q, k, v):
    """[SEEDS, HEADS, D], [n, HEADS, D] twice -> O [SEEDS, HEADS, D]; zero where n is 0."""
    if len(k) == 0:
        return np.zeros(q.shape)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD_DIM)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v)


def click_gradient(outputs, clicked, w_out, w_click):
    """d(mean log loss)/dO, one [SEEDS, HEADS, D] array a user.

    The click score is w_click . relu(O w_out), averaged over the seeds.
    """
    gradients = []
    for output, label in zip(outputs, clicked):
        hidden = output.reshape(SEEDS, -1) @ w_out
        score = np.maximum(hidden, 0) @ w_click
        error = 1 / (1 + np.exp(-score.mean())) - label
        back = (hidden > 0) * w_click @ w_out.T * (error / SEEDS / len(outputs))
        gradients.append(back.reshape(output.shape))
    return gradients


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE / "ads.safetensors")
    options = parser.parse_args()

    rng = np.random.Generator(np.random.PCG64(2026))
    width = HEADS * HEAD_DIM
    users = make_events(rng)
    seeds = rng.standard_normal((SEEDS, MODEL_DIM))
    norm_weight = 1 + 0.1 * rng.standard_normal(MODEL_DIM)
    w_q, w_k, w_v = rng.standard_normal((3, MODEL_DIM, width)) / np.sqrt(MODEL_DIM)
    w_out = rng.standard_normal((width, MODEL_DIM)) / np.sqrt(width)
    w_click = rng.standard_normal(MODEL_DIM) / np.sqrt(MODEL_DIM)
    clicked = rng.integers(0, 2, len(HISTORY))

    q = project(rms_norm(seeds, norm_weight), w_q)
    k = [project(rms_norm(events, norm_weight), w_k) for events in users]
    v = [project(rms_norm(events, norm_weight), w_v) for events in users]
    outputs = [
        attend(*(from_bf16(codes).astype(np.float64) for codes in (q, k_user, v_user)))
        for k_user, v_user in zip(k, v)
    ]
    tensors = {
        "q": np.concatenate([q] * len(users)),
        "k": np.concatenate(k),
        "v": np.concatenate(v),
        "dout": to_bf16(np.concatenate(click_gradient(outputs, clicked, w_out, w_click))),
        "cu_seqlens_q": cumulative([SEEDS] * len(users)),
        "cu_seqlens_k": cumulative(HISTORY),
    }
    metadata = {
        "model": "synthetic ad ranking: seed queries over user histories",
        "licence": "Apache-2.0",
        "layout": "packed [total, num_heads, head_dim]; cross-attention, not causal",
        "made_by": "examples/make_ads_batch.py",
    }
    write_dump(options.output, tensors, metadata)
    print(f"{options.output}: {len(users)} users, {sum(HISTORY)} events")


if __name__ == "__main__":
    main()
