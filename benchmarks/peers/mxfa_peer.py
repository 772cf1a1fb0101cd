"""mxfa's own forward on PyTorch's tensors and stream, by libmxfa_peer.so (target mxfa_peer)."""

import ctypes

import torch

WHOLE, PREPARE, ATTEND = 0, 1, 2  # phases
# impl -> (variant of mxfa_peer.cc, phase that is timed)
IMPLS = {"mxfa mxfp8": (0, ATTEND), "mxfa mxfp8 (half scores)": (1, ATTEND),
         "mxfa mxfp8 (qk bf16)": (2, ATTEND), "mxfa mxfp8 (leak-free)": (3, ATTEND),
         "mxfa mxfp8 (whole call)": (0, WHOLE),
         "mxfa mxfp8 (half scores, whole call)": (1, WHOLE)}
ACCURACY_ROWS = 64


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64)
                for name in ("batch", "num_heads", "seqlen_q", "seqlen_k", "total_k", "head_dim",
                             "jagged", "causal", "variant")]


class Pointers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p)
                for name in ("q", "k", "v", "o", "lse", "cu_seqlens_q", "cu_seqlens_k")]


class Library:
    """The shared library and a device of it."""

    def __init__(self, path):
        self.calls = ctypes.CDLL(path)
        self.calls.mxfa_peer_failure.restype = ctypes.c_char_p
        self.calls.mxfa_peer_open.restype = ctypes.c_void_p
        self.calls.mxfa_peer_call.restype = ctypes.c_void_p
        self.calls.mxfa_peer_workspace_bytes.restype = ctypes.c_int64
        self.device = self.checked(self.calls.mxfa_peer_open(torch.cuda.current_device()))

    def checked(self, result):
        if result is None or result == -1:
            raise RuntimeError(self.calls.mxfa_peer_failure().decode())
        return result


class Forward:
    """One case and variant. It keeps what its call points to."""

    def __init__(self, library, tensors, variant):
        self.library, self.tensors = library, tensors
        case = tensors.case
        self.o = torch.full_like(tensors.q, float("nan"))
        rows = case.batch * case.seqlen_q
        self.lse = torch.empty(case.num_heads, rows, device="cuda", dtype=torch.float32)
        shape = Shape(case.batch, case.num_heads, case.seqlen_q, case.seqlen_k, case.total_k(),
                      case.head_dim, case.jagged, case.causal, variant)
        pointers = Pointers(*(t.data_ptr() for t in (tensors.q, tensors.k, tensors.v, self.o,
                                                     self.lse, tensors.cu_q, tensors.cu_k)))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call = ctypes.c_void_p(library.checked(library.calls.mxfa_peer_call(
            ctypes.c_void_p(library.device), stream, ctypes.byref(shape),
            ctypes.byref(pointers))))
        size = library.checked(library.calls.mxfa_peer_workspace_bytes(self.call))
        self.workspace = torch.empty(size + 256, device="cuda", dtype=torch.uint8)
        begin = -self.workspace.data_ptr() % 256
        self.memory = ctypes.c_void_p(self.workspace.data_ptr() + begin)
        self.size = ctypes.c_int64(size)

    def run(self, phase):
        if self.library.calls.mxfa_peer_run(self.call, self.memory, self.size, phase) != 0:
            raise RuntimeError(self.library.calls.mxfa_peer_failure().decode())

    def sqnr_db(self):
        """Of o after a run: the last rows of the longest sequence's last head, in float64."""
        case, tensors, head = self.tensors.case, self.tensors, self.tensors.case.num_heads - 1
        lengths = case.key_lengths()
        which = lengths.index(max(lengths))
        first_k, last_q = sum(lengths[:which]), (which + 1) * case.seqlen_q
        rows = slice(last_q - min(ACCURACY_ROWS, case.seqlen_q), last_q)
        keys = slice(first_k, first_k + lengths[which])
        q, k, v = (t[part, head].double() for t, part in ((tensors.q, rows), (tensors.k, keys),
                                                          (tensors.v, keys)))
        scores = q @ k.T / case.head_dim**0.5
        if case.causal:
            count = scores.shape[0]
            mask = torch.ones_like(scores, dtype=torch.bool).tril(scores.shape[1] - count)
            scores = scores.masked_fill(~mask, float("-inf"))
        want = scores.softmax(-1) @ v
        error = want - self.o[rows, head].double()
        return float(10 * torch.log10(want.square().sum() / error.square().sum()))


def calls(library, tensors, impl):
    """{"forward": call, "accuracy": call of no arguments}"""
    variant, phase = IMPLS[impl]
    forward = Forward(library, tensors, variant)
    forward.run(PREPARE)
    return {"forward": lambda: forward.run(phase), "accuracy": forward.sqnr_db}
