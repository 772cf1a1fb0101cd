"""The tree under check: its files, their text, and findings about them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

CPP_HEADERS = (".h", ".cuh")
CPP_SOURCES = (".cc", ".cu")
CPP = CPP_HEADERS + CPP_SOURCES


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    message: str
    is_error: bool = True

    def text(self, check):
        kind = "error" if self.is_error else "warning"
        return f"{self.path}:{self.line}: {kind}: [{check}] {self.message}"


class Tree:
    """Files that git tracks or would track under `root`; all but build/ where git cannot tell."""

    def __init__(self, root):
        self.root = Path(root).resolve()
        self.files = sorted(self._list())
        self._texts = {}

    def _list(self):
        names = self._list_by_git() if (self.root / ".git").exists() else None
        if names is None:
            paths = (path.relative_to(self.root) for path in self.root.rglob("*"))
            names = [str(path) for path in paths if path.parts[0] not in (".git", "build")]
        return [name for name in set(names) if (self.root / name).is_file()]

    def _list_by_git(self):
        command = ["git", "-C", str(self.root), "ls-files", "-z", "-co", "--exclude-standard"]
        try:
            listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
            return None
        return [name for name in listed.split("\0") if name]

    def text(self, name):
        """The file's text; None where it is binary."""
        if name not in self._texts:
            data = (self.root / name).read_bytes()
            try:
                self._texts[name] = None if b"\0" in data else data.decode()
            except UnicodeDecodeError:
                self._texts[name] = None
        return self._texts[name]

    def lines(self, name):
        return (self.text(name) or "").splitlines()

    def cpp(self):
        return [name for name in self.files if name.endswith(CPP)]

    def cpp_headers(self):
        return [name for name in self.files if name.endswith(CPP_HEADERS)]

    def python(self):
        """*.py files, and scripts without a suffix that start with a python3 line."""
        names = self.files
        return [name for name in names if name.endswith(".py") or self._starts(name, "python3")]

    def shell(self):
        return [name for name in self.files if name.endswith(".sh") or self._starts(name, "bash")]

    def _starts(self, name, interpreter):
        if "." in Path(name).name and not name.startswith(".ci/"):
            return False
        first = (self.text(name) or "").partition("\n")[0]
        return first.startswith("#!") and interpreter in first
