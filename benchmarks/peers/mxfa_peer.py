"""mxfa's own forward and backward on PyTorch's tensors and stream, by libmxfa_peer.so (target
mxfa_peer)."""

import ctypes

import torch

WHOLE, PREPARE, ATTEND = 0, 1, 2  # phases
# pass -> impl -> (variant of mxfa_peer.cc, phase that is timed)
IMPLS = {
    "forward": {"mxfa mxfp8": (0, ATTEND), "mxfa mxfp8 (half scores)": (1, ATTEND),
                "mxfa mxfp8 (qk bf16)": (2, ATTEND), "mxfa mxfp8 (leak-free)": (3, ATTEND),
                "mxfa mxfp8 (leak-free, half scores)": (4, ATTEND),
                "mxfa mxfp8 (whole call)": (0, WHOLE),
                "mxfa mxfp8 (half scores, whole call)": (1, WHOLE)},
    "backward": {"mxfa mxfp8": (0, ATTEND), "mxfa mxfp8 (dq fp16)": (1, ATTEND),
                 "mxfa mxfp8 (deterministic)": (2, ATTEND),
                 "mxfa mxfp8 (half scores)": (3, ATTEND),
                 "mxfa mxfp8 (half scores, dq fp16)": (4, ATTEND),
                 "mxfa mxfp8 (whole call)": (0, WHOLE)},
}
BACKWARD_HALF = (3, 4)  # whose operands are prepared for half scores
NAMES = list(dict.fromkeys(name for own in IMPLS.values() for name in own))
ACCURACY_ROWS, ACCURACY_KEYS, CHUNK = 64, 16, 2048


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64)
                for name in ("batch", "num_heads", "seqlen_q", "seqlen_k", "total_k", "head_dim",
                             "jagged", "causal", "backward", "variant")]


class Pointers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p)
                for name in ("q", "k", "v", "o", "lse", "row_max", "cu_q", "cu_k", "dout", "dq",
                             "dk", "dv")]


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


class Memory:
    """What a case's calls of one pass share: outputs, poisoned, and in a backward a workspace for
    each kind of operands: those at its start are the same for all variants of that kind."""

    def __init__(self, library, tensors, backward):
        rows = (tensors.case.num_heads, tensors.case.batch * tensors.case.seqlen_q)
        self.o, self.dq = (torch.full_like(tensors.q, float("nan")) for _ in range(2))
        self.dk, self.dv = (torch.full_like(tensors.k, float("nan")) for _ in range(2))
        self.lse, self.row_max = (torch.full(rows, float("nan"), device="cuda") for _ in range(2))
        self.workspaces = {}
        if backward:
            Call(library, tensors, self, False, 0).run(WHOLE)

    def workspace_of(self, size, kind):
        """Begins on 256 bytes. Of a kind that is None it is the caller's alone."""
        workspace = self.workspaces.get(kind)
        if workspace is None or len(workspace) < size:
            own = torch.empty(size + 256, device="cuda", dtype=torch.uint8)
            workspace = own[-own.data_ptr() % 256:]
            if kind is not None:
                self.workspaces[kind] = workspace
        return workspace


class Call:
    """One case, pass and variant. It keeps what it points to."""

    def __init__(self, library, tensors, memory, backward, variant):
        self.library, self.tensors, self.memory = library, tensors, memory
        case = tensors.case
        shape = Shape(case.batch, case.num_heads, case.seqlen_q, case.seqlen_k, case.total_k(),
                      case.head_dim, case.jagged, case.causal, backward, variant)
        pointers = Pointers(**{name: getattr(tensors, name, getattr(memory, name, None)).data_ptr()
                               for name, _ in Pointers._fields_})
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call = ctypes.c_void_p(library.checked(library.calls.mxfa_peer_call(
            ctypes.c_void_p(library.device), stream, ctypes.byref(shape),
            ctypes.byref(pointers))))
        size = library.checked(library.calls.mxfa_peer_workspace_bytes(self.call))
        kind = ("half" if variant in BACKWARD_HALF else "f32") if backward else None
        self.workspace = memory.workspace_of(size, kind)
        self.pointer = ctypes.c_void_p(self.workspace.data_ptr())
        self.size = ctypes.c_int64(size)

    def run(self, phase):
        if self.library.calls.mxfa_peer_run(self.call, self.pointer, self.size, phase) != 0:
            raise RuntimeError(self.library.calls.mxfa_peer_failure().decode())


def sqnr_db(want, got):
    error = want - got.double()
    return float(10 * torch.log10(want.square().sum() / error.square().sum()))


class Truth:
    """Attention of the longest sequence's last head in float64."""

    def __init__(self, tensors):
        case, self.head = tensors.case, tensors.case.num_heads - 1
        lengths = case.key_lengths()
        which = lengths.index(max(lengths))
        self.case, first_k = case, sum(lengths[:which])
        self.queries = slice(which * case.seqlen_q, (which + 1) * case.seqlen_q)
        self.keys = slice(first_k, first_k + lengths[which])
        self.q, self.dout = (t[self.queries, self.head].double()
                             for t in (tensors.q, tensors.dout))
        self.k, self.v = (t[self.keys, self.head].double() for t in (tensors.k, tensors.v))

    def probabilities(self, rows):
        scores = self.q[rows] @ self.k.T / self.case.head_dim**0.5
        if self.case.causal:
            last = torch.arange(len(self.q), device="cuda")[rows] + len(self.k) - len(self.q)
            hidden = torch.arange(len(self.k), device="cuda")[None, :] > last[:, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        return scores.softmax(-1)

    def forward(self, memory):
        """SQNR of the last rows of o."""
        rows = slice(max(0, len(self.q) - ACCURACY_ROWS), len(self.q))
        want = self.probabilities(rows) @ self.v
        return {"o": sqnr_db(want, memory.o[self.queries, self.head][rows])}

    def backward(self, memory):
        """SQNR of dq, and of the first keys' dk and dv."""
        scale, few = self.case.head_dim**-0.5, slice(0, ACCURACY_KEYS)
        dq, dk, dv = [], 0, 0
        for begin in range(0, len(self.q), CHUNK):
            rows = slice(begin, begin + CHUNK)
            p = self.probabilities(rows)
            dp = self.dout[rows] @ self.v.T
            ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
            dq.append(ds @ self.k)
            dk = dk + ds[:, few].T @ self.q[rows]
            dv = dv + p[:, few].T @ self.dout[rows]
        return {"dq": sqnr_db(torch.cat(dq), memory.dq[self.queries, self.head]),
                "dk": sqnr_db(dk, memory.dk[self.keys, self.head][few]),
                "dv": sqnr_db(dv, memory.dv[self.keys, self.head][few])}


def calls(library, tensors, impl, passes):
    """{pass: call}, and under "accuracy" {pass: call that runs it and returns {tensor: dB}}."""
    if not hasattr(tensors, "memory"):
        tensors.memory = {}
    result = {"accuracy": {}}
    for name in passes:
        variant, phase = IMPLS[name][impl]
        if name not in tensors.memory:
            tensors.memory[name] = Memory(library, tensors, name == "backward")
        memory = tensors.memory[name]
        call = Call(library, tensors, memory, name == "backward", variant)
        call.run(PREPARE)

        def accuracy(name=name, call=call, phase=phase, memory=memory):
            call.run(phase)  # another variant's results may lie there
            return getattr(Truth(tensors), name)(memory)

        result[name] = lambda call=call, phase=phase: call.run(phase)
        result["accuracy"][name] = accuracy
    return result
