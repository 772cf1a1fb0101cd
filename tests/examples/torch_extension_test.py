"""examples/torch_extension against PyTorch's own attention in double precision.

torch_extension_test.py [--device cuda]: of the installed mxfa_torch. --mxfa-build BUILD --work DIR
first installs that build and makes the extension in DIR. Exit status 77: there is no torch, or
nothing to make an extension with.
"""

import argparse
import importlib.util
import os
import pty
import re
import subprocess
import sys
import sysconfig
import threading
import unittest
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_extension"
for module in ("torch", "setuptools"):
    if importlib.util.find_spec(module) is None:
        print(f"skipped: {sys.executable} has no {module}")
        sys.exit(77)
import torch  # noqa: E402
import torch_reference  # noqa: E402
from torch_reference import CASES, Batch, case, decibels, of_torch, of_twin  # noqa: E402

DEVICE = "cpu"
def mxfa_attention(*tensors, **options):
    return importlib.import_module("mxfa_torch").mxfa_attention(*tensors, **options)


def normal(*shape, seed):
    return torch_reference.normal(*shape, seed=seed).to(DEVICE)


def run(batch, device=None):
    """o, dq, dk, dv, lse of mxfa on a device, jagged, brought to the CPU."""
    *inputs, dout = (x.to(device or DEVICE, copy=True) for x in batch.tensors)
    cu_seqlens = [x.to(dout.device) for x in batch.cu_seqlens]
    if batch.dense:
        *inputs, dout = (x.unflatten(0, (len(batch.lengths[0]), -1)) for x in (*inputs, dout))
        cu_seqlens = []
    for x in inputs:
        x.requires_grad_()
    o, lse = mxfa_attention(*inputs, *cu_seqlens, return_lse=True, **batch.options)
    o.backward(dout)
    results = [o.detach(), *(x.grad for x in inputs)]
    if batch.dense:
        results = [x.flatten(0, 1) for x in results]
        lse = lse.transpose(0, 1).flatten(1)
    return [x.cpu() for x in (*results, lse)]


