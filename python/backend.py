"""Builds the wheel: the package, and libsuperhue.so built by cargo (PEP 517).

Why not maturin or setuptools-rust: the package is ctypes over the C library that is built anyway, so all
that is left to do is to put one file beside the modules; doing that here needs nothing to be downloaded,
works with the pip of Debian 12, and does not depend on the version of Python.

SUPERHUE_LIBRARY names a library that was built already.
"""

import base64
import hashlib
import os
import pathlib
import subprocess
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent
NAME, VERSION = "superhue", "0.1.0"


def get_requires_for_build_wheel(config_settings=None):
    return []


def _library() -> pathlib.Path:
    named = os.environ.get("SUPERHUE_LIBRARY")
    if named:
        return pathlib.Path(named)
    if not (TREE / "crates" / "service" / "capi").is_dir():
        raise SystemExit(f"{TREE} is not the tree of superhue: set SUPERHUE_LIBRARY to a libsuperhue.so")
    try:
        subprocess.run(["cargo", "build", "--release", "-p", "superhue-capi"], cwd=TREE, check=True)
    except FileNotFoundError:
        raise SystemExit("cargo is missing: install Rust (https://rustup.rs), or set SUPERHUE_LIBRARY")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target"))
    return TREE / target / "release" / "libsuperhue.so"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"py3-none-{platform}"
    info = f"{NAME}-{VERSION}.dist-info"
    files = {f"superhue/{path.name}": path.read_bytes() for path in sorted((HERE / "superhue").glob("*.py*"))
             if path.suffix in (".py", ".pyi") or path.name == "py.typed"}
    files["superhue/py.typed"] = b""
    files["superhue/libsuperhue.so"] = _library().read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
        "Summary: Learn which of your pages are accessed, and take part in their placement\n"
        "License: MIT OR Apache-2.0\nRequires-Python: >=3.9\n"
    ).encode()
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
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("no source distribution: the Rust code is in the tree of superhue; install from there "
                     "(pip install ./python), or carry a wheel to other machines (pip wheel ./python)")
