"""How a wheel is laid out: the four folders below one package `dryserve`, so that nobody can overwrite them.

In a checkout the folders are packages of their own (`import sim`). On PyPI others have such names, and pip
lets the later one overwrite the earlier without a word. In a wheel they are therefore `dryserve.sim`,
`dryserve.scheduler` and so on: the same files, with the imports of one another rewritten, and `dryserve.py`
as `dryserve/__init__.py`. What serving engines import goes beside it. With DRYSERVE_COMPILE=1 mypyc compiles
the step loop.

    python hatch_build.py FOLDER FROM...   # rewrite the imports of other files, such as tests, into a folder
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("sim", "scheduler", "cost_models", "scenarios")
ENGINE_SIDE = "sim/recordings/inside_vllm"
"""What serving engines import goes to the top, so that it needs nothing else of the package."""
COMPILE = "DRYSERVE_COMPILE"
_MAIN = '"""`python -m dryserve` is the command."""\n\nfrom dryserve import main\n\nmain()\n'


def rewritten(source: str) -> str:
    """The source with imports of the four packages as imports of packages below `dryserve`.

    >>> rewritten("from sim.scenario import Scenario")
    'from dryserve.sim.scenario import Scenario'
    >>> rewritten("import sim.figures")
    'import dryserve.sim.figures; from dryserve import sim'
    """
    lines = source.splitlines(keepends=True)
    for node in sorted(_imports(source), key=lambda node: -node.lineno):
        line = lines[node.lineno - 1].encode()
        head, rest = line[: node.col_offset].decode(), line[node.col_offset :].decode()
        if isinstance(node, ast.ImportFrom):
            rest = rest.replace("from ", "from dryserve.", 1)
        else:
            statement = "; ".join(_plain_import(name) for name in node.names)
            rest = statement + line[node.end_col_offset :].decode()
        lines[node.lineno - 1] = head + rest
    return "".join(lines)


def _imports(source: str) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level == 0 and _is_ours(node.module or ""):
                yield node
        elif isinstance(node, ast.Import) and any(_is_ours(name.name) for name in node.names):
            yield node


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _plain_import(name: ast.alias) -> str:
    """`import a.b`, which binds `a`, or `import a.b as c`, which binds `c`."""
    if not _is_ours(name.name):
        return f"import {name.name} as {name.asname}" if name.asname else f"import {name.name}"
    if name.asname:
        return f"import dryserve.{name.name} as {name.asname}"
    return f"import dryserve.{name.name}; from dryserve import {name.name.partition('.')[0]}"


def lay_out(root: Path, package: Path) -> None:
    """Write the package as a wheel has it, from the checkout at `root`."""
    for name in PACKAGES:
        copy_rewritten(root / name, package / name)
    (package / ENGINE_SIDE / "recording").rename(package / "recording")
    (package / "__init__.py").write_text(
        rewritten((root / "dryserve.py").read_text(encoding="utf-8")), encoding="utf-8"
    )
    (package / "__main__.py").write_text(_MAIN, encoding="utf-8")
    (package / "py.typed").touch()


def copy_rewritten(source: Path, target: Path) -> None:
    """Copy a folder, imports rewritten; caches of Python are left out."""
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_dir() or "__pycache__" in inside.parts:
            continue
        place = target / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".py":
            place.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, place)


def compiled_files(package: Path, include: list[str], exclude: list[str]) -> list[str]:
    """The files that mypyc compiles, relative to the folder that holds the package."""
    chosen = {path for pattern in include for path in package.glob(pattern) if path.suffix == ".py"}
    left_out = {path for pattern in exclude for path in package.glob(pattern)}
    return sorted(path.relative_to(package.parent).as_posix() for path in chosen - left_out)


def compile_in_place(package: Path, files: list[str], settings: dict[str, Any]) -> None:
    """Compile these files of the package to extension modules beside them."""
    script = (
        "from setuptools import setup\n"
        "from mypyc.build import mypycify\n"
        f"setup(name='dryserve', packages=[], script_args=['-q', 'build_ext', '--inplace', '-j{_cores()}'],\n"
        f"      ext_modules=mypycify({[*settings.get('mypy-args', []), *files]!r}, "
        f"opt_level={settings.get('opt-level', '3')!r}, multi_file={settings.get('multi-file', False)!r}, "
        f"separate={settings.get('separate', False)!r}))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=package.parent, check=True)
    shutil.rmtree(package.parent / "build", ignore_errors=True)
    for path in package.parent.rglob("*.c"):
        path.unlink()


def _cores() -> int:
    return os.cpu_count() or 1


class LayoutHook(BuildHookInterface[BuilderConfig]):
    """Puts the package into the wheel, compiled if DRYSERVE_COMPILE is 1; an editable one is the checkout."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What building needs: a compiler of Python for a compiled wheel."""
        return list(self.config["compile-dependencies"]) if os.environ.get(COMPILE) == "1" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Lay the package out in a folder of its own and tell the builder to take it from there."""
        if version == "editable":
            return
        self._place = Path(tempfile.mkdtemp(prefix="dryserve-wheel-"))
        package = self._place / "dryserve"
        lay_out(Path(self.root), package)
        if os.environ.get(COMPILE) == "1":
            files = compiled_files(package, self.config["compile"], self.config.get("keep-as-source", []))
            compile_in_place(package, files, self.config)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            suffix = sysconfig.get_config_var("EXT_SUFFIX")
            for library in self._place.glob(f"*{suffix}"):  # what the compiled modules share
                build_data["force_include"][str(library)] = library.name
        build_data["force_include"][str(package)] = "dryserve"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if version != "editable":
            shutil.rmtree(self._place, ignore_errors=True)


if __name__ == "__main__":
    target, *sources = sys.argv[1:]
    for each in sources:
        copy_rewritten(Path(each), Path(target) / Path(each).name)
