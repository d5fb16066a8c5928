"""Compile the extensions.

An environment variable with the value 1 turns a switch on: TENSORWIRE_SANITIZE (ASan and UBSan),
TENSORWIRE_FUZZ (for libFuzzer; clang only), TENSORWIRE_COVERAGE (gcov, Cython line tracing),
TENSORWIRE_DEBUG (not optimised), TENSORWIRE_STRICT (compiler warnings are errors),
TENSORWIRE_NO_CHARCONV (the JSON reader does not use the floating-point functions of <charconv>,
which some C++ libraries lack).
"""

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

from Cython.Build import cythonize  # after setuptools, which it extends  # isort: skip
from Cython.Compiler import Options  # isort: skip


SWITCHES = ("SANITIZE", "FUZZ", "COVERAGE", "DEBUG", "STRICT", "NO_CHARCONV")


def switch(name: str) -> bool:
    assert name in SWITCHES
    return os.environ.get(f"TENSORWIRE_{name}", "0") not in ("", "0")


class BuildExtensions(build_ext):
    """Compiles the extensions. If a tool is missing, the error names it."""

    def run(self) -> None:
        if os.name != "posix":
            raise SystemExit(
                "tensorwire cannot be compiled on Windows. It needs gcc or clang, for integers of "
                "128 bits, and its clients need POSIX sockets."
            )
        if missing := missing_tools():
            raise SystemExit(
                f"tensorwire cannot be compiled without {' and '.join(missing)}. "
                "Install a C and a C++ compiler and the headers of this Python (Debian: gcc g++ "
                "python3-dev; Fedora: gcc gcc-c++ python3-devel; macOS: xcode-select --install)."
            )
        # Only here, because pip runs this file several times. Workers do not know Options.
        n_threads = 0 if switch("STRICT") else os.cpu_count() or 1
        outdated = [each for each in self.extensions if not uses_generated_file(each)]
        made = cythonize(outdated, nthreads=n_threads, compiler_directives=directives)
        for extension, compiled in zip(outdated, made, strict=True):
            extension.sources = compiled.sources
            extension.language = compiled.language
            # An sdist cannot contain the headers of numpy, and setuptools says so.
            extension.depends = [path for path in compiled.depends if not os.path.isabs(path)]
        super().run()


def uses_generated_file(extension: Extension) -> bool:
    """Compile the C file of an earlier build if it is newer than everything it may depend on here.

    cythonize would generate it again: each time that pip builds the package, it installs Cython and
    numpy again, on whose files it depends, too.
    """
    if switch("STRICT") or switch("COVERAGE"):  # Cython's warnings; other directives
        return False
    [source] = map(Path, extension.sources)
    read = [source, Path("setup.py"), *Path("src").rglob("*.pxd"), *Path("src").rglob("*.h")]
    changed = max(path.stat().st_mtime for path in read)
    for suffix, language in ((".c", "c"), (".cpp", "c++")):
        generated = source.with_suffix(suffix)
        if generated.exists() and generated.stat().st_mtime > changed:
            extension.sources, extension.language = [str(generated)], language
            return True
    return False


def missing_tools() -> list[str]:
    """Return what is missing to compile an extension."""
    folders = [Path(sysconfig.get_path(name)) for name in ("include", "platinclude")]
    missing = []
    if not any((folder / "Python.h").is_file() for folder in folders):
        missing.append(f"Python.h (in {folders[0]})")
    for variable in ("CC", "CXX"):
        command = os.environ.get(variable) or sysconfig.get_config_var(variable)
        words = shlex.split(command or "")
        program = next((word for word in words if "=" not in word), None)
        if program is None or shutil.which(program) is None:
            missing.append(program or variable)
    return missing


# By default there is no debug information, because it is ten times as large as the code.
flags, directives = ["-O3", "-g0", "-fno-strict-aliasing"], {"language_level": 3}
directives["annotation_typing"] = False  # annotations are for help(), and declare no C types
directives["freethreading_compatible"] = True  # docs/guide/gil.md
macros = [(name, "NPY_2_0_API_VERSION") for name in ("NPY_NO_DEPRECATED_API", "NPY_TARGET_VERSION")]
link = []
if switch("SANITIZE"):
    sanitize = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1"]
    flags, link = [*flags, *sanitize], sanitize
if switch("FUZZ"):
    flags.append("-fsanitize=fuzzer-no-link")
    if switch("SANITIZE"):  # -fsanitize=function needs a C++ runtime that is not linked
        flags.append("-fno-sanitize=function")
if switch("COVERAGE"):
    flags, link = [*flags, "-O0", "--coverage"], ["--coverage"]
    macros.append(("CYTHON_TRACE", "1"))
    directives["linetrace"] = True
if switch("DEBUG"):
    flags = [*flags, "-O0", "-g", "-UNDEBUG"]
if switch("NO_CHARCONV"):
    macros.append(("TENSORWIRE_NO_CHARCONV", "1"))
if switch("STRICT"):
    # Code that Cython generates causes these two warnings.
    warn = ["unused-parameter", "missing-field-initializers"]
    flags = [*flags, "-Wall", "-Wextra", "-Werror", *(f"-Wno-{name}" for name in warn)]

Options.warning_errors = switch("STRICT")
# The largest ones first, so that all processors have something to compile until the end.
sources = sorted(Path("src/tensorwire").rglob("*.pyx"), key=os.path.getsize, reverse=True)
extensions = [
    Extension(
        ".".join(path.relative_to("src").with_suffix("").parts),
        [str(path)],
        include_dirs=[numpy.get_include()],
        define_macros=macros,
        extra_compile_args=flags,
        extra_link_args=link,
    )
    for path in sources
]
# Each set of switches has its own build folder. setuptools does not compile again if only the flags
# have changed, so a build with the sanitizers would use objects that were compiled without them.
switches = [name.lower() for name in SWITCHES if switch(name)]
setup(
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=extensions,
    options={
        "build": {"build_base": "-".join(["build", *switches])},
        "build_ext": {"parallel": os.cpu_count() or 1},
    },
)
