"""MXFA_PREFIX=/where/mxfa/is/installed pip install --no-build-isolation examples/torch_extension"""

import os
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

prefix = os.environ.get("MXFA_PREFIX")
if not prefix:
    raise SystemExit("MXFA_PREFIX: expected the folder of `cmake --install --prefix`, got none")
root = Path(prefix).resolve()
found = [*root.glob("lib*/libmxfa.*"), *root.glob("lib*/*-linux-gnu/libmxfa.*")]
if not found:
    raise SystemExit(f"MXFA_PREFIX: expected a folder that mxfa is installed in, got {prefix}")
folder = str(found[0].parent)
shared = any(path.suffix == ".so" for path in found)

setup(
    name="mxfa_torch",
    version="0.1.0",
    py_modules=["mxfa_torch"],
    python_requires=">=3.10",
    install_requires=["torch>=2.4"],
    ext_modules=[CppExtension(
        "_mxfa_torch",
        ["attention.cc"],
        include_dirs=[f"{root}/include"],
        library_dirs=[folder],
        libraries=["mxfa"] if shared else ["mxfa", "fmt", "pthread", "dl"],
        runtime_library_dirs=[folder] if shared else [],
        depends=[*map(str, found), *map(str, root.glob("include/mxfa/*.h"))],
        extra_compile_args=["-std=c++20", "-O2", "-fvisibility=hidden"],
    )],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
)
