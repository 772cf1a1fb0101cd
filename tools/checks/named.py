"""What a file names it includes, itself or through headers of the project.

Sources are compiled behind precompiled headers, where a missing include goes unnoticed.
"""

import re

from checks.includes import INCLUDE
from checks.tree import Finding

# Header -> names (regular expressions) that need it. Names that many headers bring are not listed.
_NAMES = {
    "algorithm": r"std::(?:ranges::)?(?:sort|stable_sort|clamp|copy|copy_n|fill|fill_n|find|find_if"
    r"|any_of|all_of|none_of|count|count_if|equal|transform|max_element|min_element|lower_bound"
    r"|upper_bound|generate|for_each|is_sorted|nth_element|binary_search|swap_ranges)",
    "array": r"std::(?:array|to_array)",
    "bit": r"std::(?:bit_cast|countl_zero|countr_zero|popcount|bit_width|bit_ceil|has_single_bit)",
    "cmath": r"std::(?:sqrt|exp|exp2|log|log2|log10|pow|isnan|isinf|isfinite|ldexp|frexp|floor|ceil"
    r"|nearbyint|fma|signbit|copysign|lrint|ilogb|sin|cos|tanh|nextafter|scalbn|rint|trunc)",
    "functional": r"std::function",
    "limits": r"std::numeric_limits",
    "map": r"std::(?:map|multimap)",
    "memory": r"std::(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared)",
    "optional": r"std::(?:optional|nullopt)",
    "span": r"std::(?:span|as_bytes|as_writable_bytes)",
    "string": r"std::(?:string|to_string)",
    "unordered_map": r"std::unordered_map",
    "vector": r"std::vector",
    "fmt/format.h": r"fmt::(?:format|format_to|memory_buffer|join|print|formatter|runtime)",
    "nlohmann/json.hpp": r"nlohmann::\w+",
    "gtest/gtest.h": r"(?:TEST|TEST_F|TEST_P|TYPED_TEST)(?=\()",
}
# A header that brings the names of another, by its own definition.
_BRINGS = {"gmock/gmock.h": ("gtest/gtest.h",), "fmt/ranges.h": ("fmt/format.h",)}
_NEEDS = [(header, re.compile(rf"(?<![\w:])(?:{names})(?!\w)")) for header, names in _NAMES.items()]
_COMMENT = re.compile(r"//[^\n]*")


class _Reach:
    """The headers in angle brackets that each file reaches."""

    def __init__(self, tree):
        self.names = {}  # the end of a path -> files: "mx/block.h" -> ["src/mx/block.h"]
        self.includes = {}
        for path in tree.cpp():
            self.includes[path] = [quoted or angled for quoted, angled in
                                   INCLUDE.findall(tree.text(path) or "")]
            self.names.setdefault(path.rsplit("/", 1)[-1], []).append(path)

    def _files(self, path, target):
        """The files that `target` may be: beside the includer, else wherever it is found."""
        beside = path.rsplit("/", 1)[0] + "/" + target
        if beside in self.includes:
            return [beside]
        return [name for name in self.names.get(target.rsplit("/", 1)[-1], ())
                if name.endswith("/" + target)]

    def headers(self, path):
        seen, reached, todo = set(), set(), [path]
        while todo:
            current = todo.pop()
            if current in seen:
                continue
            seen.add(current)
            for target in self.includes[current]:
                reached.add(target)
                reached.update(_BRINGS.get(target, ()))
                todo.extend(self._files(current, target))
        return reached


def check(tree):
    reach = _Reach(tree)
    findings = []
    for path in tree.cpp():
        if not path.endswith((".h", ".cc")) or path.endswith("_inl.h"):
            continue
        code = _COMMENT.sub("", tree.text(path) or "")
        headers = reach.headers(path)
        for header, names in _NEEDS:
            match = names.search(code) if header not in headers else None
            if match:
                line = code.count("\n", 0, match.start()) + 1
                findings.append(Finding(path, line, f"{match[0]} without <{header}>"))
    return findings
