"""The committed example dumps are what examples/README.md says."""

import json
import struct
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
ITEM_BYTES = {"BF16": 2, "I32": 4}


def read(name):
    """(header, tensor name -> bytes) of a safetensors file."""
    data = (EXAMPLES / name).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8: 8 + length])
    payload = data[8 + length:]
    return header, {key: payload[slice(*value["data_offsets"])]
                    for key, value in header.items() if key != "__metadata__"}


class DumpsTest(unittest.TestCase):
    def check_dump(self, name, heads, head_dim, sequences):
        header, data = read(name)
        self.assertEqual(header["__metadata__"]["licence"], "Apache-2.0")
        self.assertEqual(set(data), {"q", "k", "v", "dout", "cu_seqlens_q", "cu_seqlens_k"})
        ends, totals = 0, {}
        for side in "qk":
            offsets = struct.unpack(f"<{sequences + 1}i", data[f"cu_seqlens_{side}"])
            self.assertEqual(offsets[0], 0)
            self.assertEqual(list(offsets), sorted(offsets))
            totals[side] = offsets[-1]
        for key, side in (("q", "q"), ("dout", "q"), ("k", "k"), ("v", "k")):
            self.assertEqual(header[key]["dtype"], "BF16")
            self.assertEqual(header[key]["shape"], [totals[side], heads, head_dim])
            codes = struct.unpack(f"<{len(data[key]) // 2}H", data[key])
            self.assertTrue(all(code & 0x7F80 != 0x7F80 for code in codes), f"{key} is finite")
            self.assertGreater(len(set(codes)), 1000, f"{key} holds real values")
        for key in data:
            size = ITEM_BYTES[header[key]["dtype"]]
            for extent in header[key]["shape"]:
                size *= extent
            self.assertEqual(header[key]["data_offsets"], [ends, ends + size], key)
            ends += size
        self.assertEqual(sum(map(len, data.values())), ends, "no bytes are left over")

    def test_minilm(self):
        self.check_dump("minilm.safetensors", heads=12, head_dim=32, sequences=16)

    def test_ads(self):
        self.check_dump("ads.safetensors", heads=2, head_dim=128, sequences=10)


if __name__ == "__main__":
    unittest.main()