class Nothing(torch.autograd.Function):
    """Has no gradient to give."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, dout):
        return None


class ExtensionTest(unittest.TestCase):
    def expect_close(self, name, got, want, twin):
        """Both the mean and the largest error: at most twice the twin's, and BF16's rounding."""
        self.assertTrue(torch.isfinite(got).all(), f"{name}: not finite")
        error, allowed = (got.double() - want).abs(), (twin - want).abs()
        for metric, of in (("rms", lambda x: x.square().mean().sqrt()), ("max", torch.max)):
            limit = 2 * of(allowed) + of(want.abs()) * 2**-8
            worst = [int(i) for i in torch.unravel_index(error.argmax(), error.shape)]
            self.assertLessEqual(
                of(error), limit,
                f"{name}: {metric} error {of(error):.3g}, limit {limit:.3g}, worst at {worst}: got "
                f"{got[tuple(worst)]:.6g}, want {want[tuple(worst)]:.6g}")

    def expect_same(self, got, want, name=""):
        for i, (x, y) in enumerate(zip(got, want, strict=True)):
            self.assertTrue(torch.equal(x, y), f"{name}: tensor {i} has other bits")

    def test_cases(self):
        for name, values in CASES.items():
            with self.subTest(name=name):
                batch = Batch(**values)
                got, want, twin = run(batch), of_torch(batch), of_twin(batch)
                for tensor, x, y, z in zip(("o", "dq", "dk", "dv"), got, want, twin):
                    self.expect_close(f"{name} {tensor}", x, y, z)
                self.expect_lse(got[4], twin[4])
                print(f"{name}:", ", ".join(f"{tensor} {decibels(y, x):.1f} dB" for tensor, x, y
                                            in zip(("o", "dq", "dk", "dv"), got, want)))

    def test_batches_without_rows(self):
        one = torch.zeros(2, dtype=torch.int32, device=DEVICE)
        none = one[:1]
        for shape_q, shape_k, *cu_seqlens in (
                ((0,), (0,), none, none), ((0,), (0,), one, one), ((4,), (3,), one, one),
                ((0, 5), (0, 5)), ((2, 0), (2, 3)), ((2, 3), (2, 0))):
            with self.subTest(shape_q=shape_q, shape_k=shape_k):
                leaves = [normal(*shape, 2, 64, seed=0).requires_grad_()
                          for shape in (shape_q, shape_k, shape_k)]
                o, lse = mxfa_attention(*leaves, *cu_seqlens, return_lse=True)
                o.sum().backward()
                for x in (o, *(leaf.grad for leaf in leaves)):
                    self.assertFalse(x.any())
                self.assertEqual(o.shape, leaves[0].shape)
                self.assertTrue((lse == -torch.inf).all())

    def expect_lse(self, got, twin):
        """-inf where there is no key. Else the twin's, which reads the same payload, but for
        FP32's rounding of 128 products, and a GPU's sums, which lack up to 1e-3 of a score."""
        self.assertTrue(torch.equal(got == -torch.inf, twin == -torch.inf))
        seen = twin != -torch.inf
        error = (got.double() - twin)[seen].abs() / twin[seen].abs().clamp(min=1)
        self.assertLessEqual(error.max(), 2**-17 if DEVICE == "cpu" else 2e-3)

    def test_strides_change_no_bit(self):
        batch = Batch(**case(((90, 90), (90, 90)), heads=(2, 2), dense=True))
        *qkv, dout = (x.to(DEVICE).unflatten(0, (2, -1)) for x in batch.tensors)
        want = self.step(qkv, dout)
        together = torch.stack(qkv, 2)  # [batch, seqlen, 3, heads, head_dim], one projection's
        heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv]
        gaps = [torch.stack([x, x], -1)[..., 0] for x in qkv]
        self.expect_same(self.step(together.unbind(2), dout), want, "side by side")
        self.expect_same(self.step(heads_first, dout.transpose(1, 2).contiguous().transpose(1, 2)),
                         want, "heads first")
        self.expect_same(self.step(gaps, torch.stack([dout, dout], -1)[..., 0]), want, "gaps")
        ones = torch.ones((), dtype=torch.bfloat16, device=DEVICE).expand(dout.shape)
        self.expect_same(self.step(qkv, ones), self.step(qkv, ones.contiguous()), "one dout")

        one_head = [qkv[0], *(x[:, :, :1].expand(-1, -1, 2, -1) for x in qkv[1:])]
        self.expect_same(self.step(one_head, dout),
                         self.step([x.contiguous() for x in one_head], dout), "one kv head")

    def step(self, qkv, dout, wanted=(True, True, True), **options):
        leaves = [x.detach().requires_grad_(want) for x, want in zip(qkv, wanted)]
        o = mxfa_attention(*leaves, deterministic=True, **options)
        o.backward(dout)
        return [o.detach(), *(x.grad for x, want in zip(leaves, wanted) if want)]

    def test_gradients_that_nobody_asked_for(self):
        *qkv, dout = (normal(2, 60, 2, 64, seed=i) for i in range(4))
        everything = self.step(qkv, dout)
        for i in range(3):
            wanted = [i == j for j in range(3)]
            self.expect_same(self.step(qkv, dout, wanted), [everything[0], everything[1 + i]])
        with torch.no_grad():
            o = mxfa_attention(*(x.clone().requires_grad_() for x in qkv))
        self.assertFalse(o.requires_grad)

    def test_autograd_keeps_its_promises(self):
        def call():
            leaves = [normal(1, 40, 2, 64, seed=i).requires_grad_() for i in range(3)]
            values = [x * 1 for x in leaves]
            return values, *mxfa_attention(*values, return_lse=True)

        _, o, lse = call()
        self.assertFalse(lse.requires_grad)
        gradient, = torch.autograd.grad(o.float().sum(), call()[0][0], allow_unused=True)
        self.assertIsNone(gradient)
        values, o, _ = call()
        values[1].add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            o.sum().backward()
        leaf = normal(1, 40, 2, 64, seed=0).requires_grad_()
        Nothing.apply(mxfa_attention(leaf, leaf, leaf)).sum().backward()
        self.assertIsNone(leaf.grad)
        values, o, _ = call()
        with self.assertRaisesRegex(NotImplementedError, "second derivative"):
            torch.autograd.grad(o.sum(), values[0], create_graph=True)

    def test_autocast_and_nested_values(self):
        q, k, v = (normal(2, 60, 2, 64, seed=i) for i in range(3))
        want = mxfa_attention(q, k, v)
        leaf = q.float().requires_grad_()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            o = mxfa_attention(leaf, k.float(), v.float())
        o.sum().backward()
        self.expect_same([o.detach()], [want])
        self.assertEqual(leaf.grad.dtype, torch.float32)
        nested = [torch.nested.nested_tensor(list(x.detach()), layout=torch.jagged)
                  for x in (q, k, v)]
        with self.assertRaisesRegex(ValueError, r"^q: .*nested"):
            mxfa_attention(*nested)
        o = mxfa_attention(*(x.values() for x in nested), nested[0].offsets(), nested[1].offsets())
        self.expect_same([o], [want.flatten(0, 1)])

    def test_errors_have_the_librarys_text(self):
        batch = Batch(**case())
        q, k, v, _ = (x.to(DEVICE) for x in batch.tensors)
        cu_q, cu_k = (x.to(DEVICE) for x in batch.cu_seqlens)
        q4 = q[None]
        calls = [
            (ValueError, r"^q: expected torch.bfloat16, got torch.float32", (q.float(), k, v)),
            (ValueError, r"^k: expected .*32\]", (q, k[..., :32], v, cu_q, cu_k)),
            (ValueError, r"^num_heads: .*multiple", (q[:, :3], k, v, cu_q, cu_k)),
            (ValueError, r"cu_seqlens_k", (q, k, v, cu_q, None)),
            (ValueError, r"^cu_seqlens_q: .*i32 or i64", (q, k, v, cu_q.float(), cu_k)),
            (ValueError, r"^cu_seqlens_q: .*meta", (q, k, v, cu_q.to("meta"), cu_k)),
            (TypeError, r"^cu_seqlens_q: .*list", (q, k, v, [0, 1], cu_k)),
            (TypeError, r"^q: expected a torch.Tensor", (1, k, v)),
            (ValueError, r"^q: .*dimensions", (q[0, 0], k, v, cu_q, cu_k)),
            (ValueError, r"^[qk]: ", (q4, torch.cat([k[None]] * 2), torch.cat([v[None]] * 2))),
            (NotImplementedError, "^head_dim: .*60",
             (q[..., :60], k[..., :60], v[..., :60], cu_q, cu_k)),
            (TypeError, "unexpected keyword argument 'dropout_p'", (q, k, v), {"dropout_p": 0.5}),
            (TypeError, "^causal: got a str", (q, k, v), {"causal": "yes"}),
            (ValueError, "^softmax_scale: ", (q, k, v, cu_q, cu_k), {"softmax_scale": 0.0}),
        ]
        if DEVICE == "cpu":  # a GPU's lengths are not read by the host
            calls += [
                (ValueError, r"^cu_seqlens_k\[4\]: .*got 912", (q, k, v, cu_q, cu_k * 2)),
                (ValueError, r"^cu_seqlens_q\[0\]: ", (q, k, v, cu_q + 1, cu_k)),
                (ValueError, "^half_scores: .*CPU", (q4, q4, q4), {"half_scores": True}),
            ]
        else:
            calls += [(ValueError, r"^cu_seqlens_q: .*cpu", (q, k, v, cu_q.cpu(), cu_k))]
        for error, text, arguments, *options in calls:
            with self.subTest(text=text), self.assertRaisesRegex(error, text):
                mxfa_attention(*arguments, **dict(*options))

    def test_two_threads(self):
        batches = [Batch(**CASES[name]) for name in ("jagged_d128", "causal")]
        for batch in batches:
            batch.options = {**batch.options, "deterministic": True}
        want = [run(batch) for batch in batches]
        got = [[], []]

        def work(i):
            for _ in range(5):
                got[i].append(run(batches[i]))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for mine, results in zip(want, got):
            self.assertEqual(len(results), 5)
            for result in results:
                self.expect_same(result, mine)

    def test_demo(self):
        command = [sys.executable, EXAMPLE / "train.py", "--steps", "60", "--device", DEVICE]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, env=path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        losses = [[float(x) for x in re.findall(r"(\d\.\d+) ", line)]
                  for line in done.stdout.splitlines() if line.startswith("loss")]
        self.assertEqual(len(losses), 2, done.stdout)
        for first, last in losses:
            self.assertLess(last, first / 2, done.stdout)
        controller, terminal = pty.openpty()
        with os.fdopen(controller, "rb"):
            command[3] = "5"  # all of the bar fits what a terminal holds unread
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=terminal, env=path)
            self.assertIn(b"MXFP8 [#", os.read(controller, 4096))
        os.close(terminal)


class CudaTest(ExtensionTest):
    """All of it on a GPU, and what there is on a GPU only."""

    def test_stream_and_graph(self):
        q, k, v = (normal(2, 300, 4, 128, seed=i) for i in range(3))
        want = mxfa_attention(q, k, v)
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # cycles: what runs in another stream is ahead of this
            late = [x * 1 for x in (q, k, v)]
            o = mxfa_attention(*late)
        side.synchronize()
        self.expect_same([o], [want])
        graph = torch.cuda.CUDAGraph()
        fixed = [torch.zeros_like(x) for x in (q, k, v)]
        with torch.cuda.graph(graph):
            o = mxfa_attention(*fixed)
        for x, y in zip(fixed, (q, k, v)):
            x.copy_(y)
        graph.replay()
        torch.cuda.synchronize()
        self.expect_same([o], [want])

    def test_the_cpu_computes_the_same_recipe(self):
        batch = Batch(**CASES["jagged_d128"])
        on_gpu, on_cpu = run(batch), run(batch, "cpu")
        for name, x, y in zip(("o", "dq", "dk", "dv"), on_gpu, on_cpu):
            agreement = decibels(y.double(), x)
            print(f"CPU and GPU: {name} {agreement:.1f} dB")
            self.assertGreater(agreement, 30)


def build(mxfa_build, work):
    """Folder of the extension, made against an installation of `mxfa_build`."""
    def step(*command, **environment):
        done = subprocess.run(command, cwd=EXAMPLE, env={**os.environ, **environment}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{command}\n{done.stdout}")

    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        print(f"skipped: {sys.executable} has no Python.h")
        sys.exit(77)
    step("cmake", "--install", mxfa_build, "--prefix", work / "prefix")
    step(sys.executable, EXAMPLE / "setup.py", "build", "--build-base", work, "--build-lib",
         work / "lib", MXFA_PREFIX=str(work / "prefix"))
    return work / "lib"


def main():
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mxfa-build", type=Path)
    parser.add_argument("--work", type=Path)
    options, rest = parser.parse_known_args()
    DEVICE = options.device
    if options.mxfa_build:
        sys.path.insert(0, str(build(options.mxfa_build.resolve(), options.work.resolve())))
    tests = CudaTest if DEVICE == "cuda" else ExtensionTest
    unittest.main(argv=[sys.argv[0], *(rest or [tests.__name__])])


if __name__ == "__main__":
    main()
