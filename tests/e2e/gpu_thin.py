#!/usr/bin/env python3
"""What tools/gpu_thin.py leaves of a file that is made here in the form of a library with CUDA code."""
import ctypes.util
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import gpu_thin  # noqa: E402

PTX, PLAIN = 1, 0x11


def entry(kind, arch, code, packed=b""):
    stored = packed or code
    stored += bytes(-len(stored) % 8)
    flags = PLAIN | (gpu_thin.ZSTD if packed else 0)
    return struct.pack("<HHIQIIHHIQQQQ", kind, 257, 64, len(stored), len(packed), 0, 8, 1, arch, 0, flags, 0, len(code) if packed else 0) + stored


def container(*rows):
    return struct.pack("<IHHQ", gpu_thin.CONTAINER, 1, 16, sum(map(len, rows))) + b"".join(rows)


def library(fatbin, linkable):
    names = b"\0.nv_fatbin\0__nv_relfatbin\0.names\0"
    contents = [b"", fatbin, linkable, names]
    image, rows = bytearray(64), b""
    for name, content in zip((b"\0", b".nv_fatbin", b"__nv_relfatbin", b".names"), contents):
        rows += struct.pack("<IIQQQQIIQQ", names.index(name), 1, 0, 0, len(image), len(content), 0, 0, 8, 0)
        image += content + bytes(-len(content) % 8)
    struct.pack_into("<6s", image, 0, b"\x7fELF\x02\x01")
    struct.pack_into("<Q", image, 40, len(image))
    struct.pack_into("<HH", image, 60, len(contents), 3)
    return bytes(image) + rows


def section(image, wanted):
    return next((offset, size) for name, offset, size in gpu_thin.sections(image) if name == wanted)


def check(good, what):
    if not good:
        sys.exit(f"not so: {what}")


def run(image, keep):
    with tempfile.TemporaryDirectory() as name:
        source, out = pathlib.Path(name) / "in.so", pathlib.Path(name) / "out.so"
        source.write_bytes(image)
        job = subprocess.run([sys.executable, ROOT / "tools/gpu_thin.py", source, out, "--keep", keep], capture_output=True, text=True, timeout=60)
        return job, out.read_bytes() if out.exists() else None


def main():
    numbers = random.Random(1)
    block = numbers.randbytes(3000)
    code = block + numbers.randbytes(100_000) + block  # which only a wide window finds again
    own = gpu_thin.Zstd(ctypes.util.find_library("zstd")) if ctypes.util.find_library("zstd") else None
    packed = b""
    if own:
        gpu_thin.WINDOW_LOG = 10
        packed = own.pack(code)
    old, ptx = numbers.randbytes(800), numbers.randbytes(500)
    without = container(entry(gpu_thin.ELF, 100, numbers.randbytes(333)))
    first = container(entry(gpu_thin.ELF, 80, old), entry(gpu_thin.ELF, 90, code, packed), entry(PTX, 90, ptx))
    linkable = container(entry(gpu_thin.ELF, 90, numbers.randbytes(640)))
    image = library(first + without, linkable)
    job, thinned = run(image, "sm_90")
    check(job.returncode == 0 and "1 pieces of code for sm_90 kept" in job.stderr, job)
    check(len(thinned) == len(image), "its size stays")
    offset, size = section(thinned, ".nv_fatbin")
    start, end, rows = next(gpu_thin.containers(thinned, offset, size))
    check(thinned[offset:offset + 16] == first[:16] and end - offset == len(first), "the container stays")
    check([(row.kind, row.arch) for row in rows] == [(gpu_thin.ELF, 90)], rows)
    body = thinned[start + rows[0].header:end]
    if own:
        check(rows[0].compressed < len(packed) and rows[0].unpacked == len(code), f"{rows[0]} of {len(packed)}")
        check(own.unpack(body[:rows[0].compressed], len(code)) == code, "the code stays")
        check(not any(body[rows[0].compressed:]), "zero bytes behind it")
    else:
        check(body[:len(code)] == code, "the code stays")
    check(thinned[end:end + len(without)] == without, "one without any stays as it is")
    check(old not in thinned and ptx not in thinned, "that for others is gone")
    offset, _ = section(thinned, "__nv_relfatbin")
    check(thinned[offset:offset + 80] == linkable[:80] and not any(thinned[offset + 80:offset + len(linkable)]), "what a linker reads is gone")
    job, thinned = run(image, "sm_75")
    check(job.returncode == 1 and thinned is None and "has no code for sm_75; nothing was written" in job.stderr, job)
    job, thinned = run(library(first[:-8], linkable), "sm_90")
    check(job.returncode == 1 and thinned is None and "does not end where its header says" in job.stderr, job)
    job, thinned = run(b"text", "sm_90")
    check(job.returncode == 1 and thinned is None and "this is no 64-bit ELF file" in job.stderr, job)
    print("good")


if __name__ == "__main__":
    main()
