"""Builds the wheel: the package, and libsuperhue.so built by cargo; and the source distribution (PEP 517).

Why not maturin or setuptools-rust: the package is ctypes over the C library that is built anyway, so all
that is left to do is to put one file beside the modules; doing that here needs nothing to be downloaded,
works with the pip of Debian 12, and does not depend on the version of Python.

The wheel is for every Python 3 and names the oldest glibc that has all symbols of the library (manylinux, PEP 600). The
source distribution has the sources of the library in `rust/`; to build from it needs Rust.

SUPERHUE_LIBRARY names a library that was built already.
"""

import base64
import gzip
import hashlib
import io
import os
import pathlib
import re
import struct
import subprocess
import sysconfig
import tarfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# In the tree of superhue, or in a source distribution.
TREE = HERE / "rust" if (HERE / "rust").is_dir() else HERE.parent
NAME, VERSION = "superhue", "0.1.0"

# What libraries of a manylinux wheel may need from the system (PEP 600).
ALLOWED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libgcc_s.so.1",
           "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

# A file of an archive: no earlier time can be written to a zip file.
EPOCH = max(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), 315532800)


def get_requires_for_build_wheel(config_settings=None):
    return []


def get_requires_for_build_sdist(config_settings=None):
    return []


def _library() -> pathlib.Path:
    named = os.environ.get("SUPERHUE_LIBRARY")
    if named:
        return pathlib.Path(named)
    if not (TREE / "crates" / "service" / "capi").is_dir():
        raise SystemExit(f"{TREE} is not the tree of superhue: set SUPERHUE_LIBRARY to a libsuperhue.so")
    try:
        subprocess.run(["cargo", "build", "--release", "--locked", "-p", "superhue-capi"], cwd=TREE, check=True)
    except FileNotFoundError:
        raise SystemExit("cargo is missing: install Rust (https://rustup.rs), or set SUPERHUE_LIBRARY")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target"))
    return TREE / target / "release" / "libsuperhue.so"


def versions_needed(library: bytes) -> dict:
    """The libraries that an ELF file (64 bits, little-endian) needs, each with the versions of its symbols."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise SystemExit("the library is no ELF file of 64 bits")
    (offset,) = struct.unpack_from("<Q", library, 40)
    size, count, _ = struct.unpack_from("<HHH", library, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, offset + n * size) for n in range(count)]

    def text(table, at):
        begin = sections[table][4] + at
        return library[begin:library.index(b"\0", begin)].decode()

    needed = {}
    for _, kind, _, _, at, length, link, information, _, _ in sections:
        if kind == 6:  # SHT_DYNAMIC: DT_NEEDED
            for entry in range(at, at + length, 16):
                tag, value = struct.unpack_from("<QQ", library, entry)
                if tag == 1:
                    needed.setdefault(text(link, value), set())
        if kind == 0x6FFFFFFE:  # SHT_GNU_verneed
            for _ in range(information):
                _, entries, file, first, following = struct.unpack_from("<HHIII", library, at)
                entry = at + first
                for _ in range(entries):
                    _, _, _, name, more = struct.unpack_from("<IHHII", library, entry)
                    needed.setdefault(text(link, file), set()).add(text(link, name))
                    entry += more
                at += following
    return needed


def platform_tag(library: bytes) -> str:
    """`manylinux_2_34_x86_64`: the oldest glibc that has what the library needs; else a tag that only pip on this kind
    of machine takes."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    needed = versions_needed(library)
    versions = {tuple(map(int, found.groups())) for names in needed.values() for name in names
                if (found := re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name))}
    if not platform.startswith("linux_") or not versions or not needed.keys() <= ALLOWED:
        return platform
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{platform[len('linux_'):]}"


def _licences():
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        for folder in (HERE, TREE):
            if (folder / name).is_file():
                yield name, (folder / name).read_bytes()
                break


def _metadata() -> bytes:
    return (
        f"Metadata-Version: 2.4\nName: {NAME}\nVersion: {VERSION}\n"
        "Summary: Learn which of your pages are accessed, and take part in their placement\n"
        "Author: The Superhue developers\n"
        "License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE-MIT\nLicense-File: LICENSE-APACHE\n"
        "Project-URL: Source, https://github.com/superhue/superhue\n"
        "Keywords: huge pages,memory,performance,cache\n"
        "Classifier: Operating System :: POSIX :: Linux\nClassifier: Programming Language :: Python :: 3\n"
        "Classifier: Programming Language :: Rust\nClassifier: Topic :: System :: Operating System Kernels :: Linux\n"
        "Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n"
    ).encode() + (HERE / "README.md").read_bytes()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    library = _library().read_bytes()
    tag = f"py3-none-{platform_tag(library)}"
    info = f"{NAME}-{VERSION}.dist-info"
    files = {f"superhue/{path.name}": path.read_bytes() for path in sorted((HERE / "superhue").glob("*.py*"))
             if path.suffix in (".py", ".pyi") or path.name == "py.typed"}
    files["superhue/py.typed"] = b""
    files["superhue/libsuperhue.so"] = library
    files[f"{info}/METADATA"] = _metadata()
    for name, text in _licences():
        files[f"{info}/licenses/{name}"] = text
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: superhue\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    lines.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(lines) + "\n").encode()
    wheel = f"{NAME}-{VERSION}-{tag}.whl"
    when = time.gmtime(EPOCH)[:6]
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, content)
    return wheel


def _sources():
    """What the library is built from: paths below TREE."""
    parts = ["Cargo.toml", "Cargo.lock", "LICENSE-MIT", "LICENSE-APACHE", "crates", "include"]
    try:
        told = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *parts], cwd=TREE,
                              check=True, capture_output=True).stdout
        found = [name for name in told.decode().split("\0") if name]
        if found:
            return found
    except (OSError, subprocess.CalledProcessError):
        pass
    found = [path for part in parts for path in [TREE / part, *(TREE / part).rglob("*")]]
    return [str(path.relative_to(TREE)) for path in found if path.is_file() and "target" not in path.parts[len(TREE.parts):]]


def build_sdist(sdist_directory, config_settings=None):
    base = f"{NAME}-{VERSION}"
    files = {"PKG-INFO": _metadata(), "pyproject.toml": (HERE / "pyproject.toml").read_bytes(),
             "backend.py": (HERE / "backend.py").read_bytes(), "README.md": (HERE / "README.md").read_bytes()}
    for folder in ("superhue", "tests"):
        for path in sorted((HERE / folder).glob("*")):
            if path.is_file():
                files[f"{folder}/{path.name}"] = path.read_bytes()
    files.update(_licences())
    for name in sorted(_sources()):
        # Links to the licences are followed: archives with links in them are refused by some.
        if (TREE / name).is_file():
            files[f"rust/{name}"] = (TREE / name).read_bytes()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o644, EPOCH
            archive.addfile(entry, io.BytesIO(content))
    path = os.path.join(sdist_directory, f"{base}.tar.gz")
    with open(path, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=EPOCH) as packed:
        packed.write(raw.getvalue())
    return f"{base}.tar.gz"
